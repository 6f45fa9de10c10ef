// SPDX-License-Identifier: Apache-2.0
#include "gpumem/suspend.h"

#include <memory>
#include <utility>
#include <vector>

#include "client/mapping/suspension.h"
#include "client/session/interrupt.h"
#include "client/session/watch.h"

namespace gpumem {
namespace {

// Brings the program's segments into the wanted state.
absl::Status Serve(const std::shared_ptr<internal::Session>& session,
                   const SuspensionHandlers& handlers, const internal::SuspensionRequest& request) {
  const bool resume = request.resume;
  std::vector<Segment*> segments = handlers.segments();
  std::erase_if(segments, [&request](const Segment* segment) {
    if (segment == nullptr || !segment->valid()) return false;
    const bool meant = request.tag.empty() || segment->tag() == request.tag;
    return !meant || segment->suspended() != request.resume;
  });
  if (segments.empty()) return absl::OkStatus();
  absl::StatusOr<internal::Suspension> suspension =
      internal::Suspension::Of(session, segments, /*suspended=*/resume);
  if (!suspension.ok()) return suspension.status();
  if (!resume) return suspension->Suspend({.quiesce = handlers.quiesce});
  const absl::Status status =
      suspension->Resume(request.left, std::nullopt, internal::Disturbance());
  if (status.ok() && handlers.resumed) handlers.resumed();
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
  return internal::StartWatch(session_, std::move(events),
                              [session = session_, handlers = std::move(handlers)](
                                  const internal::SuspensionRequest& request) {
                                const absl::Status status = Serve(session, handlers, request);
                                if (!status.ok() && handlers.failed) handlers.failed(status);
                              });
}

}  // namespace gpumem
