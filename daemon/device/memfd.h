// SPDX-License-Identifier: Apache-2.0
// Shared host memory of a fixed size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/device/device.h"
#include "daemon/device/free_bytes.h"

namespace gpumemd {

// Makes a memfd of fixed size, close-on-exec, whose pages are zero and take no memory until they
// are written. Sealed: without the seals one client could truncate it, and every other would die of
// SIGBUS.
//   RESOURCE_EXHAUSTED  no memory or descriptors left
//   INTERNAL            any other error of the system
absl::StatusOr<gpumem::UniqueFd> MakeSealedMemfd(const std::string& name, uint64_t bytes);

// Makes one of huge pages, allocated at once. Returns nothing if the machine has too few free ones.
// Statuses as above.
absl::StatusOr<std::optional<gpumem::UniqueFd>> MakeHugeMemfd(const std::string& name,
                                                              uint64_t bytes);

// Allocates all pages of a memfd. Statuses as above.
absl::Status FillMemfd(int fd, uint64_t bytes);

// Checks that it is a memfd of that size, sealed against resizing.
//   INVALID_ARGUMENT  it is not
absl::Status CheckMemfd(int fd, uint64_t bytes);

// Returns the status for a failed system call (`error` is its errno) on such memory.
absl::Status MemfdError(int error, const char* call, uint64_t bytes);

// A part of such memory in this process's address space, for reads and writes. Access to pages that
// are not allocated can raise SIGBUS; system calls that access them report EFAULT.
class MemfdMapping {
 public:
  MemfdMapping(int fd, uint64_t offset, uint64_t bytes);
  MemfdMapping(const MemfdMapping&) = delete;
  MemfdMapping& operator=(const MemfdMapping&) = delete;
  ~MemfdMapping();
  // False: errno has the error until the next call of the system.
  bool valid() const { return address_ != nullptr; }
  char* address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const uint64_t bytes_;
  char* address_;
};

// A segment of host memory that its descriptor shares: a memfd, or an allocation of the driver.
class DescriptorAllocation : public Allocation {
 public:
  DescriptorAllocation(Share share, gpumem::UniqueFd fd)
      : share_(std::move(share)), fd_(std::move(fd)) {}
  int fd() const override { return fd_.get(); }

 private:
  const Share share_;  // destroyed last: the bytes are free once the descriptor is closed
  const gpumem::UniqueFd fd_;
};

}  // namespace gpumemd
