#include "daemon/transport/workers.h"

#include <system_error>
#include <utility>

namespace gpumemd {

Workers::Workers(size_t max_threads) : max_threads_(max_threads) {
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
  if (waiting_.size() > idle_ && threads_.size() < max_threads_) {
    try {
      threads_.emplace_back([this] { Work(); });
      return;
    } catch (const std::system_error&) {
      // No more threads for this process (pids cgroup): those that there are get to it.
    }
  }
  given_.Signal();
}

void Workers::Work() {
  while (true) {
    absl::AnyInvocable<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      ++idle_;
      while (waiting_.empty() && !stopping_) given_.Wait(&mutex_);
      --idle_;
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace gpumemd
