// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/workers.h"

#include <system_error>
#include <utility>

namespace gpumemd {

Workers::Workers(size_t max_threads) : max_threads_(max_threads) {
  absl::MutexLock lock(&mutex_);
  ++starting_;
  threads_.emplace_back([this] { Work(); });
}

Workers::~Workers() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    threads = std::exchange(threads_, {});
  }
  given_.SignalAll();
  for (std::thread& thread : threads) thread.join();
}

void Workers::Run(absl::AnyInvocable<void()> work) {
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(std::move(work));
  given_.Signal();
  StartOneForWaiting();
}

void Workers::StartOneForWaiting() {
  if (waiting_.empty() || idle_ + starting_ > 0 || threads_.size() >= max_threads_) return;
  try {
    threads_.emplace_back([this] { Work(); });
    ++starting_;
  } catch (const std::system_error&) {
    // No more threads for this process (pids cgroup): those that there are get to it.
  }
}

void Workers::Work() {
  bool starts = true;
  while (true) {
    absl::AnyInvocable<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      if (std::exchange(starts, false)) --starting_;
      ++idle_;
      while (waiting_.empty() && !stopping_) given_.Wait(&mutex_);
      --idle_;
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
      if (!stopping_) StartOneForWaiting();
    }
    work();
  }
}

}  // namespace gpumemd
