// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/frame_budget.h"

#include <algorithm>
#include <utility>

namespace gpumemd {

FrameBudgetOptions FrameBudgetOptions::AfterFlood() const {
  FrameBudgetOptions less = *this;
  less.full_at_start /= 8;
  return less;
}

FrameBudget::FrameBudget(const FrameBudgetOptions& options)
    : control_per_call_(options.control_per_call),
      resets_(options.max_resets, options.resets_per_second, options.full_at_start),
      control_(options.max_control, options.control_per_second, options.full_at_start),
      begun_bytes_(options.max_begun_bytes, options.begun_bytes_per_second, options.full_at_start),
      closed_(options.max_closed, options.closed_per_second, options.full_at_start) {}

bool FrameBudget::Bucket::Take(double seconds, double income, double spent) {
  left = std::min(most, left + seconds * per_second);
  left = std::min(most, left + income - spent);
  return left >= 0;
}

FrameBudget::Decision FrameBudget::Charge(const FrameCounts& received, absl::Time now) {
  if (exhausted_) return Decision::kFlood;
  absl::MutexLock lock(&mutex_);
  const absl::Time last = std::exchange(charged_at_, now);
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - std::min(last, now)));
  const bool few_resets = resets_.Take(seconds, 0, static_cast<double>(received.resets));
  const bool few_control =
      control_.Take(seconds, control_per_call_ * static_cast<double>(received.calls),
                    static_cast<double>(received.control));
  const bool few_bytes = begun_bytes_.Take(seconds, static_cast<double>(received.ended_bytes),
                                           static_cast<double>(received.begun_bytes));
  const bool closes = !few_bytes || received.violations > 0;
  const bool few_closed = closed_.Take(seconds, 0, closes ? 1 : 0);
  if (!few_resets || !few_control || !few_closed) exhausted_ = true;
  if (exhausted_) return Decision::kFlood;
  return closes ? Decision::kClose : Decision::kServe;
}

void FrameBudget::Return(uint64_t begun_bytes) {
  absl::MutexLock lock(&mutex_);
  begun_bytes_.Take(0, static_cast<double>(begun_bytes), 0);
}

}  // namespace gpumemd
