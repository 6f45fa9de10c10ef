// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/admission_control.h"

#include <algorithm>
#include <utility>

#include "daemon/core/admission/refusals.h"
#include "daemon/core/admission/request_checks.h"
#include "daemon/core/admission/reuse.h"
#include "daemon/core/admission/trim.h"

namespace gpumemd {

absl::StatusOr<records::Request> AdmissionControl::RequestOf(SessionId session_id,
                                                             const AcquireSpec& spec) const {
  absl::StatusOr<Session*> session = state_.LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (spec.publication) return ResumeRequestOf(*spec.publication);
  if (!spec.resumes.empty()) return ResumeRequestOf(session_id, spec.resumes);
  Tenant& tenant = *(*session)->tenant;
  if (absl::Status goes_on = state_.CheckGoesOn(tenant); !goes_on.ok()) return goes_on;
  absl::StatusOr<AcquireTerms> terms = CheckSpec(state_, tenant, spec);
  if (!terms.ok()) return terms.status();
  if (absl::Status room = CheckLeaseCount(state_, **session, spec.count); !room.ok()) return room;
  const Request request{.tenant = &tenant,
                        .device = terms->device,
                        .kind = terms->kind,
                        .bytes = terms->bytes,
                        .count = spec.count,
                        .revocable = spec.revocable || tenant.quota.revocable,
                        .request_id = spec.request_id,
                        .tag = spec.tag,
                        .scratch = spec.scratch};
  if (absl::Status lease_type = CheckLeaseType(state_, **session, request.revocable);
      !lease_type.ok())
    return lease_type;
  if (absl::Status past = CheckUnbrokered(state_, tenant, terms->bytes * spec.count); !past.ok()) {
    return past;
  }
  return request;
}

absl::StatusOr<records::Request> AdmissionControl::ResumeRequestOf(
    SessionId session_id, absl::Span<const LeaseId> leases) const {
  absl::StatusOr<Suspensions::ResumeTerms> terms = suspensions_.TermsOf(session_id, leases);
  if (!terms.ok()) return terms.status();
  Session& session = *state_.sessions.at(session_id);
  if (absl::Status type = CheckLeaseType(state_, session, /*revocable=*/false); !type.ok()) {
    return type;
  }
  if (terms->bytes > 0) {
    absl::Status past = CheckUnbrokered(state_, *session.tenant, terms->bytes);
    if (!past.ok()) return past;
  }
  return Request{.tenant = session.tenant,
                 .device = terms->device,
                 .kind = Kind::kVmm,
                 .bytes = terms->bytes,
                 .count = 1,
                 .resumes = {leases.begin(), leases.end()}};
}

absl::StatusOr<records::Request> AdmissionControl::ResumeRequestOf(
    PublicationId publication) const {
  absl::StatusOr<Suspensions::ResumeTerms> terms = suspensions_.TermsOf(publication);
  if (!terms.ok()) return terms.status();
  Tenant& tenant = *state_.publications.at(publication).tenant;
  if (terms->bytes > 0) {
    absl::Status past = CheckUnbrokered(state_, tenant, terms->bytes);
    if (!past.ok()) return past;
  }
  return Request{.tenant = &tenant,
                 .device = terms->device,
                 .kind = Kind::kVmm,
                 .bytes = terms->bytes,
                 .count = 1,
                 .publication = publication};
}

absl::Status AdmissionControl::CheckResume(SessionId session, const Request& request) const {
  // Since it came, its leases may have ended, or have moved by the calls of other sessions.
  const absl::StatusOr<Suspensions::ResumeTerms> terms =
      request.publication ? suspensions_.TermsOf(*request.publication)
                          : suspensions_.TermsOf(session, request.resumes);
  if (!terms.ok()) return terms.status();
  if (terms->bytes == request.bytes && terms->device == request.device) return absl::OkStatus();
  return absl::UnavailableError("the memory has moved since the request came; ask again");
}

absl::StatusOr<Operation> AdmissionControl::BeginResume(PublicationId publication) {
  if (state_.RefusesAcquire(/*resumes=*/true)) return Draining();
  absl::StatusOr<Request> request = ResumeRequestOf(publication);
  if (!request.ok()) return request.status();
  if (request->bytes == 0) return operations_.GrantResume(SessionId{}, *request);
  queue_.Refresh();
  Decision decision;
  const Claims claims =
      queue_.ClaimsBefore({RankOf(*request), WaiterId{state_.next_waiter}}, *request);
  absl::Time swap_until = absl::InfinitePast();
  absl::StatusOr<std::optional<Operation>> granted =
      TryGrant({SessionId{}, *request, /*waits=*/false, swap_until}, claims, &decision);
  if (!granted.ok()) return granted.status();
  if (*granted) return **std::move(granted);
  return DenialError(room_.Explain(*request, decision));
}

absl::StatusOr<Admission> AdmissionControl::BeginAcquire(SessionId session_id,
                                                         const AcquireSpec& spec) {
  // A draining daemon refuses an Attach, and so what an Attach needs.
  if (state_.RefusesAcquire(!spec.resumes.empty())) return Draining();
  absl::StatusOr<Request> checked = RequestOf(session_id, spec);
  if (!checked.ok()) return checked.status();
  const Request& request = *checked;
  Tenant& tenant = *request.tenant;
  // Nothing of them is in the tier: they need no room.
  if (request.BringsBack() && request.bytes == 0) {
    return Admission{.operation = operations_.GrantResume(session_id, request)};
  }

  queue_.Refresh();
  Decision decision;
  const Claims claims =
      queue_.ClaimsBefore({RankOf(request), WaiterId{state_.next_waiter}}, request);
  absl::Time swap_until = absl::InfinitePast();
  absl::StatusOr<std::optional<Operation>> granted =
      TryGrant({session_id, request, spec.waits, swap_until}, claims, &decision);
  if (!granted.ok()) return granted.status();
  if (*granted) return Admission{.operation = *std::move(granted)};
  // A request that no holder can make room for does not wait.
  if (decision.hopeless || (decision.fit == Fit::kBlocked && !spec.waits)) {
    return Deny(tenant, room_.Explain(request, decision));
  }
  if (spec.waits) {
    // Of a publication's memory, the session's tenant waits, and the publication's is charged.
    Tenant& waits = *state_.sessions.at(session_id)->tenant;
    if (absl::Status room = CheckWaiting(state_, waits); !room.ok()) return room;
  }
  const WaiterId id{state_.next_waiter++};
  queue_.Add(id,
             Waiter{.session = session_id,
                    .request = request,
                    .asked_to = spec.waits,
                    .since = state_.now(),
                    .revokes = decision.fit == Fit::kRevoked,
                    .swap_until = swap_until},
             decision);
  return Admission{.waiter = id};
}

bool AdmissionControl::AwaitsSuspensions(const Asker& asker, const Claims& claims,
                                         Decision& decision) {
  // A revocable request takes what others leave.
  const Request& request = asker.request;
  if (decision.hopeless || decision.awaits_end || request.revocable || !suspensions_.HasTier()) {
    return false;
  }
  decision.awaits_suspension = true;
  return swaps_.Ask(asker.session, request, decision, claims, asker.swap_until);
}

void AdmissionControl::RunSwaps() {
  if (swaps_.Tick()) queue_.WakeAwaitingSuspension();
}

absl::StatusOr<std::optional<Operation>> AdmissionControl::TryGrant(const Asker& asker,
                                                                    const Claims& claims,
                                                                    Decision* decision) {
  const auto& [session, request, waits, swap_until] = asker;
  const bool resumes = request.BringsBack();
  const uint32_t reused = Reusable(request);
  RetainedPool& reusable = PoolFor(request);
  *decision = room_.Check(request, reused, claims);
  if (decision->fit == Fit::kBlocked || decision->awaits_end) {
    if (waits) AwaitsSuspensions(asker, claims, *decision);
    return std::optional<Operation>();
  }
  if (decision->fit == Fit::kNow && resumes) {
    return std::optional(operations_.GrantResume(session, request));
  }
  if (decision->fit == Fit::kNow) {
    // There may be more leases than when a waiter came.
    absl::Status room = CheckLeaseCount(state_, *state_.sessions.at(session), request.count);
    if (!room.ok()) return room;
  }
  std::vector<RetainedPool::Taken> aside;
  while (aside.size() < reused) {
    aside.push_back(*reusable.TakeFit(request.kind, request.bytes));
  }
  if (decision->fit == Fit::kNow) {
    std::vector<SegmentId> segments;
    for (const RetainedPool::Taken& each : aside) segments.push_back(each.id);
    return std::optional(operations_.Grant(session, request, std::move(segments)));
  }
  // Takes the segments to reuse out of the pool, so that making room for the others does not doom
  // them. Their charges do not move: moving them there and back would count as a change of the
  // device. Two waiters that each do so would then be checked in turn for ever. They keep their
  // age: which segment is given up next must not depend on how often a waiter was checked.
  TrimForShortfall(state_, segments_, request, request.count - reused, claims);
  for (const RetainedPool::Taken& each : aside) {
    reusable.PutBack(each, request.kind, request.bytes);
  }
  const bool revokes =
      decision->fit == Fit::kRevoked && !(waits && AwaitsSuspensions(asker, claims, *decision));
  if (revokes) revocations_.Revoke(decision->candidates, request);
  return std::optional<Operation>();
}

std::vector<AdmissionControl::Admitted> AdmissionControl::AdmitWaiting(size_t max_grants,
                                                                       size_t max_checked) {
  std::vector<Admitted> admitted;
  for (auto& [id, status] : std::exchange(refused_, {})) {
    admitted.push_back({id, std::move(status)});
  }
  if (!queue_.Moves()) return admitted;
  queue_.BeginPass();
  for (size_t grants = 0, checked = 0; true;) {
    const std::optional<QueuePlace> next = queue_.Next();
    if (!next) break;
    if (grants == max_grants || checked++ == max_checked) {
      queue_.EndPass(/*complete=*/false);
      return admitted;
    }
    if (CheckOne(*next, admitted)) ++grants;
    queue_.Checked();
  }
  queue_.EndPass(/*complete=*/true);
  return admitted;
}

bool AdmissionControl::CheckOne(const QueuePlace& place, std::vector<Admitted>& admitted) {
  const Claims& claims = queue_.Take(place);
  const WaiterId id = place.id;
  Waiter& waiter = state_.waiters.at(id);
  const Request request = waiter.request;
  const SessionId session = waiter.session;
  ++checked_;
  const auto refuse = [&](absl::Status status) {
    queue_.Remove(id);
    admitted.push_back({id, std::move(status)});
    return false;
  };
  absl::Status may =
      state_.RefusesAcquire(!request.resumes.empty()) ? Draining() : absl::OkStatus();
  // What comes back was the tenant's before.
  if (may.ok() && !request.BringsBack()) may = state_.CheckGoesOn(*request.tenant);
  // A publication comes back without a lease.
  if (may.ok() && !request.publication)
    may = CheckLeaseType(state_, *state_.sessions.at(session), request.revocable);
  if (may.ok()) may = CheckUnbrokered(state_, *request.tenant, request.bytes * request.count);
  if (may.ok() && request.BringsBack()) may = CheckResume(session, request);
  if (!may.ok()) return refuse(std::move(may));

  Decision decision;
  absl::StatusOr<std::optional<Operation>> granted =
      TryGrant({session, request, waiter.asked_to, waiter.swap_until}, claims, &decision);
  if (granted.ok() && granted->has_value()) {
    queue_.Remove(id);
    admitted.push_back({id, **std::move(granted)});
    queue_.Granted(place, request, session);
    return true;
  }
  // If a limit was lowered, waiting may have become useless.
  if (!granted.ok()) return refuse(granted.status());
  if (decision.hopeless || (!waiter.asked_to && decision.fit == Fit::kBlocked)) {
    return refuse(Deny(*request.tenant, room_.Explain(request, decision)));
  }
  waiter.revokes |= decision.fit == Fit::kRevoked;
  queue_.SetDecision(id, waiter, decision);
  return false;
}

void AdmissionControl::RefuseWaitersOf(Session& session) {
  while (!session.waiters.empty()) {
    const WaiterId waiter = *session.waiters.begin();
    queue_.Remove(waiter);
    refused_.emplace_back(waiter, absl::AbortedError("the session ended while the request waited"));
  }
}

void AdmissionControl::CheckWaiters(
    absl::FunctionRef<void(WaiterId, const Waiter&, Decision&)> visit) const {
  Claims claims;
  for (WaiterId id : WaitersInOrder(state_)) {
    const Waiter& waiter = state_.waiters.at(id);
    Decision decision = room_.Check(waiter.request, 0, claims);
    AddClaims(decision.standings, waiter.claims, claims);
    visit(id, waiter, decision);
  }
}

std::optional<Denial> AdmissionControl::BlockedBy(WaiterId id) const {
  const Request& request = state_.waiters.at(id).request;
  const Decision decision = room_.Check(request, 0, queue_.ClaimsBefore(id));
  if (decision.fit != Fit::kBlocked) return std::nullopt;
  return room_.Explain(request, decision);
}

bool AdmissionControl::IsBlocked(WaiterId id) const {
  return room_.Check(state_.waiters.at(id).request, 0, queue_.ClaimsBefore(id)).fit ==
         Fit::kBlocked;
}

Denial AdmissionControl::Explain(const Waiter& waiter, const Decision& decision) const {
  Denial denial = room_.Explain(waiter.request, decision);
  if (decision.fit == Fit::kRevoked && state_.now() < waiter.swap_until) {
    denial.help =
        "sessions are asked to suspend first, and revocable leases are taken back if they do not; "
        "wait for it";
  }
  return denial;
}

std::vector<absl::Status> AdmissionControl::EndExpiredWaits(absl::Span<const WaiterId> waiters) {
  std::vector<Denial> denials;
  for (WaiterId id : waiters) {
    const Waiter& waiter = state_.waiters.at(id);
    denials.push_back(Explain(waiter, room_.Check(waiter.request, 0, queue_.ClaimsBefore(id))));
  }
  std::vector<absl::Status> ends;
  for (size_t i = 0; i < waiters.size(); ++i) {
    ends.push_back(Deny(*state_.waiters.at(waiters[i]).request.tenant, denials[i]));
    queue_.Remove(waiters[i]);
  }
  return ends;
}

absl::Status AdmissionControl::EndWait(WaiterId id, bool expired) {
  if (expired) return EndExpiredWaits({id}).front();
  queue_.Remove(id);
  return GivenUp();
}

absl::StatusOr<std::vector<WaiterView>> AdmissionControl::ListWaiting(
    absl::string_view tenant, absl::string_view device) const {
  if (!tenant.empty() && state_.FindTenant(tenant) == nullptr) return state_.NoSuchTenant(tenant);
  if (!device.empty()) {
    if (auto index = state_.FindDevice(device); !index.ok()) return index.status();
  }
  std::vector<WaiterView> views;
  std::vector<uint32_t> positions(state_.devices.size(), 0);
  CheckWaiters([&](WaiterId id, const Waiter& waiter, Decision& decision) {
    const Request& request = waiter.request;
    const uint32_t position = ++positions[request.device];
    if (!tenant.empty() && request.tenant->name != tenant) return;
    if (!device.empty() && state_.devices[request.device].uuid != device) return;
    views.push_back({.id = id,
                     .session = waiter.session,
                     .tenant = request.tenant->name,
                     .device_uuid = state_.devices[request.device].uuid,
                     .kind = request.kind,
                     .bytes = request.bytes,
                     .count = request.count,
                     .revocable = request.revocable,
                     .asked_to = waiter.asked_to,
                     .position = position,
                     .age = state_.now() - waiter.since,
                     .blocked_by = Explain(waiter, decision)});
  });
  std::stable_sort(views.begin(), views.end(), [this](const WaiterView& a, const WaiterView& b) {
    return *state_.FindDevice(a.device_uuid) < *state_.FindDevice(b.device_uuid);
  });
  return views;
}

}  // namespace gpumemd
