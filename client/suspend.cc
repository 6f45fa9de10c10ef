// SPDX-License-Identifier: Apache-2.0
#include "gpumem/suspend.h"

#include "client/mapping/suspension.h"
#include "client/session/interrupt.h"

namespace gpumem {

absl::Status Client::Suspend(absl::Span<Segment* const> segments) {
  return Suspend(segments, SuspendOptions());
}

absl::Status Client::Suspend(absl::Span<Segment* const> segments, const SuspendOptions& options) {
  absl::StatusOr<internal::Suspension> suspension =
      internal::Suspension::Of(session_, segments, /*suspended=*/false);
  if (!suspension.ok()) return suspension.status();
  return suspension->Suspend(options);
}

absl::Status Client::Resume(absl::Span<Segment* const> segments) {
  return Resume(segments, ResumeOptions());
}

absl::Status Client::Resume(absl::Span<Segment* const> segments, const ResumeOptions& options) {
  if (options.wait < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("ResumeOptions::wait is below zero");
  }
  absl::StatusOr<internal::Suspension> suspension =
      internal::Suspension::Of(session_, segments, /*suspended=*/true);
  if (!suspension.ok()) return suspension.status();
  internal::Disturbance disturbance;
  if (options.cancel.has_value()) disturbance.interrupt = options.cancel->interrupt_;
  return suspension->Resume(options.wait, options.timeout, disturbance);
}

}  // namespace gpumem
