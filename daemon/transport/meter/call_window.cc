// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/call_window.h"

#include <thread>
#include <utility>

namespace gpumemd {
namespace {

// Calls that came within so large a part of the patience are of one age.
constexpr int kAges = 8;

}  // namespace

uint64_t CallWindowOptions::Share() {
  return std::max<uint64_t>(4, 2 * std::thread::hardware_concurrency());
}

CallWindow::CallWindow(const CallWindowOptions& options, std::function<void()> on_held)
    : options_(options), on_held_(std::move(on_held)), max_calls_(options.max_calls) {}

bool CallWindow::MayReceive(int socket, absl::Time now) {
  if (room() > 0) return true;
  absl::MutexLock lock(&mutex_);
  ForgetThoseThatWait(now);
  if (room() > 0) return true;
  if (std::find(held_.begin(), held_.end(), socket) == held_.end()) held_.push_back(socket);
  if (!any_held_.exchange(true) && on_held_) on_held_();
  return false;
}

void CallWindow::Received(uint64_t calls, absl::Time now) {
  if (calls == 0) return;
  received_ += calls;
  absl::MutexLock lock(&mutex_);
  ForgetThoseThatWait(now);
  if (calls_.empty() || now - calls_.back().since > options_.patience / kAges) {
    calls_.push_back({.since = now, .count = 0});
  }
  calls_.back().count += calls;
  count_ += calls;
}

void CallWindow::Answered(uint64_t calls, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ForgetThoseThatWait(now);
  while (calls > 0 && !calls_.empty()) {
    Calls& oldest = calls_.front();
    const uint64_t answered = std::min(calls, oldest.count);
    calls -= answered;
    oldest.count -= answered;
    count_ -= answered;
    if (oldest.count == 0) calls_.pop_front();
  }
}

std::optional<int> CallWindow::NextToRead(absl::Time now) {
  if (!any_held_) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  ForgetThoseThatWait(now);
  if (held_.empty() || count_ > max_calls_ / 2) return std::nullopt;
  const int next = held_.front();
  held_.pop_front();
  any_held_ = !held_.empty();
  return next;
}

void CallWindow::ForgetThoseThatWait(absl::Time now) {
  while (!calls_.empty() && now - calls_.front().since > options_.patience) {
    count_ -= calls_.front().count;
    calls_.pop_front();
  }
}

}  // namespace gpumemd
