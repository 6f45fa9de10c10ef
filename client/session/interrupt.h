// SPDX-License-Identifier: Apache-2.0
// Wakes or cancels a waiting call from another thread.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace gpumem::internal {

class Interrupt {
 public:
  // Calls `wake` for each Nudge() and Cancel() during its lifetime, under a lock. `wake` must be
  // quick and must not use the Interrupt. The owner must check for earlier events.
  class Listener {
   public:
    Listener(Interrupt* interrupt, std::function<void()> wake)
        : interrupt_(interrupt), wake_(std::move(wake)) {
      absl::MutexLock lock(&interrupt_->mutex_);
      interrupt_->listeners_.insert(this);
    }
    ~Listener() {
      absl::MutexLock lock(&interrupt_->mutex_);
      interrupt_->listeners_.erase(this);
    }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

   private:
    friend class Interrupt;
    Interrupt* const interrupt_;
    const std::function<void()> wake_;
  };

  Interrupt() = default;
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Makes waiting calls check their condition again.
  void Nudge() {
    absl::MutexLock lock(&mutex_);
    WakeAll();
  }
  // Cancels the waiting calls; later calls do not begin.
  void Cancel() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    WakeAll();
  }
  bool cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

 private:
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (Listener* listener : listeners_) listener->wake_();
  }

  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<Listener*> listeners_ ABSL_GUARDED_BY(mutex_);
};

// The disturbances that a call obeys while it waits for its answer.
struct Disturbance {
  std::shared_ptr<Interrupt> interrupt;  // null: none
  // Called by the waiting thread periodically and after a nudge. True if there is nothing left to
  // wait for. Empty: always false.
  std::function<bool()> look;
};

}  // namespace gpumem::internal
