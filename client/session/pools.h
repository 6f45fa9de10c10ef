// SPDX-License-Identifier: Apache-2.0
// The memory pools of a session's segments of kind mempool.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/session/deliveries.h"
#include "common/mapping/mapping.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"

namespace gpumem::internal {

struct Pool {
  std::string device_uuid;
  int32_t owner = 0;  // the daemon process that owns it; 0: unknown
  UniqueFd fd;        // as the daemon sent it: other processes can import the pool with it
  std::shared_ptr<ImportedPool> imported;
};

class Pools {
 public:
  // `deliveries` outlives it.
  explicit Pools(Deliveries* deliveries) : deliveries_(deliveries) {}
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // Returns the imported pool of a lease. It is kept for later segments, as the daemon sends the
  // descriptor of a living pool only once; see DropDead. `owner` returns the process that owns a
  // pool new to this session; it is called with a lock held. `runtime_dir` is the daemon's: pools
  // of the host backend are opened there.
  //   RESOURCE_EXHAUSTED   its descriptor was lost: this process could open no more files
  //   and the statuses of ImportCudaPool and ImportHostPool
  absl::StatusOr<std::shared_ptr<const Pool>> Get(uint64_t pool_id, const std::string& device_uuid,
                                                  Backend backend, const std::string& runtime_dir,
                                                  absl::FunctionRef<int32_t()> owner);

  // Call after a Segment was destroyed. Releases unused pools of devices that have another owner by
  // now: the descriptor of a pool alone keeps the memory of a dead owner alive. Keeps the newest
  // few pools of one owner.
  void DropDead();

 private:
  void DropDeadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Deliveries* const deliveries_;
  absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Pool>> pools_ ABSL_GUARDED_BY(mutex_);  // by id
};

}  // namespace gpumem::internal
