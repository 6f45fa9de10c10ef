// SPDX-License-Identifier: Apache-2.0
// The broker's threads, and how threads wait for its state: those of the system, or others that a
// simulation puts in their place.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gpumemd {

// Takes the place of the system's threads. Every call of the broker runs on one of these threads.
class Threads {
 public:
  virtual ~Threads() = default;
  // Starts a thread. The result is called once, and blocks until `body` has returned.
  virtual std::function<void()> Start(std::function<void()> body) = 0;
  // Blocks until the condition holds or `deadline` has passed. True if it holds. Releases the mutex
  // meanwhile: the caller holds it before and after the call.
  virtual bool Await(absl::Mutex& mutex, const absl::Condition& condition, absl::Time deadline) = 0;
  // Returns the time that deadlines refer to.
  virtual absl::Time Now() const = 0;
  // Lets other threads run.
  virtual void Yield() = 0;
};

// A thread of the broker; of the system if `threads` is null.
class BrokerThread {
 public:
  BrokerThread() = default;
  BrokerThread(Threads* threads, std::function<void()> body) {
    if (threads == nullptr) {
      thread_ = std::thread(std::move(body));
    } else {
      join_ = threads->Start(std::move(body));
    }
  }
  void join() { join_ ? join_() : thread_.join(); }

  static void Yield(Threads* threads) {
    threads == nullptr ? std::this_thread::yield() : threads->Yield();
  }

 private:
  std::thread thread_;
  std::function<void()> join_;
};

}  // namespace gpumemd
