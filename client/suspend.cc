// SPDX-License-Identifier: Apache-2.0
#include "gpumem/suspend.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mapping/demotion.h"
#include "client/mapping/suspension.h"
#include "client/session/interrupt.h"
#include "client/session/watch.h"
#include "gpumem/demote.h"

namespace gpumem {
namespace {

using internal::Demotion;
using internal::SuspensionAction;

// Leaves out those that `applies` is false for, and those with another tag than the one asked for.
std::vector<Segment*> Select(std::vector<Segment*> segments, absl::string_view tag,
                             absl::FunctionRef<bool(const Segment&)> applies) {
  std::erase_if(segments, [&](const Segment* segment) {
    if (segment == nullptr || !segment->valid()) return false;
    return !(tag.empty() || segment->tag() == tag) || !applies(*segment);
  });
  return segments;
}

// Brings the program's segments into the wanted memory.
absl::Status ServeDemotion(const std::shared_ptr<internal::Session>& session,
                           const SuspensionHandlers& handlers,
                           const internal::SuspensionAsked& asked) {
  const absl::Time until = absl::Now() + asked.left;
  const bool demotes = asked.action == SuspensionAction::kDemote;
  const std::vector<Segment*> segments =
      Select(handlers.demotable ? handlers.demotable() : handlers.segments(), asked.tag,
             [demotes](const Segment& segment) {
               if (!demotes) return segment.demoted();
               return segment.kind() == Kind::kVmm && !segment.suspended() && !segment.scratch() &&
                      !segment.revocable();
             });
  if (segments.empty()) return absl::OkStatus();
  // The handler may have waited for other threads, and the asker for this no longer.
  const absl::Duration left = until - absl::Now();
  if (left <= absl::ZeroDuration()) return absl::OkStatus();
  const auto direction = demotes ? Demotion::Direction::kDemote : Demotion::Direction::kPromote;
  absl::StatusOr<Demotion> demotion = Demotion::Of(session, segments, direction);
  if (!demotion.ok()) return demotion.status();
  const DemoteOptions options{.pause = handlers.pause, .proceed = handlers.proceed, .wait = left};
  return demotion->Run(options, internal::Disturbance());
}

// Brings the program's segments into the wanted state.
absl::Status Serve(const std::shared_ptr<internal::Session>& session,
                   const SuspensionHandlers& handlers, const internal::SuspensionAsked& asked) {
  const bool resume = asked.action == SuspensionAction::kResume;
  if (!resume && asked.action != SuspensionAction::kSuspend) {
    return ServeDemotion(session, handlers, asked);
  }
  const absl::Time until = absl::Now() + asked.left;
  const std::vector<Segment*> segments =
      Select(handlers.segments(), asked.tag, [resume](const Segment& segment) {
        return segment.suspended() == resume && !segment.demoted();
      });
  // It may have waited for other threads of the program, and the asker for this no longer.
  if (absl::Now() >= until) return absl::OkStatus();
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
  const bool demotes = handlers.pause != nullptr && handlers.proceed != nullptr;
  if (!demotes && (handlers.pause || handlers.proceed || handlers.demotable)) {
    return absl::InvalidArgumentError(
        "SuspensionHandlers: `pause` and `proceed` serve demotion, both together");
  }
  WatchHandlers events;
  events.ended = handlers.ended;
  const std::optional<bool> swappable = handlers.swappable;
  const auto serve = [session = session_,
                      handlers = std::move(handlers)](const internal::SuspensionAsked& asked) {
    const absl::Status status = Serve(session, handlers, asked);
    if (!status.ok() && handlers.failed) handlers.failed(status);
    if (handlers.done) handlers.done();
  };
  return internal::StartWatch(session_, std::move(events),
                              {.serve = serve, .swappable = swappable, .demotes = demotes});
}

void Client::ReportActivity() { session_->ReportActivity(); }

}  // namespace gpumem
