// SPDX-License-Identifier: Apache-2.0
// A socket that gRPC serves, with the means to end it from outside.
//
// gRPC owns the descriptor that it is given. It reports neither when it closes the descriptor nor
// how much unread data waits in it.
// A line keeps a duplicate, with which the daemon can shut the connection down and check whether
// the peer reads. The line counts the connection until gRPC has closed its descriptor.
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

// Thread-safe, except Stalled().
class ApiLine {
 public:
  // Returns a line for a socket that is about to be handed to gRPC. The caller keeps `served`.
  //   RESOURCE_EXHAUSTED  the process may open no more descriptors
  static absl::StatusOr<std::shared_ptr<ApiLine>> Of(const gpumem::UniqueFd& served);

  ApiLine(gpumem::UniqueFd duplicate, int number, ino_t inode);
  ApiLine(const ApiLine&) = delete;
  ApiLine& operator=(const ApiLine&) = delete;
  // Cuts it.
  ~ApiLine();

  // Shuts down both directions, discards what gRPC has not read, and closes the duplicate. gRPC
  // closes its descriptor soon after. Idempotent.
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_cut() const { return cut_; }
  // True once gRPC has closed its descriptor.
  bool Closed() const;
  // True if the peer's receive buffer has been full since `now - patience` or earlier, as observed
  // by calls of this function. Call from one thread only.
  bool Stalled(absl::Time now, absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  // True if Stalled() has last seen a full buffer. Call from the thread of that.
  bool full() const { return full_since_ != absl::InfiniteFuture(); }

  // Returns the daemon's duplicate, for polling until Cut(). The caller must not close it.
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
