// SPDX-License-Identifier: Apache-2.0
#include "client/pool/pressure_listener.h"

#include <utility>

#include "absl/time/clock.h"

namespace gpumem::internal {

void PressureListener::Enable(std::function<void(const Pressure&)> give,
                              std::function<void(const Revocation&)> yield) {
  std::unique_ptr<Watch> watch;  // destroyed without the lock; ends the calls to earlier functions
  {
    absl::MutexLock lock(&mutex_);
    give_ = std::move(give);
    yield_ = std::move(yield);
    tried_ = absl::InfinitePast();
    watch = std::move(watch_);
  }
}

void PressureListener::Disable() { Enable(nullptr, nullptr); }

void PressureListener::Listen() {
  std::unique_ptr<Watch> old;  // destroyed without the lock
  absl::MutexLock lock(&mutex_);
  if ((give_ == nullptr && yield_ == nullptr) || (watch_ != nullptr && !*ended_)) return;
  const absl::Time now = absl::Now();
  if (now < tried_ + absl::Seconds(1) && now > tried_) return;
  tried_ = now;
  old = std::move(watch_);
  ended_ = std::make_shared<std::atomic<bool>>(false);
  absl::StatusOr<std::unique_ptr<Watch>> watch =
      client_->StartWatch({.segments_lost = nullptr,
                           .draining = nullptr,
                           .pressure = give_,
                           .revocation = yield_,
                           .quota_changed = nullptr,
                           .ended = [ended = ended_](const absl::Status&) { *ended = true; }});
  // A pool works without a watch: it only misses the events.
  if (watch.ok()) watch_ = *std::move(watch);
}

}  // namespace gpumem::internal
