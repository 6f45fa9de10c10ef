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
#include "absl/types/span.h"
#include "client/mapping/demotion.h"
#include "client/mapping/suspension.h"
#include "client/session/interrupt.h"
#include "client/session/watch.h"
#include "gpumem/demote.h"
#include "gpumem/pool.h"

namespace gpumem {
namespace {

using internal::Demotion;
using internal::SuspensionAction;
using SharedSession = std::shared_ptr<internal::Session>;

// The memory that a request means and that is not in the wanted state.
struct Meant {
  std::vector<Segment*> segments;
  std::vector<Pool*> pools;
  bool empty() const { return segments.empty() && pools.empty(); }
};

// Leaves out those that `applies` is false for, and those with another tag than the one asked for.
std::vector<Segment*> Select(std::vector<Segment*> segments, absl::string_view tag,
                             absl::FunctionRef<bool(const Segment&)> applies) {
  std::erase_if(segments, [&](const Segment* segment) {
    if (segment == nullptr || !segment->valid()) return false;
    return !(tag.empty() || segment->tag() == tag) || !applies(*segment);
  });
  return segments;
}

Meant MemoryFor(const SuspensionHandlers& handlers, const internal::SuspensionAsked& asked,
                bool resume) {
  Meant meant;
  if (handlers.segments) {
    meant.segments = Select(handlers.segments(), asked.tag, [resume](const Segment& segment) {
      return segment.suspended() == resume && !segment.demoted();
    });
  }
  if (handlers.pools && asked.tag.empty()) meant.pools = handlers.pools();
  std::erase_if(meant.pools, [resume](const Pool* pool) {
    return pool != nullptr && pool->suspended() != resume;
  });
  return meant;
}

// Calls `move` for each pool, then `rest`. On an error calls `undo` for the pools that were moved.
template <typename Move, typename Rest, typename Undo>
absl::Status AllOrNone(absl::Span<Pool* const> pools, Move move, Rest rest, Undo undo) {
  if (std::find(pools.begin(), pools.end(), nullptr) != pools.end()) {
    return absl::InvalidArgumentError("SuspensionHandlers::pools has returned a null pointer");
  }
  absl::Status status;
  size_t moved = 0;
  while (status.ok() && moved < pools.size()) {
    status = move(*pools[moved]);
    if (status.ok()) ++moved;
  }
  if (status.ok()) status = rest();
  // A pool that does not return to its state says so (Pool::suspended).
  for (; !status.ok() && moved > 0; --moved) undo(*pools[moved - 1]).IgnoreError();
  return status;
}

absl::Status SuspendAll(const SharedSession& session, const Meant& meant,
                        const SuspensionHandlers& handlers) {
  SuspendOptions options = {.quiesce = handlers.quiesce};
  if (handlers.quiesce && !meant.pools.empty()) {
    if (absl::Status status = handlers.quiesce(); !status.ok()) return status;
    options.quiesce = [] { return absl::OkStatus(); };
  }
  const auto segments = [&]() -> absl::Status {
    if (meant.segments.empty()) return absl::OkStatus();
    absl::StatusOr<internal::Suspension> suspension =
        internal::Suspension::Of(session, meant.segments, /*suspended=*/false);
    return suspension.ok() ? suspension->Suspend(options) : suspension.status();
  };
  return AllOrNone(
      meant.pools, [&](Pool& pool) { return pool.Suspend(options); }, segments,
      [](Pool& pool) { return pool.Resume(); });
}

absl::Status ResumeAll(const SharedSession& session, const Meant& meant, absl::Time until) {
  const auto wait = [&] { return std::max(until - absl::Now(), absl::ZeroDuration()); };
  const auto segments = [&]() -> absl::Status {
    if (meant.segments.empty()) return absl::OkStatus();
    absl::StatusOr<internal::Suspension> suspension =
        internal::Suspension::Of(session, meant.segments, /*suspended=*/true);
    return suspension.ok() ? suspension->Resume(wait(), std::nullopt, internal::Disturbance())
                           : suspension.status();
  };
  // The program has not used the memory yet.
  const SuspendOptions again = {.quiesce = [] { return absl::OkStatus(); }};
  return AllOrNone(
      meant.pools, [&](Pool& pool) { return pool.Resume({.wait = wait()}); }, segments,
      [&](Pool& pool) { return pool.Suspend(again); });
}

std::vector<Segment*> OfferedForDemotion(const SuspensionHandlers& handlers) {
  if (handlers.demotable) return handlers.demotable();
  return handlers.segments ? handlers.segments() : std::vector<Segment*>();
}

// Brings the program's segments into the wanted memory.
absl::Status ServeDemotion(const SharedSession& session, const SuspensionHandlers& handlers,
                           const internal::SuspensionAsked& asked) {
  const absl::Time until = absl::Now() + asked.left;
  const bool demotes = asked.action == SuspensionAction::kDemote;
  const std::vector<Segment*> segments =
      Select(OfferedForDemotion(handlers), asked.tag, [demotes](const Segment& segment) {
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

// Brings the program's memory into the wanted state.
absl::Status Serve(const SharedSession& session, const SuspensionHandlers& handlers,
                   const internal::SuspensionAsked& asked) {
  const bool resume = asked.action == SuspensionAction::kResume;
  if (!resume && asked.action != SuspensionAction::kSuspend) {
    return ServeDemotion(session, handlers, asked);
  }
  const absl::Time until = absl::Now() + asked.left;
  const Meant meant = MemoryFor(handlers, asked, resume);
  // The program may have waited for its other threads, and the asker for this no longer.
  if (meant.empty() || absl::Now() >= until) return absl::OkStatus();
  if (resume) {
    absl::Status status = ResumeAll(session, meant, until);
    if (status.ok() && handlers.resumed) handlers.resumed();
    return status;
  }
  absl::Status status = SuspendAll(session, meant, handlers);
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
  if (!handlers.segments && !handlers.pools && !handlers.serve) {
    return absl::InvalidArgumentError(
        "SuspensionHandlers has none of `segments`, `pools` and `serve`");
  }
  const bool demotes = handlers.pause != nullptr && handlers.proceed != nullptr;
  if (!demotes && (handlers.pause || handlers.proceed || handlers.demotable)) {
    return absl::InvalidArgumentError(
        "SuspensionHandlers: `pause` and `proceed` serve demotion, both together");
  }
  if (demotes && handlers.serve) {
    return absl::InvalidArgumentError("SuspensionHandlers: `serve` serves no demotion");
  }
  WatchHandlers events;
  events.ended = handlers.ended;
  const std::optional<bool> swappable = handlers.swappable;
  const auto serve = [session = session_,
                      handlers = std::move(handlers)](const internal::SuspensionAsked& asked) {
    if (handlers.serve) {
      return handlers.serve({.resume = asked.action == SuspensionAction::kResume,
                             .tag = asked.tag,
                             .left = asked.left,
                             .cause = asked.cause});
    }
    const absl::Status status = Serve(session, handlers, asked);
    if (!status.ok() && handlers.failed) handlers.failed(status);
    if (handlers.done) handlers.done();
  };
  return internal::StartWatch(session_, std::move(events),
                              {.serve = serve, .swappable = swappable, .demotes = demotes});
}

void Client::ReportActivity() { session_->ReportActivity(); }

}  // namespace gpumem
