// SPDX-License-Identifier: Apache-2.0
#include "gpumem/demote.h"

#include <memory>

#include "client/mapping/demotion.h"
#include "client/session/interrupt.h"

namespace gpumem {
namespace {

using internal::Demotion;

absl::Status Check(const DemoteOptions& options) {
  if ((options.pause == nullptr) != (options.proceed == nullptr)) {
    return absl::InvalidArgumentError(
        "DemoteOptions: one of `pause` and `proceed` is set, and the other is not");
  }
  if (options.longest_pause <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("DemoteOptions::longest_pause is not above zero");
  }
  if (options.wait < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("DemoteOptions::wait is below zero");
  }
  return absl::OkStatus();
}

absl::Status Run(const std::shared_ptr<internal::Session>& session,
                 absl::Span<Segment* const> segments, Demotion::Direction direction,
                 const DemoteOptions& options, const internal::Disturbance& disturbance) {
  if (absl::Status status = Check(options); !status.ok()) return status;
  absl::StatusOr<Demotion> demotion = Demotion::Of(session, segments, direction);
  if (!demotion.ok()) return demotion.status();
  return demotion->Run(options, disturbance);
}

}  // namespace

absl::Status Client::Demote(absl::Span<Segment* const> segments) {
  return Demote(segments, DemoteOptions());
}

absl::Status Client::Demote(absl::Span<Segment* const> segments, const DemoteOptions& options) {
  internal::Disturbance disturbance;
  if (options.cancel.has_value()) disturbance.interrupt = options.cancel->interrupt_;
  return Run(session_, segments, Demotion::Direction::kDemote, options, disturbance);
}

absl::Status Client::Promote(absl::Span<Segment* const> segments) {
  return Promote(segments, DemoteOptions());
}

absl::Status Client::Promote(absl::Span<Segment* const> segments, const DemoteOptions& options) {
  internal::Disturbance disturbance;
  if (options.cancel.has_value()) disturbance.interrupt = options.cancel->interrupt_;
  return Run(session_, segments, Demotion::Direction::kPromote, options, disturbance);
}

}  // namespace gpumem
