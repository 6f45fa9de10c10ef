// SPDX-License-Identifier: Apache-2.0
// An operator asks a session to suspend, resume, demote or promote its leases, or suspends or
// resumes a publication that no session uses.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/admission/request_checks.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/denial.h"
#include "daemon/core/suspension/suspension_requests.h"

namespace gpumemd {
namespace {

// How often a wait looks whether the operator has gone, or whether there is room.
constexpr absl::Duration kLook = absl::Milliseconds(200);

using Action = SuspensionRequests::Action;

absl::string_view WhatIsMissing(Action action) {
  switch (action) {
    case Action::kSuspend:
      return "can be suspended; only firm leases of kind vmm on memory of its own tenant can, and "
             "only if the tenant's releases are trusted";
    case Action::kResume:
      return "is suspended";
    case Action::kDemote:
      return "can be demoted; only firm leases of kind vmm on memory of its own tenant can that no "
             "other lease or publication shares, that is not scratch memory or suspended, and only "
             "if the tenant's releases are trusted";
    case Action::kPromote:
      return "is demoted";
  }
  return "";
}

absl::Status NothingToDo(SessionId session, Action action, absl::string_view tag) {
  const std::string tagged = tag.empty() ? "" : absl::StrCat("with tag ", tag, " ");
  return absl::FailedPreconditionError(absl::StrCat("session ", ToInt(session), " has no lease ",
                                                    tagged, "that ", WhatIsMissing(action)));
}

absl::string_view Participle(Action action) {
  return action == Action::kSuspend  ? "suspended"
         : action == Action::kResume ? "resumed"
         : action == Action::kDemote ? "demoted"
                                     : "promoted";
}

}  // namespace

absl::StatusOr<BrokerOperators::Moved> BrokerOperators::MoveSession(
    SessionId session, Action action, absl::string_view tag, absl::Time deadline,
    absl::FunctionRef<bool()> cancelled) {
  if (absl::Status right = CheckTag(tag); !right.ok()) return right;
  SuspensionRequests::Due due;
  for (std::optional<LeaseId> next = LeaseId{}; next.has_value();) {
    TimedLock lock(&broker_.mutex_);
    const SuspensionRequests& requests = broker_.ledger_.suspension_requests();
    if (absl::Status possible = requests.Check(session, action); !possible.ok()) return possible;
    next = requests.Collect(session, action, *next, Broker::kListedAtOnce, due, tag);
  }
  if (due.leases.empty() && due.done == 0) return NothingToDo(session, action, tag);
  SuspensionRequests::Request asked{.action = action, .until = deadline};
  Moved moved;
  {
    Broker::Update update(&broker_);
    absl::StatusOr<uint64_t> begun =
        broker_.ledger_.suspension_requests().Begin(session, action, deadline, tag);
    if (!begun.ok()) return begun.status();
    asked.number = *begun;
    moved.tenant = broker_.ledger_.state().sessions.at(session)->tenant->name;
    if (!due.leases.empty() && broker_.observer_ != nullptr) {
      broker_.observer_->SuspensionRequested(session);
    }
  }
  const absl::Cleanup end = [&] {
    Broker::Update update(&broker_);
    broker_.ledger_.suspension_requests().End(session, asked.number);
  };
  absl::Status done = AwaitMoved(session, due.leases, asked, cancelled);
  if (!done.ok()) return done;
  SuspensionRequests::Moved sums;
  for (absl::Span<const LeaseId> left(due.leases); !left.empty();
       left.remove_prefix(std::min(left.size(), Broker::kListedAtOnce))) {
    TimedLock lock(&broker_.mutex_);
    broker_.ledger_.suspension_requests().Add(left.subspan(0, Broker::kListedAtOnce), action, sums);
  }
  moved.leases = sums.leases;
  moved.segments = sums.segments.size();
  moved.bytes = sums.bytes;
  moved.resident_bytes = sums.resident_bytes;
  moved.dropped_bytes = sums.dropped_bytes;
  return moved;
}

absl::Status BrokerOperators::AwaitMoved(SessionId session, absl::Span<const LeaseId> leases,
                                         const SuspensionRequests::Request& asked,
                                         absl::FunctionRef<bool()> cancelled) const {
  absl::Span<const LeaseId> left = leases;
  bool ended = false;
  // Each release of the mutex asks again. Continues with the first lease that is left, and looks at
  // a bounded number of them.
  const auto moves = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(broker_.mutex_) {
    const SuspensionRequests& requests = broker_.ledger_.suspension_requests();
    const SuspensionRequests::Request* const present = requests.Find(session);
    ended = present == nullptr || present->number != asked.number;
    for (size_t looked = 0; !ended && !left.empty() && looked < Broker::kListedAtOnce; ++looked) {
      if (!requests.IsDone(left.front(), asked.action)) return false;
      left.remove_prefix(1);
    }
    return true;
  };
  while (!left.empty()) {
    {
      TimedLock lock(&broker_.mutex_);
      broker_.mutex_.AwaitWithDeadline(absl::Condition(&moves),
                                       std::min(asked.until, broker_.now_() + kLook));
    }
    if (ended) {
      return absl::AbortedError(
          absl::StrCat("session ", ToInt(session),
                       " has ended meanwhile, or a later request has replaced this one"));
    }
    if (left.empty()) break;
    if (cancelled()) return absl::CancelledError("the operator does not wait any more");
    if (broker_.now_() >= asked.until) return NotInTime(session, left, asked.action);
  }
  return absl::OkStatus();
}

absl::Status BrokerOperators::NotInTime(SessionId session, absl::Span<const LeaseId> leases,
                                        Action action) const {
  size_t left = 0;
  for (absl::Span<const LeaseId> unseen = leases; !unseen.empty();
       unseen.remove_prefix(std::min(unseen.size(), Broker::kListedAtOnce))) {
    TimedLock lock(&broker_.mutex_);
    for (LeaseId lease : unseen.subspan(0, Broker::kListedAtOnce)) {
      if (!broker_.ledger_.suspension_requests().IsDone(lease, action)) ++left;
    }
  }
  return absl::DeadlineExceededError(absl::StrCat("session ", ToInt(session), " has not ",
                                                  Participle(action),
                                                  " all its leases in time: ", left, " left"));
}

// --- Publications

absl::StatusOr<PublicationId> BrokerSuspensions::Find(absl::string_view name,
                                                      PublicationMoved& moved) const {
  absl::StatusOr<Publications::Name> parsed = Publications::ParseName(name, "");
  if (!parsed.ok()) return parsed.status();
  const LedgerState& state = broker_.ledger_.state();
  auto found = state.by_name.find(*parsed);
  if (found == state.by_name.end()) return NoSuchPublication(parsed->first, parsed->second);
  moved.tenant = parsed->first;
  moved.version = state.publications.at(found->second).version;
  return found->second;
}

absl::Status BrokerSuspensions::SuspendPublication(absl::string_view name,
                                                   PublicationMoved& moved) {
  std::vector<Move> moves;
  {
    Broker::Update update(&broker_);
    absl::StatusOr<PublicationId> id = Find(name, moved);
    if (!id.ok()) return id.status();
    auto begun = broker_.ledger_.suspensions().BeginPublication(*id);
    if (!begun.ok()) return begun.status();
    moves = *std::move(begun);
  }
  const std::vector<SegmentId> left = LeftBy(moves);
  const bool has_moves = !moves.empty();
  if (absl::Status copied = Carry(moves); !copied.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the publication stays as it was: its memory could not be copied to the host "
                     "tier: ",
                     copied.message()));
  }
  if (has_moves && moves.empty()) {
    return absl::NotFoundError(
        absl::StrCat("publication ", name, " has ended while it was copied"));
  }
  for (const Move& move : moves) {
    moved.bytes += move.bytes;
    ++moved.segments;
  }
  if (!AwaitFree(left, broker_.now_() + Broker::kDisposalWait)) {
    return absl::DeadlineExceededError(
        "the memory is in the host tier, and the driver has not yet taken that of the device back");
  }
  return absl::OkStatus();
}

absl::Status BrokerSuspensions::ResumePublication(absl::string_view name, absl::Time deadline,
                                                  absl::FunctionRef<bool()> cancelled,
                                                  PublicationMoved& moved) {
  std::optional<PublicationId> id;
  while (true) {
    absl::StatusOr<Operation> operation;
    {
      Broker::Update update(&broker_);
      if (!id) {
        absl::StatusOr<PublicationId> found = Find(name, moved);
        if (!found.ok()) return found.status();
        id = *found;
      }
      operation = broker_.ledger_.admission().BeginResume(*id);
    }
    if (operation.ok()) {
      absl::StatusOr<uint64_t> bytes = BringBack(*operation);
      if (!bytes.ok()) return bytes.status();
      if (*bytes == 0) return absl::OkStatus();
      moved.bytes += *bytes;
      moved.segments += operation->items.size();
      continue;
    }
    TimedLock lock(&broker_.mutex_);
    const bool may_come = DenialOf(operation.status()).has_value() ||
                          (absl::IsUnavailable(operation.status()) &&
                           !broker_.ledger_.state().RefusesAcquire(/*resumes=*/true));
    if (!may_come || broker_.now_() >= deadline) return operation.status();
    if (cancelled()) return absl::CancelledError("the operator does not wait any more");
    broker_.mutex_.AwaitWithDeadline(absl::Condition(&broker_.stopping_),
                                     std::min(deadline, broker_.now_() + kLook));
  }
}

absl::StatusOr<uint64_t> BrokerSuspensions::BringBack(const Operation& operation) {
  bool refused = false;
  absl::Status made = broker_.Create(operation, &refused);
  if (made.ok()) made = broker_.CopyBack(operation);
  if (!made.ok()) {
    broker_.Abort(operation, /*handed_over=*/false);
    return made;
  }
  uint64_t bytes = 0;
  {
    TimedLock lock(&broker_.mutex_);
    for (const Operation::Item& item : operation.items) {
      bytes += broker_.ledger_.state().segments.at(item.segment)->charge.bytes();
    }
  }
  const auto none = [](const Handover&) { return absl::OkStatus(); };
  Broker::HandedOver handed = broker_.HandOver(operation, none, /*may_block=*/true);
  if (!handed.leases.ok()) return handed.leases.status();
  return bytes;
}

}  // namespace gpumemd
