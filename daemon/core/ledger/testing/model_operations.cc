// The model of openings, and of the ends of leases and operations.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/testing/model.h"

namespace gpumemd {

std::optional<absl::Status> LedgerModel::NoRoomForLeases(SessionId session, uint64_t more,
                                                         const absl::Status& answer) {
  const std::string& tenant = sessions_.at(session).tenant;
  // Leases that operations are about to give also count.
  uint64_t own = 0, tenants = 0, all = 0;
  const auto add = [&](SessionId holder, uint64_t count) {
    all += count;
    tenants += sessions_.at(holder).tenant == tenant ? count : 0;
    own += holder == session ? count : 0;
  };
  for (const auto& [id, lease] : leases_) add(lease.session, 1);
  for (const auto& [id, operation] : operations_) {
    if (!operation.regrant) add(operation.session, operation.items.size());
  }
  for (const auto& [used, limit] :
       {std::pair(own, bounds_.max_leases_per_session),
        std::pair(tenants, bounds_.max_leases_per_tenant), std::pair(all, bounds_.max_leases)}) {
    if (used + more <= limit) continue;
    return ExpectDenial(answer, tenant,
                        {{Denial::Cause::kDaemonLimit, "", kEverywhere}, more, used, limit});
  }
  return std::nullopt;
}

absl::Status LedgerModel::BeginOpen(SessionId session_id, absl::Span<const Secret> tickets,
                                    bool revocable, uint64_t request_id,
                                    const absl::StatusOr<Operation>& answer) {
  using absl::StatusCode;
  if (draining_) return ExpectCode(answer.status(), StatusCode::kUnavailable);
  if (!Live(session_id)) return ExpectCode(answer.status(), StatusCode::kAborted);
  if (tickets.empty() || tickets.size() > kMaxSegmentsPerCall) {
    return ExpectCode(answer.status(), StatusCode::kInvalidArgument);
  }
  if (auto denied = NoRoomForLeases(session_id, tickets.size(), answer.status())) return *denied;
  const bool as_revocable = revocable || QuotaOf(sessions_.at(session_id).tenant).revocable;
  std::vector<SegmentId> expected;
  for (const Secret& ticket : tickets) {
    const Lease* found = nullptr;
    size_t scope = 0;
    for (const auto& [id, lease] : leases_) {
      for (size_t s : {0, 1}) {
        if (lease.tickets[s] == ticket) {
          found = &lease;
          scope = s;
        }
      }
    }
    if (found == nullptr || !Live(found->session)) {
      return ExpectCode(answer.status(), StatusCode::kNotFound);
    }
    if (scope == static_cast<size_t>(TicketScope::kTenant) &&
        segments_.at(found->segment).tenant != sessions_.at(session_id).tenant) {
      return ExpectCode(answer.status(), StatusCode::kPermissionDenied);
    }
    const Segment& segment = segments_.at(found->segment);
    if (segment.lost || segment.revoking || (segment.revocable && !as_revocable)) {
      return ExpectCode(answer.status(), StatusCode::kFailedPrecondition);
    }
    expected.push_back(found->segment);
  }
  if (OtherSort(session_id, as_revocable)) {
    return ExpectCode(answer.status(), StatusCode::kFailedPrecondition);
  }
  if (!answer.ok()) return Wrong("expected an opening, got ", answer.status().ToString());
  if (ToInt(answer->id) <= last_operation_ || answer->session != session_id ||
      answer->revocable != as_revocable || answer->request_id != request_id || answer->regrant ||
      answer->items.size() != expected.size()) {
    return Wrong("the operation is not what was asked for");
  }
  last_operation_ = ToInt(answer->id);
  for (size_t i = 0; i < expected.size(); ++i) {
    const Operation::Item& item = answer->items[i];
    if (item.segment != expected[i] || item.fresh || item.reused ||
        ToInt(item.lease) <= last_lease_) {
      return Wrong("ticket ", i, " opened the wrong thing");
    }
    last_lease_ = ToInt(item.lease);
    mappings_.push_back({session_id, item.segment, as_revocable});
    Segment& segment = segments_.at(item.segment);
    if (segment.tenant != sessions_.at(session_id).tenant) segment.shared_out = true;
    if (segment.kind == Kind::kMempool) imports_.push_back({session_id, segment.device});
  }
  operations_.emplace(answer->id, *answer);
  stirred_ = true;
  return absl::OkStatus();
}

absl::Status LedgerModel::Commit(OperationId id, const absl::Status& answer) {
  Operation& operation = operations_.at(id);
  const bool live = Live(operation.session);
  while (!operation.items.empty()) {
    const Operation::Item item = operation.items.front();
    operation.items.erase(operation.items.begin());
    if (segments_.at(item.segment).revocable) stirred_ = true;  // it can be revoked now
    const bool leased = live && !operation.regrant;
    if (leased) {
      leases_[item.lease] = {.session = operation.session,
                             .segment = item.segment,
                             .publication = operation.publication,
                             .request_id = operation.request_id};
    }
    if (leased && segments_.at(item.segment).lost) bereaved_.insert(operation.session);
    if (leased && segments_.at(item.segment).revoking) revoked_.insert(operation.session);
    Rest(item.segment);
  }
  operations_.erase(id);
  Sweep();
  return ExpectCode(answer, live ? absl::StatusCode::kOk : absl::StatusCode::kAborted);
}

void LedgerModel::Abort(OperationId id, bool handed_over) {
  Operation& operation = operations_.at(id);
  for (const Operation::Item& item : operation.items) {
    if (handed_over || operation.regrant) break;
    if (MayMap(operation.session, item.segment)) Unmap(operation.session, item.segment);
    const Segment& segment = segments_.at(item.segment);
    if (segment.kind == Kind::kMempool) Unimport(operation.session, segment.device, /*all=*/false);
  }
  while (!operation.items.empty()) {
    const Operation::Item item = operation.items.front();
    operation.items.erase(operation.items.begin());
    if (segments_.at(item.segment).revocable) stirred_ = true;  // it can be revoked now
    const bool pool_has_it = segments_.at(item.segment).made && !Importers(item.segment).empty();
    if (item.fresh && !handed_over && !pool_has_it) {
      GiveUp(segments_.at(item.segment));
    } else {
      Rest(item.segment);
    }
  }
  operations_.erase(id);
  Sweep();
}

absl::Status LedgerModel::MakeRoomOnDevice(SessionId session, size_t device, uint64_t bytes,
                                           bool answer) {
  while (Of("", device, Which::kGivenUp).bytes < bytes &&
         (GiveUpOldest(sessions_.at(session).tenant, device) || GiveUpOfTheRichest(device))) {
  }
  const bool expected = Of("", device, Which::kGivenUp).bytes > 0;
  if (answer == expected) return absl::OkStatus();
  return Wrong("expected ", expected ? "" : "no ", "memory to come back");
}

absl::Status LedgerModel::DriverDenial(SessionId session, size_t device, uint64_t bytes,
                                       const absl::Status& answer) {
  const std::string tenant = sessions_.at(session).tenant;
  return ExpectDenial(answer, tenant,
                      {{Denial::Cause::kDriver, tenant, device},
                       bytes,
                       Of("", device, Which::kAll).bytes,
                       devices_[device].capacity_bytes});
}

bool LedgerModel::Trusts(const Lease& lease) const {
  return QuotaOf(sessions_.at(lease.session).tenant).release == ReleasePolicy::kTrust &&
         QuotaOf(OwnerOf(lease.segment)).release == ReleasePolicy::kTrust;
}

absl::Status LedgerModel::Release(SessionId id, absl::Span<const LeaseId> leases,
                                  const absl::Status& answer) {
  if (!Live(id)) return ExpectCode(answer, absl::StatusCode::kAborted);
  const std::set<LeaseId> distinct(leases.begin(), leases.end());
  for (LeaseId lease : distinct) {
    auto it = leases_.find(lease);
    if (it == leases_.end() || it->second.session != id) {
      return ExpectCode(answer, absl::StatusCode::kNotFound);
    }
  }
  for (LeaseId lease : distinct) EndLease(lease, Trusts(leases_.at(lease)));
  return ExpectCode(answer, absl::StatusCode::kOk);
}

absl::Status LedgerModel::Share(SessionId session, LeaseId lease, TicketScope scope,
                                const Secret& candidate, const absl::StatusOr<Secret>& answer) {
  if (!Live(session)) return ExpectCode(answer.status(), absl::StatusCode::kAborted);
  auto it = leases_.find(lease);
  if (it == leases_.end() || it->second.session != session) {
    return ExpectCode(answer.status(), absl::StatusCode::kNotFound);
  }
  const Segment& segment = segments_.at(it->second.segment);
  if (segment.lost || (segment.kind == Kind::kMempool && scope == TicketScope::kAny)) {
    return ExpectCode(answer.status(), absl::StatusCode::kFailedPrecondition);
  }
  std::optional<Secret>& ticket = it->second.tickets[static_cast<size_t>(scope)];
  if (!ticket) ticket = candidate;
  if (answer.ok() && *answer == *ticket) return absl::OkStatus();
  return Wrong("expected the lease's one ticket of this scope, got ", answer.status().ToString());
}

}  // namespace gpumemd
