// Acquiring, and the queue of those who have to wait for it.
//
// Waiters are served by guarantee (who has most left of what is guaranteed to him, if that covers
// the request), then by the tenant's priority, then by arrival. Whoever comes later gets nothing
// that one before him waits for, so a large request is not starved by small ones: a waiter claims
// what it asked for on each of its limits up to the last one that stands in its way; but up to the
// first only where that is one of its tenants' own: while a tenant waits for itself, memory of the
// device is free for others.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/denial.h"
#include "daemon/core/ledger.h"

namespace gpumemd {

using gpumem::v1::Denial;

absl::StatusOr<Admission> Ledger::BeginAcquire(SessionId session_id, const AcquireSpec& spec) {
  if (draining_) return Draining();
  absl::StatusOr<Session*> session = LiveSession(session_id);
  if (!session.ok()) return session.status();
  Tenant& tenant = *(*session)->tenant;
  absl::StatusOr<AcquireTerms> terms = CheckSpec(tenant, spec);
  if (!terms.ok()) return terms.status();
  if (absl::Status room = CheckLeaseCount(**session, spec.count); !room.ok()) return room;
  const Request request{.tenant = &tenant,
                        .device = terms->device,
                        .kind = terms->kind,
                        .bytes = terms->bytes,
                        .count = spec.count,
                        .revocable = spec.revocable || tenant.quota.revocable,
                        .request_id = spec.request_id};
  if (absl::Status sort = CheckSort(**session, request.revocable); !sort.ok()) return sort;
  if (absl::Status past = CheckUnbrokered(tenant, terms->bytes * spec.count); !past.ok()) {
    return past;
  }

  Verdict verdict;
  std::optional<Operation> granted = TryGrant(session_id, request, ClaimsBefore(request), &verdict);
  if (granted) return Admission{.operation = std::move(granted)};
  // What no holder can make room for is not worth waiting for.
  if (verdict.hopeless || (verdict.fit == Fit::kBlocked && !spec.waits)) {
    return Deny(tenant, verdict.denial);
  }
  if (spec.waits) {
    if (absl::Status room = CheckWaiting(tenant); !room.ok()) return room;
  }
  const WaiterId id{next_waiter_++};
  waiters_.emplace(id, Waiter{.session = session_id,
                              .request = request,
                              .asked_to = spec.waits,
                              .since = now_(),
                              .revokes = verdict.fit == Fit::kRevoked,
                              .claims = verdict.claims});
  (*session)->waiters.insert(id);
  // It may go before others, which then wait for their own tenants alone and claim less.
  queue_moves_ = true;
  if (spec.waits) {
    CountWaiting(tenant, 1);
    --(*session)->in_flight;
    --tenant.in_flight;
  }
  return Admission{.waiter = id};
}

absl::Status Ledger::CheckWaiting(Tenant& tenant) {
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    const uint64_t limit = each->quota.max_waiting.value_or(UINT32_MAX);
    if (each->tree_waiting < limit) continue;
    return DenyCount(tenant, Denial::CAUSE_MAX_WAITING, 1, each->tree_waiting, limit,
                     "wait until one of them is served, or ask for more in one call", each);
  }
  const uint64_t of_all = waiters_.size() + attach_waiters_.size();
  if (of_all < bounds_.max_waiting) return absl::OkStatus();
  return DenyCount(tenant, Denial::CAUSE_DAEMON_LIMIT, 1, of_all, bounds_.max_waiting,
                   "too many requests wait already; ask again later");
}

std::optional<Operation> Ledger::TryGrant(SessionId session, const Request& request,
                                          const Claims& claims, Verdict* verdict) {
  Tenant& tenant = *request.tenant;
  RetainedPool& reusable = request.kind == Kind::kMempool ? tenant.pools[request.device].idle
                                                          : tenant.retained[request.device];
  const size_t there = tenant.quota.scrub ? 0 : reusable.Fits(request.kind, request.bytes);
  const auto reused = static_cast<uint32_t>(std::min<size_t>(there, request.count));
  *verdict = Judge(request, reused, claims);
  if (verdict->fit == Fit::kBlocked) return std::nullopt;
  std::vector<SegmentId> segments;
  while (segments.size() < reused) {
    segments.push_back(*reusable.TakeFit(request.kind, request.bytes));
  }
  if (verdict->fit == Fit::kNow) return Grant(session, request, std::move(segments));
  // Making room for the others must not give them away.
  for (SegmentId id : segments) segments_.at(id)->charge.MoveTo(SegmentState::kPending);
  TrimForShortfall(request, request.count - reused, claims);
  for (SegmentId id : segments) Settle(id, *segments_.at(id));
  Revoke(verdict->victims, request);
  return std::nullopt;
}

Operation Ledger::Grant(SessionId session, const Request& request, std::vector<SegmentId> reused) {
  Operation operation;
  operation.id = OperationId{next_operation_++};
  operation.session = session;
  operation.device = request.device;
  operation.kind = request.kind;
  operation.revocable = request.revocable;
  operation.request_id = request.request_id;
  for (SegmentId id : reused) {
    Charge& charge = segments_.at(id)->charge;
    charge.MoveTo(SegmentState::kPending);
    charge.SetRevocable(request.revocable);
    Touch(id);
    operation.items.push_back({.lease = LeaseId{next_lease_++}, .segment = id, .reused = true});
  }
  while (operation.items.size() < request.count) {
    SegmentId id{next_segment_++};
    auto segment = std::make_unique<Segment>();
    segment->tenant = request.tenant;
    segment->device = request.device;
    segment->kind = request.kind;
    segment->charge =
        Charge(&request.tenant->accounts[request.device], request.bytes, request.revocable);
    segment->created = now_();
    segments_.emplace(id, std::move(segment));
    Touch(id);
    operation.items.push_back({.lease = LeaseId{next_lease_++}, .segment = id, .fresh = true});
  }
  Pin(operation, *sessions_.at(session));
  return operation;
}

uint64_t Ledger::Deficit(const Request& request) {
  if (request.revocable) return 0;
  const uint64_t unused = request.tenant->accounts[request.device].unused_guarantees();
  return request.bytes * request.count <= unused ? unused : 0;
}

bool Ledger::GoesBefore(const Request& request, const Request& other) {
  return std::make_tuple(Deficit(request), request.tenant->quota.priority) >
         std::make_tuple(Deficit(other), other.tenant->quota.priority);
}

std::vector<WaiterId> Ledger::WaitersInOrder() const {
  std::vector<WaiterId> waiters;
  for (const auto& [id, waiter] : waiters_) waiters.push_back(id);  // by arrival
  std::stable_sort(waiters.begin(), waiters.end(), [this](WaiterId a, WaiterId b) {
    return GoesBefore(waiters_.at(a).request, waiters_.at(b).request);
  });
  return waiters;
}

void Ledger::JudgeWaiters(absl::FunctionRef<bool(WaiterId, const Waiter&, Verdict&)> visit) const {
  Claims claims;
  for (WaiterId id : WaitersInOrder()) {
    const Waiter& waiter = waiters_.at(id);
    Verdict verdict = Judge(waiter.request, 0, claims);
    AddClaims(verdict.standings, waiter.claims, claims);
    if (!visit(id, waiter, verdict)) return;
  }
}

Claims Ledger::ClaimsBefore(const Request& request) const {
  Claims claims;
  for (const auto& [id, waiter] : waiters_) {
    if (GoesBefore(request, waiter.request)) continue;
    AddClaims(StandingsOf(waiter.request, 0), waiter.claims, claims);
  }
  return claims;
}

std::vector<Ledger::Admitted> Ledger::AdmitWaiting(size_t max_grants) {
  std::vector<Admitted> admitted;
  for (auto& [id, status] : std::exchange(refused_, {}))
    admitted.push_back({id, std::move(status)});
  if (!std::exchange(queue_moves_, false)) return admitted;
  size_t grants = 0;
  std::vector<WaiterId> waiting = WaitersInOrder();
  Claims claims;
  for (size_t next = 0; next < waiting.size();) {
    const WaiterId id = waiting[next++];
    Waiter& waiter = waiters_.at(id);
    const Request request = waiter.request;
    const SessionId session = waiter.session;
    absl::Status sort =
        draining_ ? Draining() : CheckSort(*sessions_.at(session), request.revocable);
    if (sort.ok()) sort = CheckUnbrokered(*request.tenant, request.bytes * request.count);
    if (!sort.ok()) {
      RemoveWaiter(id);
      admitted.push_back({id, std::move(sort)});
      continue;
    }
    Verdict verdict;
    std::optional<Operation> granted = TryGrant(session, request, claims, &verdict);
    if (granted) {
      RemoveWaiter(id);
      admitted.push_back({id, *std::move(granted)});
      if (++grants == max_grants) return admitted;
      // Its tenant has less left of what is guaranteed to it, and its process holds leases of one
      // sort now: others may go first, or no more, and those passed over claim something else.
      waiting = WaitersInOrder();
      claims.clear();
      next = 0;
      continue;
    }
    // Where a limit was lowered, waiting may have become useless.
    if (verdict.hopeless || (!waiter.asked_to && verdict.fit == Fit::kBlocked)) {
      RemoveWaiter(id);
      admitted.push_back({id, Deny(*request.tenant, verdict.denial)});
      continue;
    }
    waiter.claims = verdict.claims;
    waiter.revokes |= verdict.fit == Fit::kRevoked;
    AddClaims(verdict.standings, verdict.claims, claims);
  }
  queue_moves_ = false;  // what this itself has set in motion comes back by Destroyed()
  return admitted;
}

void Ledger::RemoveWaiter(WaiterId id) {
  auto it = waiters_.find(id);
  Session& session = *sessions_.at(it->second.session);
  session.waiters.erase(id);
  if (it->second.asked_to) {
    CountWaiting(*session.tenant, -1);
    ++session.in_flight;
    ++session.tenant->in_flight;
  }
  waiters_.erase(it);
  queue_moves_ = true;
}

std::optional<Denial> Ledger::BlockedBy(WaiterId id) const {
  std::optional<Denial> denial;
  JudgeWaiters([&](WaiterId each, const Waiter&, Verdict& verdict) {
    if (each != id) return true;
    if (verdict.fit == Fit::kBlocked) denial = std::move(verdict.denial);
    return false;
  });
  return denial;
}

std::vector<std::pair<WaiterId, Denial>> Ledger::Blocked() const {
  std::vector<std::pair<WaiterId, Denial>> blocked;
  JudgeWaiters([&](WaiterId id, const Waiter&, Verdict& verdict) {
    if (verdict.fit == Fit::kBlocked) blocked.emplace_back(id, std::move(verdict.denial));
    return true;
  });
  return blocked;
}

absl::Status Ledger::EndWait(WaiterId id, bool expired) {
  Tenant& tenant = *waiters_.at(id).request.tenant;
  Denial denial;
  const auto its_own = [&](WaiterId each, const Waiter&, Verdict& verdict) {
    if (each == id) denial = std::move(verdict.denial);
    return each != id;
  };
  if (expired) JudgeWaiters(its_own);
  RemoveWaiter(id);
  if (expired) return Deny(tenant, denial);
  return absl::CancelledError("the client has given up the request");
}

absl::StatusOr<std::vector<WaiterView>> Ledger::ListWaiting(absl::string_view tenant,
                                                            absl::string_view device) const {
  if (!tenant.empty() && FindTenant(tenant) == nullptr) return NoSuchTenant(tenant);
  if (!device.empty()) {
    if (auto index = FindDevice(device); !index.ok()) return index.status();
  }
  std::vector<WaiterView> views;
  std::vector<uint32_t> positions(devices_.size(), 0);
  JudgeWaiters([&](WaiterId id, const Waiter& waiter, Verdict& verdict) {
    const Request& request = waiter.request;
    const uint32_t position = ++positions[request.device];
    if (!tenant.empty() && request.tenant->name != tenant) return true;
    if (!device.empty() && devices_[request.device].uuid != device) return true;
    views.push_back({.id = id,
                     .session = waiter.session,
                     .tenant = request.tenant->name,
                     .device_uuid = devices_[request.device].uuid,
                     .kind = request.kind,
                     .bytes = request.bytes,
                     .count = request.count,
                     .revocable = request.revocable,
                     .asked_to = waiter.asked_to,
                     .position = position,
                     .age = now_() - waiter.since,
                     .blocked_by = std::move(verdict.denial)});
    return true;
  });
  std::stable_sort(views.begin(), views.end(), [this](const WaiterView& a, const WaiterView& b) {
    return *FindDevice(a.device_uuid) < *FindDevice(b.device_uuid);
  });
  return views;
}

}  // namespace gpumemd
