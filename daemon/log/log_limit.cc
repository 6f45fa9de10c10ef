// SPDX-License-Identifier: Apache-2.0
#include "daemon/log/log_limit.h"

#include <algorithm>
#include <utility>

namespace gpumemd {

bool LogLimiter::Holds(const Window& window, absl::Time now) const {
  // A window that begins in the future was begun before the clock was set back.
  return window.begin <= now && now < window.begin + options_.window;
}

void LogLimiter::Renew(Window& window, absl::Time now) const {
  if (Holds(window, now)) return;
  if (window.suppressed > 0) {
    if (window.untold == 0) window.untold_since = window.begin;
    window.untold += std::exchange(window.suppressed, 0);
  }
  window.passed = 0;
  window.begin = now;
}

bool LogLimiter::Admit(absl::string_view kind, std::optional<uid_t> uid) {
  const absl::Time now = options_.now();
  absl::MutexLock lock(&mutex_);
  auto found = kinds_.find(kind);
  if (found == kinds_.end()) found = kinds_.emplace(kind, Kind()).first;
  Kind& of_kind = found->second;
  Window* window = &of_kind.others;
  if (uid) {
    auto source = of_kind.by_uid.find(*uid);
    if (source == of_kind.by_uid.end() && sources_ < options_.max_sources) {
      source = of_kind.by_uid.emplace(*uid, Window{.begin = now}).first;
      ++sources_;
    }
    if (source != of_kind.by_uid.end()) window = &source->second;
  }
  Renew(*window, now);
  Renew(of_kind.all, now);
  next_end_ =
      std::min({next_end_, window->begin + options_.window, of_kind.all.begin + options_.window});
  if (window->passed < options_.per_source && of_kind.all.passed < options_.per_kind) {
    ++window->passed;
    ++of_kind.all.passed;
    return true;
  }
  ++window->suppressed;
  ++suppressed_;
  return false;
}

std::vector<LogLimiter::Suppressed> LogLimiter::TakeEnded() {
  const absl::Time now = options_.now();
  std::vector<Suppressed> ended;
  absl::MutexLock lock(&mutex_);
  // Also if the clock was set back: then windows begin in the future.
  if (now < next_end_ && next_end_ <= now + options_.window) return ended;
  next_end_ = absl::InfiniteFuture();
  // Reports suppressed lines; true if the window has ended.
  const auto end = [&](const std::string& kind, std::optional<uid_t> uid, Window& window) {
    const bool holds = Holds(window, now);
    if (holds) next_end_ = std::min(next_end_, window.begin + options_.window);
    const absl::Time since = window.untold > 0 ? window.untold_since : window.begin;
    const absl::Time until = holds ? window.begin : now;
    const uint64_t lines =
        std::exchange(window.untold, 0) + (holds ? 0 : std::exchange(window.suppressed, 0));
    if (lines > 0) {
      ended.push_back({.kind = kind,
                       .uid = uid,
                       .lines = lines,
                       .over = std::max(until - since, absl::ZeroDuration())});
    }
    return !holds;
  };
  for (auto kind = kinds_.begin(); kind != kinds_.end();) {
    Kind& of_kind = kind->second;
    for (auto source = of_kind.by_uid.begin(); source != of_kind.by_uid.end();) {
      if (!end(kind->first, source->first, source->second)) {
        ++source;
        continue;
      }
      source = of_kind.by_uid.erase(source);
      --sources_;
    }
    const bool others_ended = end(kind->first, std::nullopt, of_kind.others);
    const bool all_ended = end(kind->first, std::nullopt, of_kind.all);
    if (others_ended && all_ended && of_kind.by_uid.empty()) {
      kind = kinds_.erase(kind);
    } else {
      ++kind;
    }
  }
  return ended;
}

absl::Time LogLimiter::NextEnd() const {
  absl::MutexLock lock(&mutex_);
  return next_end_;
}

uint64_t LogLimiter::suppressed() const {
  absl::MutexLock lock(&mutex_);
  return suppressed_;
}

size_t LogLimiter::sources() const {
  absl::MutexLock lock(&mutex_);
  return sources_;
}

}  // namespace gpumemd
