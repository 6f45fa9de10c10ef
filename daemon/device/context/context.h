// SPDX-License-Identifier: Apache-2.0
// The operations of a CUDA context, or of its stand-in, for kinds mempool and ipc.
//
// It lives in a separate process, the context process (process.h), so that an error which spoils
// the context affects no other process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/export_data.h"
#include "common/unique_fd.h"
#include "daemon/device/device.h"

namespace gpumemd {

// A pool's numbers, as in PoolStatus.
struct PoolNumbers {
  uint64_t reserved_bytes, reserved_peak_bytes;
  uint64_t used_bytes, used_peak_bytes;
  uint64_t release_threshold_bytes;
  bool reuse_follow_event_dependencies;
  bool reuse_allow_opportunistic;
  bool reuse_allow_internal_dependencies;
};

struct MadePool {
  gpumem::UniqueFd fd;
  uint64_t max_bytes = 0;  // as PoolStatus
};

// The caller numbers memory and pools; each number is used once. Not thread-safe. The destructor
// frees the rest.
//
// Statuses: RESOURCE_EXHAUSTED if memory or descriptors have run out, or a pool is at its maximum;
// NOT_FOUND for unknown numbers; INTERNAL for any other error, by its name.
class Context {
 public:
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  virtual ~Context() = default;

  // Makes zeroed memory that shares its allocation with no other memory. `bytes` is a multiple of
  // the device's granularity.
  virtual absl::StatusOr<ExportData> CreateIpc(uint64_t memory, uint64_t bytes) = 0;
  // Zeroed memory of a pool.
  virtual absl::StatusOr<ExportData> Allocate(uint64_t memory, uint64_t pool, uint64_t bytes) = 0;
  // Frees the memory. Requires that no other process uses it any more.
  virtual absl::Status Free(uint64_t memory) = 0;

  // Makes a pool that reserves `max_bytes` at most; unlimited if the driver is too old for that.
  virtual absl::StatusOr<MadePool> CreatePool(uint64_t pool, uint64_t max_bytes) = 0;
  // All its memory is freed.
  virtual absl::Status DestroyPool(uint64_t pool) = 0;
  virtual absl::StatusOr<PoolNumbers> ReadPool(uint64_t pool) = 0;
  virtual absl::Status SetPool(uint64_t pool, const PoolChange& change) = 0;
  // Releases the pool's unused reserved bytes beyond `keep_bytes`.
  virtual absl::Status TrimPool(uint64_t pool, uint64_t keep_bytes) = 0;

  // True once an error has spoiled it: all later operations fail, and its process ends.
  virtual bool broken() const { return false; }

 protected:
  Context() = default;
};

// Which context to make.
struct ContextSpec {
  std::string device_uuid;
  // For host devices: the socket on which openers of their memory are answered.
  std::string socket_path;
};

}  // namespace gpumemd
