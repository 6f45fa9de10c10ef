// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/leases.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/leases.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/steps/course.h"
#include "daemon/core/ledger/testing/steps/requests.h"

namespace gpumemd::steps {
namespace {

// Makes the memory of fresh segments.
void Make(Course& course, const Operation& operation) {
  for (const Operation::Item& item : operation.items) {
    if (!item.fresh) continue;
    course.ledger.operations().Created(item.segment);
    model::Created(course.model, item.segment);
  }
}

absl::Status CommitInParts(Course& course, const Operation& operation) {
  size_t next = 0;
  while (true) {
    const absl::StatusOr<bool> done =
        course.ledger.operations().Commit(operation, next, 1 + course.chance.Below(6));
    if (!done.ok() || *done) return done.status();
    course.Cover("a commit in parts");
    if (absl::Status sound = course.ledger.CheckInvariants(); !sound.ok()) return sound;
  }
}

}  // namespace

absl::Status Finish(Course& course, const Operation operation, uint64_t fate) {
  for (const Operation::Item& item : operation.items) {
    const LeaseView view = course.ledger.look().Describe(item);
    if (view.lease != item.lease || view.segment != item.segment ||
        view.tenant != model::OwnerOf(course.model, item.segment) || view.reused != item.reused) {
      return absl::InternalError("an item is described wrongly");
    }
  }
  if (fate < 78) {
    Make(course, operation);
    absl::Status answer = CommitInParts(course, operation);
    if (absl::IsInternal(answer)) return answer;
    if (absl::IsAborted(answer)) course.Cover("committed too late");
    return course.After(model::Commit(course.model, operation.id, answer), "Commit ",
                        ToInt(operation.id), " of ", ToInt(operation.session), " -> ",
                        course.Describe(answer));
  }
  const bool handed_over = fate < 83;
  for (const Operation::Item& item : operation.items) {
    if (!item.fresh || course.chance.In100(10)) continue;
    course.ledger.operations().Created(item.segment);
    model::Created(course.model, item.segment);
  }
  size_t next = 0;
  while (
      !course.ledger.operations().Abort(operation, handed_over, next, 1 + course.chance.Below(6))) {
    if (absl::Status sound = course.ledger.CheckInvariants(); !sound.ok()) return sound;
  }
  model::Abort(course.model, operation.id, handed_over);
  for (const Operation::Item& item : operation.items) {
    if (item.fresh && !handed_over &&
        model::StateOf(course.model, item.segment) == SegmentState::kLingering) {
      course.Cover("made in an open pool, and not handed over");
    }
  }
  return course.After(absl::OkStatus(), "Abort ", ToInt(operation.id), " of ",
                      ToInt(operation.session), handed_over ? " after handing over" : "");
}

absl::Status FinishOperation(Course& course) {
  if (course.model.operations.empty()) return absl::OkStatus();
  const Operation& operation = course.chance.Of(course.model.operations).second;
  // Abort before a hand-over is the rarest case for pools: make it likelier.
  return Finish(course, operation,
                course.chance.Below(100) + (operation.kind == Kind::kMempool ? 15 : 0));
}

absl::Status MakeSome(Course& course) {
  if (course.model.operations.empty()) return absl::OkStatus();
  const Operation& operation = course.chance.Of(course.model.operations).second;
  Make(course, operation);
  return course.After(absl::OkStatus(), "Created ", ToInt(operation.id));
}

absl::Status BeginOpen(Course& course) {
  const SessionId session = course.AnySession();
  std::vector<Secret> tickets;
  bool foreign = false;
  const uint64_t count = course.chance.In100(3) ? 0 : 1 + course.chance.Below(3);
  for (const auto& [id, lease] : course.model.leases) {
    for (const auto& ticket : lease.tickets) {
      if (!ticket || tickets.size() == count || course.chance.In100(50)) continue;
      tickets.push_back(*ticket);
      if (course.chance.In100(10)) tickets.push_back(*ticket);
      auto it = course.model.sessions.find(session);
      foreign = foreign || (it != course.model.sessions.end() &&
                            it->second.tenant != model::OwnerOf(course.model, lease.segment));
    }
  }
  if (course.chance.In100(3)) tickets.push_back(course.chance.NewSecret());
  if (!course.old_tickets.empty() && course.chance.In100(3)) {
    tickets.push_back(course.chance.Of(course.old_tickets));
  }
  if (tickets.empty() && course.chance.In100(95)) return Share(course);
  if (course.chance.In100(1)) tickets.resize(kMaxSegmentsPerCall + course.chance.Below(2));
  const bool revocable =
      course.chance.In100(85) ? IsRevocableSession(course, session) : course.chance.In100(50);
  const uint64_t request = NewRequest(course);
  const auto answer = course.ledger.operations().BeginOpen(session, tickets, revocable, request);
  if (answer.ok() && foreign) course.Cover("opened across tenants");
  if (answer.ok() && model::IsRevocable(course.model, answer->items[0].segment)) {
    course.Cover("opened as revocable");
  }
  return course.After(model::BeginOpen(course.model, session, tickets, revocable, request, answer),
                      "BeginOpen ", ToInt(session), " ", tickets.size(), " tickets -> ",
                      course.Describe(answer.status()));
}

absl::Status Release(Course& course) {
  const SessionId session = course.AnyHolder();
  std::vector<LeaseId> leases;
  for (uint64_t i = 1 + course.chance.Below(3); i > 0; --i) {
    leases.push_back(course.AnyLeaseOf(session));
  }
  if (course.chance.In100(10)) leases.push_back(leases.front());
  return Release(course, session, leases);
}

absl::Status Release(Course& course, SessionId session, const std::vector<LeaseId>& leases) {
  for (LeaseId id : leases) {
    auto it = course.model.leases.find(id);
    if (it == course.model.leases.end()) continue;
    for (const auto& ticket : it->second.tickets) {
      if (ticket && course.old_tickets.size() < 100) course.old_tickets.push_back(*ticket);
    }
  }
  const absl::Status answer = course.ledger.leases().Release(session, leases);
  return course.After(
      model::Release(course.model, session, leases, answer), "Release ", ToInt(session), " [",
      absl::StrJoin(leases, " ",
                    [](std::string* out, LeaseId id) { absl::StrAppend(out, ToInt(id)); }),
      "] -> ", course.Describe(answer));
}

namespace {

// Lets some session acquire memory with which it can exchange a lease, as a client does.
absl::Status AcquireCounterpart(Course& course) {
  std::vector<LeaseId> candidates;
  for (const auto& [id, lease] : course.model.leases) {
    const model::Segment& segment = course.model.segments.at(lease.segment);
    if (segment.revocable && course.chance.In100(90)) continue;
    if (segment.kind == Kind::kVmm || segment.kind == Kind::kHost) candidates.push_back(id);
  }
  if (candidates.empty()) return absl::OkStatus();
  const model::Lease& lease = course.model.leases.at(course.chance.Of(candidates));
  const model::Segment& segment = course.model.segments.at(lease.segment);
  absl::Status asked = Acquire(course, lease.session,
                               {.bytes = segment.bytes,
                                .kind = segment.kind == Kind::kVmm ? Kind::kHost : Kind::kVmm,
                                .revocable = IsRevocableSession(course, lease.session)});
  if (!asked.ok() || !course.admission.operation) return asked;
  return Finish(course, *course.admission.operation, kCommits);
}

}  // namespace

absl::Status Exchange(Course& course) {
  if (absl::Status status = AcquireCounterpart(course); !status.ok()) return status;
  // Leases that fit, of any session.
  std::vector<std::pair<LeaseId, LeaseId>> fit;
  for (const auto& [id, lease] : course.model.leases) {
    const model::Segment& segment = course.model.segments.at(lease.segment);
    for (const auto& [other_id, other] : course.model.leases) {
      const model::Segment& other_segment = course.model.segments.at(other.segment);
      const bool kinds = (segment.kind == Kind::kVmm && other_segment.kind == Kind::kHost) ||
                         (segment.kind == Kind::kHost && other_segment.kind == Kind::kVmm);
      if (kinds && other.session == lease.session && segment.bytes == other_segment.bytes) {
        fit.emplace_back(id, other_id);
      }
    }
  }
  const SessionId session = fit.empty() || course.chance.In100(5)
                                ? course.AnyHolder()
                                : course.model.leases.at(course.chance.Of(fit).first).session;
  std::vector<Exchanges::Pair> pairs;
  const auto segment_of = [&](LeaseId id) {
    auto lease = course.model.leases.find(id);
    const bool wrong = lease == course.model.leases.end() || course.chance.In100(2);
    return wrong ? SegmentId{1} : lease->second.segment;
  };
  const auto add = [&](LeaseId lease, LeaseId other) {
    pairs.push_back({lease, other, segment_of(lease), segment_of(other)});
  };
  std::set<LeaseId> named;
  for (const auto& [lease, other] : fit) {
    const bool taken = named.contains(lease) || named.contains(other);
    if (course.model.leases.at(lease).session != session || course.chance.In100(50)) continue;
    if (taken && course.chance.In100(95)) continue;
    add(lease, other);
    named.insert({lease, other});
  }
  if (course.chance.In100(10)) add(course.AnyLeaseOf(session), course.AnyLeaseOf(session));
  const bool check_only = course.chance.In100(20);
  const absl::Status answer = course.ledger.exchanges().Exchange(session, pairs, check_only);
  absl::Status result = model::Exchange(course.model, session, pairs, check_only, answer);
  if (answer.ok() && !check_only && !pairs.empty()) {
    const bool demoted =
        !course.model.segments.at(course.model.leases.at(pairs[0].lease).segment).home.empty();
    course.Cover(demoted ? "demoted" : "promoted");
    if (result.ok() && course.chance.In100(20)) {  // the answer was lost
      result = model::Exchange(course.model, session, pairs, false,
                               course.ledger.exchanges().Exchange(session, pairs, false));
    }
  }
  return course.After(result, "Exchange ", ToInt(session), " ", pairs.size(), " pairs -> ",
                      course.Describe(answer));
}

absl::Status Share(Course& course) {
  const SessionId session = course.AnyHolder();
  const LeaseId lease = course.AnyLeaseOf(session);
  const auto scope = course.chance.In100(50) ? TicketScope::kTenant : TicketScope::kAny;
  const Secret candidate = course.chance.NewSecret();
  const auto answer = course.ledger.leases().Share(session, lease, scope, candidate);
  if (answer.ok() && *answer != candidate) course.Cover("shared again");
  return course.After(model::Share(course.model, session, lease, scope, candidate, answer),
                      "Share ", ToInt(session), " lease ", ToInt(lease), " -> ",
                      course.Describe(answer.status()));
}

}  // namespace gpumemd::steps
