// SPDX-License-Identifier: Apache-2.0
// The operations of a CUDA context, or of its stand-in: for kinds mempool and ipc, and copies
// between segments and the host tier.
//
// It lives in a separate process, the context process (process.h), so that an error which spoils
// the context affects no other process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

enum class CopyDirection : uint32_t {
  kOut,  // from segments to the tier
  kIn,   // from the tier to segments
};

// A part of one segment's contents.
struct CopyPart {
  int fd = -1;  // the segment's descriptor
  uint64_t segment_bytes = 0;
  uint64_t offset = 0;              // of the part in its segment
  std::vector<TierExtent> extents;  // its bytes in the tier's file, one after another
};

// Parts that are copied together. `tier_fd` is the tier's file. Its pages stay where they are as
// long as the file exists (no hole is punched): a context keeps them registered with the driver.
struct CopyBatch {
  CopyDirection direction = CopyDirection::kOut;
  int tier_fd = -1;
  std::vector<CopyPart> parts;
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

  // Starts a copy, which may last until FinishCopies(). At most two batches are in progress: the
  // call waits for earlier ones. The descriptors need not stay open longer than the call. After an
  // error the contents of all targets since the last FinishCopies() are undefined.
  //   UNIMPLEMENTED  this context does not copy
  virtual absl::Status StartCopy(const CopyBatch&) {
    return absl::UnimplementedError("this context does not copy");
  }
  // Blocks until all copies are done.
  virtual absl::Status FinishCopies() { return absl::OkStatus(); }

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
