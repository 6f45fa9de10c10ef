// A socket that gRPC serves, and the means to end it from outside.
//
// gRPC owns the descriptor that it is given and says neither when it closes it nor what waits in
// it. A line keeps a duplicate. So the daemon can shut the connection down, can see whether its
// peer reads, and counts it until gRPC has closed its descriptor.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumemd {

// Thread-safe, but for Stalled().
class ApiLine {
 public:
  // Of a socket that is about to be handed to gRPC; `served` stays the caller's.
  //   RESOURCE_EXHAUSTED  the process may open no more descriptors
  static absl::StatusOr<std::shared_ptr<ApiLine>> Of(const gpumem::UniqueFd& served);

  ApiLine(gpumem::UniqueFd duplicate, int number, ino_t inode);
  ApiLine(const ApiLine&) = delete;
  ApiLine& operator=(const ApiLine&) = delete;
  // Cuts it.
  ~ApiLine();

  // Ends the connection in both directions, discards what the peer has sent and gRPC has not read,
  // and closes the duplicate. gRPC closes its descriptor soon after. Idempotent.
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_cut() const { return cut_; }
  // True once gRPC has closed its descriptor.
  bool Closed() const;
  // True if the peer's receive buffer has been full since `now - patience` or earlier, as far as
  // the calls of this function have seen. Of one thread.
  bool Stalled(absl::Time now, absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  // The daemon's own descriptor of it, to poll until Cut(); not to close.
  int duplicate() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return duplicate_.get();
  }

 private:
  mutable absl::Mutex mutex_;
  gpumem::UniqueFd duplicate_ ABSL_GUARDED_BY(mutex_);  // not valid() once it is cut
  const int number_;
  const ino_t inode_;
  std::atomic<bool> cut_ = false;
  absl::Time full_since_ = absl::InfiniteFuture();
};

}  // namespace gpumemd
