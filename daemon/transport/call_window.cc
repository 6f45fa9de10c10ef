#include "daemon/transport/call_window.h"

#include <algorithm>

namespace gpumemd {
namespace {

// Calls that came within so large a part of the patience are of one age.
constexpr int kAges = 8;

}  // namespace

CallWindow::CallWindow(const CallWindowOptions& options) : options_(options) {}

bool CallWindow::MayReceive(int socket, absl::Time now) {
  if (!full()) return true;
  absl::MutexLock lock(&mutex_);
  ForgetThoseThatWait(now);
  if (!full()) return true;
  held_.insert(socket);
  return false;
}

void CallWindow::Received(uint64_t calls, absl::Time now) {
  if (calls == 0) return;
  absl::MutexLock lock(&mutex_);
  if (calls_.empty() || now - calls_.back().since > options_.patience / kAges) {
    calls_.push_back({.since = now, .count = 0});
  }
  calls_.back().count += calls;
  count_ += calls;
  ForgetThoseThatWait(now);
}

std::vector<int> CallWindow::Answered(uint64_t calls, absl::Time now) {
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
  full_.store(count_ >= options_.max_calls, std::memory_order_release);
  if (held_.empty() || count_ > options_.max_calls / 2) return {};
  const std::vector<int> freed(held_.begin(), held_.end());
  held_.clear();
  return freed;
}

void CallWindow::ForgetThoseThatWait(absl::Time now) {
  while (!calls_.empty() && now - calls_.front().since > options_.patience) {
    count_ -= calls_.front().count;
    calls_.pop_front();
  }
  full_.store(count_ >= options_.max_calls, std::memory_order_release);
}

}  // namespace gpumemd
