// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/tidy/driver_tidy.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/start_thread.h"

namespace gpumemd {

void TidySchedule::Freed(absl::Time now, uint64_t bytes) {
  bytes_ += bytes;
  cleared_ = std::max(cleared_, now) + absl::Seconds(1) * (static_cast<double>(bytes) /
                                                           static_cast<double>(kClearedPerSecond));
  if (bytes_ >= kLeastBytes) next_ = now + kPause;
}

void TidySchedule::Allocated(absl::Time now) {
  if (now < cleared_) {
    next_ = now + kPause;
    return;
  }
  next_ = absl::InfiniteFuture();
  bytes_ = 0;
}

DriverTidy::DriverTidy(std::function<void()> allocate) : allocate_(std::move(allocate)) {
  absl::StatusOr<std::thread> thread = gpumem::StartThread([this] { Run(); });
  if (thread.ok()) thread_ = *std::move(thread);
}

DriverTidy::~DriverTidy() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.Signal();
  if (thread_.joinable()) thread_.join();
}

void DriverTidy::Freed(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const bool slept = schedule_.next() == absl::InfiniteFuture();
  schedule_.Freed(absl::Now(), bytes);
  // A later time needs no signal: the thread looks at the earlier one.
  if (slept && schedule_.next() != absl::InfiniteFuture()) changed_.Signal();
}

void DriverTidy::Run() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    if (absl::Now() < schedule_.next()) {
      changed_.WaitWithDeadline(&mutex_, schedule_.next());
      continue;
    }
    mutex_.Unlock();
    allocate_();
    mutex_.Lock();
    schedule_.Allocated(absl::Now());
  }
}

}  // namespace gpumemd
