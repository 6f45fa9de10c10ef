// Reaches a part of the daemon from threads that were started before it was made, and that go on
// when it ends.
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

  // From now on `part` is called. It outlives the next Clear().
  void Set(Part* part) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    part_ = part;
  }

  // Blocks until no call is in progress; afterwards there are none. Must not be called by one.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_) { Set(nullptr); }

  // True if the part was there, and was called.
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
