// SPDX-License-Identifier: Apache-2.0
// Linked into every program of --config=tsan, where these functions stand before Abseil's own.
//
// Debian's Abseil is not instrumented, so that ThreadSanitizer would see no order between two
// holders of an absl::Mutex and report a race at each turn. Each function here calls Abseil's, and
// tells ThreadSanitizer what it means.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace {

// Abseil's function of that (mangled) name, taking the object as its first argument.
template <typename Function>
Function* Abseil(const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol));
}

// Calls Abseil with nothing judged meanwhile: it may evaluate other threads' conditions, which is
// our instrumented code, under a separate lock.
template <typename Function, typename... Args>
auto Call(Function* function, Args... args) {
  struct Unjudged {
    Unjudged() {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~Unjudged() {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
  } unjudged;
  return function(args...);
}

// A mutex is left and entered again somewhere inside the call.
template <typename Function, typename... Args>
auto Wait(absl::Mutex* mutex, Function* function, Args... args) {
  struct Reentered {
    absl::Mutex* mutex;
    ~Reentered() { __tsan_acquire(mutex); }
  } reentered{mutex};
  __tsan_release(mutex);
  return Call(function, args...);
}

}  // namespace

namespace absl {

void Mutex::Lock() {
  static auto* const abseil = Abseil<void(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  Call(abseil, this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  static auto* const abseil = Abseil<bool(Mutex*)>("_ZN4absl7debian35Mutex7TryLockEv");
  const bool locked = Call(abseil, this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  static auto* const abseil = Abseil<void(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_release(this);
  Call(abseil, this);
}

void Mutex::ReaderLock() {
  static auto* const abseil = Abseil<void(Mutex*)>("_ZN4absl7debian35Mutex10ReaderLockEv");
  Call(abseil, this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static auto* const abseil = Abseil<void(Mutex*)>("_ZN4absl7debian35Mutex12ReaderUnlockEv");
  __tsan_release(this);
  Call(abseil, this);
}

void Mutex::LockWhen(const Condition& condition) {
  static auto* const abseil =
      Abseil<void(Mutex*, const Condition*)>("_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE");
  Call(abseil, this, &condition);
  __tsan_acquire(this);
}

void Mutex::Await(const Condition& condition) {
  static auto* const abseil =
      Abseil<void(Mutex*, const Condition*)>("_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE");
  Wait(this, abseil, this, &condition);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static auto* const abseil = Abseil<bool(Mutex*, const Condition*, Time)>(
      "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  return Wait(this, abseil, this, &condition, deadline);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const abseil = Abseil<bool(Mutex*, const Condition*, Duration)>(
      "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  return Wait(this, abseil, this, &condition, timeout);
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const abseil =
      Abseil<void(CondVar*, Mutex*)>("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  ::Wait(mutex, abseil, this, mutex);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const abseil = Abseil<bool(CondVar*, Mutex*, Time)>(
      "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  return ::Wait(mutex, abseil, this, mutex, deadline);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const abseil = Abseil<bool(CondVar*, Mutex*, Duration)>(
      "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  return ::Wait(mutex, abseil, this, mutex, timeout);
}

void Notification::Notify() {
  static auto* const abseil =
      Abseil<void(Notification*)>("_ZN4absl7debian312Notification6NotifyEv");
  __tsan_release(this);
  Call(abseil, this);
}

void Notification::WaitForNotification() const {
  static auto* const abseil =
      Abseil<void(const Notification*)>("_ZNK4absl7debian312Notification19WaitForNotificationEv");
  Call(abseil, this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const abseil = Abseil<bool(const Notification*, Duration)>(
      "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = Call(abseil, this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

}  // namespace absl
