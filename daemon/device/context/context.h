// What a CUDA context (or what stands in for one) does for kinds mempool and ipc.
//
// It lives in a process of its own, the context process (process.h), so that an
// error which spoils the context costs nobody else anything.
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

// What a pool says of itself: as PoolStatus.
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

// Its caller numbers what it has made: memory and pools, each number used once. Not
// thread-safe. Its end frees what is left.
//
// Statuses: RESOURCE_EXHAUSTED where memory or descriptors have run out, or a pool is as large
// as it may become; NOT_FOUND for numbers that stand for nothing; INTERNAL for any other
// error, by its name.
class Context {
 public:
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  virtual ~Context() = default;

  // Zeroed memory that `bytes` (a multiple of the device's granularity) alone share.
  virtual absl::StatusOr<ExportData> CreateIpc(uint64_t memory, uint64_t bytes) = 0;
  // Zeroed memory of a pool.
  virtual absl::StatusOr<ExportData> Allocate(uint64_t memory, uint64_t pool, uint64_t bytes) = 0;
  // Nobody else uses the memory any more.
  virtual absl::Status Free(uint64_t memory) = 0;

  // A pool that reserves `max_bytes` at most, or as much as it likes where the driver is too old
  // for that.
  virtual absl::StatusOr<MadePool> CreatePool(uint64_t pool, uint64_t max_bytes) = 0;
  // All its memory is freed.
  virtual absl::Status DestroyPool(uint64_t pool) = 0;
  virtual absl::StatusOr<PoolNumbers> ReadPool(uint64_t pool) = 0;
  virtual absl::Status SetPool(uint64_t pool, const PoolChange& change) = 0;
  // Gives back what the pool has reserved beyond `keep_bytes` and does not use.
  virtual absl::Status TrimPool(uint64_t pool, uint64_t keep_bytes) = 0;

  // True once an error has spoiled it: nothing works in it any more, and its process ends.
  virtual bool broken() const { return false; }

 protected:
  Context() = default;
};

// Which context to make.
struct ContextSpec {
  std::string device_uuid;
  // For host devices: where to answer those who open their memory.
  std::string socket_path;
};

}  // namespace gpumemd
