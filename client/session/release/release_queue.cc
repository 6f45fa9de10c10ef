// SPDX-License-Identifier: Apache-2.0
#include "client/session/release/release_queue.h"

#include <algorithm>

#include "common/node_clock.h"

namespace gpumem::internal {

// --- ReleaseTimer -----------------------------------------------------------------------

bool ReleaseTimer::Add(size_t leases, uint64_t bytes, uint64_t now) {
  ++added_;
  queued_ += leases;
  queued_bytes_ += bytes;
  awake_until_ = now + limits_.awake_ns;
  const bool at_once =
      queued_ >= limits_.most_leases || queued_bytes_ >= limits_.most_bytes || now < hurried_until_;
  due_ = std::min(due_, std::max(at_once ? now : now + limits_.linger_ns, retry_after_));
  return MustWake(now);
}

bool ReleaseTimer::Hurry(uint64_t until, uint64_t now) {
  hurried_until_ = std::max(hurried_until_, until);
  if (queued_ == 0) return false;
  due_ = std::min(due_, std::max(now, retry_after_));
  return MustWake(now);
}

bool ReleaseTimer::MustWake(uint64_t now) {
  if (wakes_ == 0) return false;
  const uint64_t due = std::max(due_, now);
  // A sleep that should be over by now may have been measured by another clock that was set back.
  const bool overslept = wakes_ < now && now - wakes_ > limits_.linger_ns;
  if (wakes_ <= due && !overslept) return false;
  wakes_ = due;
  return true;
}

uint64_t ReleaseTimer::TakeAll() {
  queued_ = 0;
  queued_bytes_ = 0;
  due_ = kNever;
  return added_;
}

bool ReleaseTimer::Done(uint64_t taken, bool sent, uint64_t now) {
  if (sent) {
    sent_ = taken;
    // The daemon answers again: what was kept back for that is due.
    if (retry_after_ > now && queued_ > 0) due_ = now;
    retry_after_ = 0;
    next_retry_ = 0;
    return MustWake(now);
  }
  const uint64_t pause = std::max(next_retry_, limits_.first_retry_ns);
  next_retry_ = std::min(2 * pause, limits_.longest_retry_ns);
  retry_after_ = now + pause;
  due_ = retry_after_;
  return MustWake(now);
}

uint64_t ReleaseTimer::Sleep(uint64_t now) {
  wakes_ = due_;
  if (due_ == kNever && now < awake_until_) {
    wakes_ = std::min(now + limits_.linger_ns, awake_until_);
  }
  return wakes_;
}

// --- ReleaseQueue -----------------------------------------------------------------------

std::atomic<int> ReleaseQueue::unsent_queues_ = 0;

ReleaseQueue::~ReleaseQueue() {
  if (unsent_) unsent_queues_.fetch_sub(1, std::memory_order_release);
}

void ReleaseQueue::Publish() {
  const bool unsent = timer_.unsent();
  if (unsent == unsent_.load(std::memory_order_relaxed)) return;
  unsent_.store(unsent, std::memory_order_release);
  unsent_queues_.fetch_add(unsent ? 1 : -1, std::memory_order_release);
}

void ReleaseQueue::Add(size_t leases, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (timer_.Add(leases, bytes, NodeClockNs())) due_.Signal();
  Publish();
}

void ReleaseQueue::Hurry(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  const uint64_t now = NodeClockNs();
  const auto rest = static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Nanoseconds(time)));
  if (timer_.Hurry(now + rest, now)) due_.Signal();
}

std::optional<ReleaseQueue::Flush> ReleaseQueue::TakeAll(absl::Time deadline) {
  if (!unsent()) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  const uint64_t all = timer_.added();
  while (flushing_ && timer_.sent() < all) {
    if (flushes_ == std::this_thread::get_id()) return std::nullopt;
    if (ended_.WaitWithDeadline(&mutex_, deadline) && flushing_) return std::nullopt;
  }
  if (timer_.sent() >= all) return std::nullopt;
  flushing_ = true;
  flushes_ = std::this_thread::get_id();
  return Flush(this, timer_.TakeAll());
}

void ReleaseQueue::Flush::Done(bool sent) {
  ReleaseQueue& queue = *queue_;
  queue_ = nullptr;
  absl::MutexLock lock(&queue.mutex_);
  if (queue.timer_.Done(taken_, sent, NodeClockNs())) queue.due_.Signal();
  queue.flushing_ = false;
  queue.Publish();
  queue.ended_.SignalAll();
}

bool ReleaseQueue::AwaitDue() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    timer_.Wake();
    if (stopped_) return false;
    const uint64_t now = NodeClockNs();
    if (timer_.due() <= now) return true;
    const uint64_t until = timer_.Sleep(now);
    if (until == ReleaseTimer::kNever) {
      due_.Wait(&mutex_);
    } else {
      due_.WaitWithTimeout(&mutex_, absl::Nanoseconds(static_cast<int64_t>(until - now)));
    }
  }
}

void ReleaseQueue::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  due_.Signal();
}

}  // namespace gpumem::internal
