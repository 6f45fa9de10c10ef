// SPDX-License-Identifier: Apache-2.0
// A mutex for short sections that many threads enter. Abseil's may have been built without NDEBUG,
// as Debian's is: then each lock of any mutex first takes one that the whole process shares, to
// look for cycles. This one takes no other.
#pragma once

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace gpumem::internal {

class ABSL_LOCKABLE PlainMutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  // Tells the compiler's analysis that the caller holds it.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE PlainMutexLock {
 public:
  explicit PlainMutexLock(PlainMutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~PlainMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  PlainMutexLock(const PlainMutexLock&) = delete;
  PlainMutexLock& operator=(const PlainMutexLock&) = delete;

 private:
  PlainMutex* const mutex_;
};

}  // namespace gpumem::internal
