// What disturbs a call that waits, from another thread.
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
  // From its beginning to its end `wake` is called for each Nudge() and Cancel(), under a lock: it
  // must be quick, and not use the Interrupt. What happened before is for its owner to ask.
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

  // Those who wait look again at what they wait for.
  void Nudge() {
    absl::MutexLock lock(&mutex_);
    WakeAll();
  }
  // Those who wait give up, and those to come do not begin.
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

// What a call minds while it waits for its answer.
struct Disturbance {
  std::shared_ptr<Interrupt> interrupt;  // null: nobody cancels or nudges
  // Called by the thread that waits, now and then and when it was nudged: true where there is
  // nothing to wait for any more. Empty: there always is.
  std::function<bool()> look;
};

}  // namespace gpumem::internal
