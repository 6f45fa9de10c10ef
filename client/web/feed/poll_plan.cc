// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/poll_plan.h"

#include <algorithm>

namespace gpumem::web {

void PollPlan::Done(absl::Time begin, absl::Time end, bool ok) {
  ok_ = ok;
  polled_ = end;
  const absl::Duration rest = std::max(kRest * (end - begin), absl::ZeroDuration());
  if (ok) {
    pause_ = kLeastPause;
    rested_ = end + rest;
    next_ = std::max(begin + interval_, rested_);
    soon_ = std::max(begin + interval_ / 4, rested_);
    return;
  }
  rested_ = end + std::clamp(rest, kLeastPause, kFailureHolds);
  next_ = std::max(end + pause_, rested_);
  soon_ = rested_;
  pause_ = std::min(pause_ * 2, kMostPause);
}

void PollPlan::Hasten() { next_ = std::min(next_, soon_); }

void PollPlan::Forget() {
  ok_ = false;
  polled_ = rested_ = next_ = soon_ = absl::InfinitePast();
}

bool PollPlan::IsDueForRequest(absl::Duration age, absl::Time now) const {
  if (IsSetBack(now)) return true;
  return now >= rested_ && (!ok_ || polled_ + age < now);
}

}  // namespace gpumem::web
