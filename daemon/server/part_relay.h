// Lets threads that outlive a part of the daemon, or start before it, call that part.
//
// Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace gpumemd {

template <typename Part>
class PartRelay {
 public:
  PartRelay() = default;
  PartRelay(const PartRelay&) = delete;
  PartRelay& operator=(const PartRelay&) = delete;

  // Sets the part to call. It outlives the next Clear().
  void Set(Part* part) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    part_ = part;
  }

  // Blocks until no call is in progress, and prevents later ones. A call must not use it.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_) { Set(nullptr); }

  // Calls the part. False if there is none.
  template <typename Call>
  bool With(const Call& call) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::ReaderMutexLock lock(&mutex_);
    if (part_ == nullptr) return false;
    call(*part_);
    return true;
  }

 private:
  mutable absl::Mutex mutex_;
  Part* part_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace gpumemd
