// SPDX-License-Identifier: Apache-2.0
// Data that can be made again from a seed, so that another process can check every byte of
// memory on whichever device it is.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "gpumem/client.h"

namespace gpumem::testing {

// Mapped memory, of whatever origin. Borrows it.
struct Memory {
  Backend backend = Backend::kHost;  // the backend that can use `data`: kHost for kind pinned
  std::string device_uuid;           // with kCuda, a GPU that `data` is mapped for
  void* data = nullptr;
  uint64_t size = 0;  // a multiple of 8
};
Memory MemoryOf(const Segment& segment);

// Statuses of the device's copying beside those named.
absl::Status Fill(const Memory& memory, uint64_t seed);
// DATA_LOSS, with the first offset at which it differs from Fill's pattern.
absl::Status Check(const Memory& memory, uint64_t seed);
// DATA_LOSS where a byte is not zero.
absl::Status CheckZero(const Memory& memory);

}  // namespace gpumem::testing
