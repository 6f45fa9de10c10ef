// The memory pools that a session's segments of kind mempool come from.
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
  int32_t owner = 0;  // the daemon's process that it is in; 0: unknown
  UniqueFd fd;        // as the daemon sent it: others can import the pool by it
  std::shared_ptr<ImportedPool> imported;
};

class Pools {
 public:
  // `deliveries` outlives it.
  explicit Pools(Deliveries* deliveries) : deliveries_(deliveries) {}
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // The pool of a lease, imported. It is kept for the segments to come, as the daemon sends the
  // descriptor of a living pool but once; see DropDead. `owner` says, where this session had not
  // the pool yet, which process it is in; it is called with a lock held. `runtime_dir` is the
  // daemon's: pools of the host backend are opened there.
  //   RESOURCE_EXHAUSTED   its descriptor was lost: this process could open no more files
  //   and what ImportCudaPool and ImportHostPool say
  absl::StatusOr<std::shared_ptr<const Pool>> Get(uint64_t pool_id, const std::string& device_uuid,
                                                  Backend backend, const std::string& runtime_dir,
                                                  absl::FunctionRef<int32_t()> owner);

  // To be called when a Segment has gone. Lets go of the pools that no Segment uses where the
  // device has another owner by now: the descriptor of a pool alone keeps the memory that a dead
  // owner had given out. Of those of one owner the newest few are kept.
  void DropDead();

 private:
  void DropDeadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Deliveries* const deliveries_;
  absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Pool>> pools_ ABSL_GUARDED_BY(mutex_);  // by id
};

}  // namespace gpumem::internal
