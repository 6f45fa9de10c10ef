// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/leases.h"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/publications.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

using absl::StatusCode;

absl::Status BeginOpen(LedgerModel& model, SessionId session_id, absl::Span<const Secret> tickets,
                       bool revocable, uint64_t request_id,
                       const absl::StatusOr<Operation>& answer) {
  if (model.draining) return ExpectCode(answer.status(), StatusCode::kUnavailable);
  if (!Live(model, session_id)) return ExpectCode(answer.status(), StatusCode::kAborted);
  if (tickets.empty() || tickets.size() > kMaxSegmentsPerCall) {
    return ExpectCode(answer.status(), StatusCode::kInvalidArgument);
  }
  if (auto denied = NoRoomForLeases(model, session_id, tickets.size(), answer.status())) {
    return *denied;
  }
  const bool as_revocable =
      revocable || QuotaOf(model, model.sessions.at(session_id).tenant).revocable;
  std::vector<SegmentId> expected;
  for (const Secret& ticket : tickets) {
    const Lease* found = nullptr;
    size_t scope = 0;
    for (const auto& [id, lease] : model.leases) {
      for (size_t s : {0, 1}) {
        if (lease.tickets[s] == ticket) {
          found = &lease;
          scope = s;
        }
      }
    }
    if (found == nullptr || !Live(model, found->session)) {
      return ExpectCode(answer.status(), StatusCode::kNotFound);
    }
    if (scope == static_cast<size_t>(TicketScope::kTenant) &&
        model.segments.at(found->segment).tenant != model.sessions.at(session_id).tenant) {
      return ExpectCode(answer.status(), StatusCode::kPermissionDenied);
    }
    const Segment& segment = model.segments.at(found->segment);
    if (segment.lost || segment.revoking || (segment.revocable && !as_revocable)) {
      return ExpectCode(answer.status(), StatusCode::kFailedPrecondition);
    }
    expected.push_back(found->segment);
  }
  if (HoldsOtherLeaseType(model, session_id, as_revocable)) {
    return ExpectCode(answer.status(), StatusCode::kFailedPrecondition);
  }
  if (!answer.ok()) return Wrong("expected an opening, got ", answer.status().ToString());
  if (ToInt(answer->id) <= model.last_operation || answer->session != session_id ||
      answer->revocable != as_revocable || answer->request_id != request_id || answer->regrant ||
      answer->items.size() != expected.size()) {
    return Wrong("the operation is not what was asked for");
  }
  model.last_operation = ToInt(answer->id);
  for (size_t i = 0; i < expected.size(); ++i) {
    const Operation::Item& item = answer->items[i];
    if (item.segment != expected[i] || item.fresh || item.reused ||
        ToInt(item.lease) <= model.last_lease) {
      return Wrong("ticket ", i, " opened the wrong thing");
    }
    model.last_lease = ToInt(item.lease);
    model.mappings.push_back({session_id, item.segment, as_revocable});
    Segment& segment = model.segments.at(item.segment);
    if (segment.tenant != model.sessions.at(session_id).tenant) segment.shared_out = true;
    if (segment.kind == Kind::kMempool) model.imports.push_back({session_id, segment.device});
  }
  model.operations.emplace(answer->id, *answer);
  model.queue_changed = true;
  return absl::OkStatus();
}

absl::Status Commit(LedgerModel& model, OperationId id, const absl::Status& answer) {
  Operation& operation = model.operations.at(id);
  const bool live = Live(model, operation.session);
  while (!operation.items.empty()) {
    const Operation::Item item = operation.items.front();
    operation.items.erase(operation.items.begin());
    if (model.segments.at(item.segment).revocable)
      model.queue_changed = true;  // it can be revoked now
    const bool leased = live && !operation.regrant;
    if (leased) {
      model.leases[item.lease] = {.session = operation.session,
                                  .segment = item.segment,
                                  .publication = operation.publication,
                                  .request_id = operation.request_id};
    }
    if (leased && model.segments.at(item.segment).lost) model.orphaned.insert(operation.session);
    if (leased && model.segments.at(item.segment).revoking) model.revoked.insert(operation.session);
    SettleUnheld(model, item.segment);
  }
  model.operations.erase(id);
  Sweep(model);
  return ExpectCode(answer, live ? absl::StatusCode::kOk : absl::StatusCode::kAborted);
}

void Abort(LedgerModel& model, OperationId id, bool handed_over) {
  Operation& operation = model.operations.at(id);
  if (operation.regrant && Live(model, operation.session)) {
    std::vector<LeaseId> leases;
    for (const Operation::Item& item : operation.items) leases.push_back(item.lease);
    model.regrants.try_emplace({operation.session, operation.request_id}, leases);
  }
  for (const Operation::Item& item : operation.items) {
    if (handed_over || operation.regrant) break;
    if (MayMap(model, operation.session, item.segment)) {
      Unmap(model, operation.session, item.segment);
    }
    const Segment& segment = model.segments.at(item.segment);
    if (segment.kind == Kind::kMempool) {
      Unimport(model, operation.session, segment.device, /*all=*/false);
    }
  }
  while (!operation.items.empty()) {
    const Operation::Item item = operation.items.front();
    operation.items.erase(operation.items.begin());
    if (model.segments.at(item.segment).revocable)
      model.queue_changed = true;  // it can be revoked now
    const bool pool_has_it =
        model.segments.at(item.segment).made && !Importers(model, item.segment).empty();
    if (item.fresh && !handed_over && !pool_has_it) {
      GiveUp(model.segments.at(item.segment));
    } else {
      SettleUnheld(model, item.segment);
    }
  }
  model.operations.erase(id);
  Sweep(model);
}

bool Trusts(const LedgerModel& model, const Lease& lease) {
  if (model.segments.at(lease.segment).kind == Kind::kDriver) return true;
  return QuotaOf(model, model.sessions.at(lease.session).tenant).release == ReleasePolicy::kTrust &&
         QuotaOf(model, OwnerOf(model, lease.segment)).release == ReleasePolicy::kTrust;
}

void EndLease(LedgerModel& model, LeaseId id, bool unmapped) {
  const Lease lease = model.leases.at(id);
  model.leases.erase(id);
  for (Event& event : model.events) {
    if (event.place.lease == id) event.listed = false;
  }
  if (unmapped) Unmap(model, lease.session, lease.segment);
  SettleUnheld(model, lease.segment);
}

absl::Status Release(LedgerModel& model, SessionId id, absl::Span<const LeaseId> leases,
                     const absl::Status& answer) {
  if (!Live(model, id)) return ExpectCode(answer, absl::StatusCode::kAborted);
  const std::set<LeaseId> distinct(leases.begin(), leases.end());
  for (LeaseId lease : distinct) {
    auto it = model.leases.find(lease);
    if (it == model.leases.end() || it->second.session != id) {
      return ExpectCode(answer, absl::StatusCode::kNotFound);
    }
  }
  for (LeaseId lease : distinct) EndLease(model, lease, Trusts(model, model.leases.at(lease)));
  return ExpectCode(answer, absl::StatusCode::kOk);
}

namespace {

// Returns the code that refuses the lease; OK if it can be exchanged.
StatusCode RefusesExchange(const LedgerModel& model, LeaseId id, SegmentId named) {
  const Lease& lease = model.leases.at(id);
  const Segment& segment = model.segments.at(lease.segment);
  if (lease.segment != named) return StatusCode::kFailedPrecondition;
  if (segment.kind != Kind::kVmm && segment.kind != Kind::kHost) return StatusCode::kUnimplemented;
  bool used = false;
  for (const auto& [other, record] : model.leases) {
    used |= other != id && record.segment == lease.segment;
  }
  for (const auto& [operation_id, operation] : model.operations) {
    for (const Operation::Item& item : operation.items) used |= item.segment == lease.segment;
  }
  for (const Mapping& mapping : model.mappings) {
    used |= mapping.segment == lease.segment && mapping.session != lease.session;
  }
  const bool own = segment.tenant == model.sessions.at(lease.session).tenant;
  if (used || !own || segment.lost || segment.revocable || IsPublished(model, lease.segment)) {
    return StatusCode::kFailedPrecondition;
  }
  return StatusCode::kOk;
}

}  // namespace

absl::Status Exchange(LedgerModel& model, SessionId session,
                      const std::vector<Exchanges::Pair>& pairs, bool check_only,
                      const absl::Status& answer) {
  if (!Live(model, session)) return ExpectCode(answer, StatusCode::kAborted);
  std::set<LeaseId> named;
  for (const Exchanges::Pair& pair : pairs) named.insert({pair.lease, pair.other});
  if (pairs.empty() || named.size() != 2 * pairs.size()) {
    return ExpectCode(answer, StatusCode::kInvalidArgument);
  }
  std::vector<Exchanges::Pair> due;
  for (const Exchanges::Pair& pair : pairs) {
    for (LeaseId id : {pair.lease, pair.other}) {
      auto lease = model.leases.find(id);
      if (lease == model.leases.end() || lease->second.session != session) {
        return ExpectCode(answer, StatusCode::kNotFound);
      }
    }
    if (model.leases.at(pair.lease).segment == pair.other_segment &&
        model.leases.at(pair.other).segment == pair.segment) {
      continue;
    }
    for (const auto& [id, segment] :
         {std::pair(pair.lease, pair.segment), std::pair(pair.other, pair.other_segment)}) {
      const StatusCode refused = RefusesExchange(model, id, segment);
      if (refused != StatusCode::kOk) return ExpectCode(answer, refused);
    }
    const Segment& segment = model.segments.at(pair.segment);
    const Segment& other = model.segments.at(pair.other_segment);
    if (segment.kind == other.kind) return ExpectCode(answer, StatusCode::kUnimplemented);
    if (segment.bytes != other.bytes) return ExpectCode(answer, StatusCode::kInvalidArgument);
    due.push_back(pair);
  }
  for (const Exchanges::Pair& pair : due) {
    if (check_only) break;
    Lease& lease = model.leases.at(pair.lease);
    Lease& other = model.leases.at(pair.other);
    std::swap(lease.segment, other.segment);
    Segment& held = model.segments.at(lease.segment);
    Segment& given = model.segments.at(other.segment);
    held.home = held.kind == Kind::kHost ? model.devices[given.device].uuid : "";
    given.home.clear();
    for (Event& event : model.events) {
      if (event.listed && event.place.lease == pair.lease) event.segment = lease.segment;
      if (event.listed && event.place.lease == pair.other) event.segment = other.segment;
    }
  }
  return ExpectCode(answer, StatusCode::kOk);
}

absl::Status Share(LedgerModel& model, SessionId session, LeaseId lease, TicketScope scope,
                   const Secret& candidate, const absl::StatusOr<Secret>& answer) {
  if (!Live(model, session)) return ExpectCode(answer.status(), absl::StatusCode::kAborted);
  auto it = model.leases.find(lease);
  if (it == model.leases.end() || it->second.session != session) {
    return ExpectCode(answer.status(), absl::StatusCode::kNotFound);
  }
  const Segment& segment = model.segments.at(it->second.segment);
  if (segment.lost || segment.kind == Kind::kDriver ||
      (segment.kind == Kind::kMempool && scope == TicketScope::kAny)) {
    return ExpectCode(answer.status(), absl::StatusCode::kFailedPrecondition);
  }
  std::optional<Secret>& ticket = it->second.tickets[static_cast<size_t>(scope)];
  if (!ticket) ticket = candidate;
  if (answer.ok() && *answer == *ticket) return absl::OkStatus();
  return Wrong("expected the lease's one ticket of this scope, got ", answer.status().ToString());
}

}  // namespace gpumemd::model
