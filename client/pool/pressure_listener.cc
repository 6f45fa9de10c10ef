#include "client/pool/pressure_listener.h"

#include <utility>

#include "absl/time/clock.h"

namespace gpumem::internal {

void PressureListener::Enable(std::function<void(const Pressure&)> give) {
  absl::MutexLock lock(&mutex_);
  give_ = std::move(give);
}

void PressureListener::Disable() {
  std::unique_ptr<Watch> watch;
  {
    absl::MutexLock lock(&mutex_);
    give_ = nullptr;
    watch = std::move(watch_);
  }
}

void PressureListener::Listen() {
  std::unique_ptr<Watch> old;  // ends without the lock
  absl::MutexLock lock(&mutex_);
  if (give_ == nullptr || (watch_ != nullptr && !*ended_)) return;
  const absl::Time now = absl::Now();
  if (now < tried_ + absl::Seconds(1) && now > tried_) return;
  tried_ = now;
  old = std::move(watch_);
  ended_ = std::make_shared<std::atomic<bool>>(false);
  absl::StatusOr<std::unique_ptr<Watch>> watch =
      client_->StartWatch({.segments_lost = nullptr,
                           .draining = nullptr,
                           .pressure = give_,
                           .ended = [ended = ended_](const absl::Status&) { *ended = true; }});
  // A pool works without: it only does not hear.
  if (watch.ok()) watch_ = *std::move(watch);
}

}  // namespace gpumem::internal
