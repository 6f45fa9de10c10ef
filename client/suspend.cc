// SPDX-License-Identifier: Apache-2.0
#include "gpumem/suspend.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mapping/suspension.h"
#include "client/session/interrupt.h"
#include "client/session/watch.h"

namespace gpumem {
namespace {

// Brings the program's segments into the wanted state.
absl::Status Serve(const std::shared_ptr<internal::Session>& session,
                   const SuspensionHandlers& handlers, const internal::SuspensionAsked& asked) {
  const bool resume = asked.resume;
  const absl::Time until = absl::Now() + asked.left;
  std::vector<Segment*> segments = handlers.segments();
  // It may have waited for other threads of the program, and the asker for this no longer.
  if (absl::Now() >= until) return absl::OkStatus();
  std::erase_if(segments, [&asked](const Segment* segment) {
    if (segment == nullptr || !segment->valid()) return false;
    const bool meant = asked.tag.empty() || segment->tag() == asked.tag;
    return !meant || segment->suspended() != asked.resume;
  });
  if (segments.empty()) return absl::OkStatus();
  absl::StatusOr<internal::Suspension> suspension =
      internal::Suspension::Of(session, segments, /*suspended=*/resume);
  if (!suspension.ok()) return suspension.status();
  if (resume) {
    const absl::Duration left = std::max(until - absl::Now(), absl::ZeroDuration());
    absl::Status status = suspension->Resume(left, std::nullopt, internal::Disturbance());
    if (status.ok() && handlers.resumed) handlers.resumed();
    return status;
  }
  absl::Status status = suspension->Suspend({.quiesce = handlers.quiesce});
  if (status.ok() && handlers.suspended) handlers.suspended(asked.cause);
  return status;
}

}  // namespace

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

absl::StatusOr<std::unique_ptr<Watch>> Client::ServeSuspensions(SuspensionHandlers handlers) {
  if (!handlers.segments) {
    return absl::InvalidArgumentError("SuspensionHandlers::segments is not set");
  }
  WatchHandlers events;
  events.ended = handlers.ended;
  const std::optional<bool> swappable = handlers.swappable;
  const auto serve = [session = session_,
                      handlers = std::move(handlers)](const internal::SuspensionAsked& asked) {
    const absl::Status status = Serve(session, handlers, asked);
    if (!status.ok() && handlers.failed) handlers.failed(status);
  };
  return internal::StartWatch(session_, std::move(events),
                              {.serve = serve, .swappable = swappable});
}

void Client::ReportActivity() { session_->ReportActivity(); }

}  // namespace gpumem
