// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/recovery/reconciliation.h"

#include <algorithm>

#include "daemon/core/mutant.h"

namespace gpumemd {

std::optional<Operation> Reconciliation::Regrant(SessionId session_id, uint64_t request_id,
                                                 uint32_t count) {
  auto it = state_.sessions.find(session_id);
  if (request_id == 0 || it == state_.sessions.end() || !it->second->live) return std::nullopt;
  if (Mutant(Fault::kRegrantsNothing)) return std::nullopt;
  Session& session = *it->second;
  auto regrant = session.regrants.find(request_id);
  if (regrant == session.regrants.end()) return std::nullopt;
  std::vector<LeaseId> leases = std::move(regrant->second);
  session.regrants.erase(regrant);
  std::erase_if(leases, [&](LeaseId lease) { return !session.leases.contains(lease); });
  const bool usable = count > 0 && leases.size() == count &&
                      std::none_of(leases.begin(), leases.end(), [&](LeaseId lease) {
                        const Lease& granted = state_.leases.at(lease);
                        return granted.suspended || state_.segments.at(granted.segment)->lost;
                      });
  if (!usable) {
    for (LeaseId lease : leases) leases_.End(lease, leases_.TrustsRelease(session, lease));
    return std::nullopt;
  }
  const auto process = state_.processes.find(state_.ProcessOf(session));
  Operation operation{.id = OperationId{state_.next_operation++},
                      .session = session_id,
                      .revocable = process != state_.processes.end() && process->second.revocable,
                      .regrant = true,
                      .request_id = request_id};
  for (LeaseId lease : leases) {
    const SegmentId id = state_.leases.at(lease).segment;
    Segment& segment = *state_.segments.at(id);
    operation.device = segment.device;
    operation.kind = segment.kind;
    operation.items.push_back({.lease = lease, .segment = id, .reused = true});
    ++segment.pins;
  }
  state_.regranting += operation.items.size();
  ++session.operations;
  ++state_.open_operations;
  return operation;
}

std::optional<Operation> Reconciliation::RegrantAttach(SessionId session_id, uint64_t request_id) {
  auto it = state_.sessions.find(session_id);
  if (request_id == 0 || it == state_.sessions.end()) return std::nullopt;
  auto regrant = it->second->regrants.find(request_id);
  if (regrant == it->second->regrants.end()) return std::nullopt;
  // If the lease has ended, its publication is no longer known.
  uint32_t count = 0;
  std::optional<PublicationId> publication;
  if (const Lease* lease = state_.leases.Find(regrant->second.front()); lease != nullptr) {
    publication = lease->publication;
  }
  auto found = publication ? state_.publications.find(*publication) : state_.publications.end();
  if (found != state_.publications.end())
    count = static_cast<uint32_t>(found->second.segments.size());
  std::optional<Operation> operation = Regrant(session_id, request_id, count);
  if (operation) operation->publication = publication;
  return operation;
}

size_t Reconciliation::DropRegrants(SessionId session_id, absl::Span<const uint64_t> requests,
                                    size_t steps) {
  Session& session = *state_.sessions.at(session_id);
  for (size_t done = 0; done < requests.size(); ++done) {
    if (steps == 0) return done;
    auto regrant = session.regrants.find(requests[done]);
    if (regrant == session.regrants.end()) {
      --steps;
      continue;
    }
    std::vector<LeaseId>& granted = regrant->second;
    const size_t kept = granted.size() - std::min(steps, granted.size());
    const std::vector<LeaseId> leases(granted.begin() + static_cast<ptrdiff_t>(kept),
                                      granted.end());
    steps -= leases.size();
    granted.resize(kept);
    if (kept == 0) session.regrants.erase(regrant);
    auditor_.Released(session_id, leases,
                      "its client gave up the request before it was told of the lease");
    for (LeaseId lease : leases) {
      // The descriptors may have been sent, but the process has not mapped the segments.
      if (session.leases.contains(lease)) leases_.End(lease, leases_.TrustsRelease(session, lease));
    }
    if (kept > 0) return done;
  }
  return requests.size();
}

absl::Status Reconciliation::Begin(SessionId id) {
  absl::StatusOr<Session*> session = state_.LiveSession(id);
  if (!session.ok()) return session.status();
  if (!(*session)->may_reconcile) {
    return absl::FailedPreconditionError(
        "the session was not resumed, or has made calls since: there is nothing to reconcile");
  }
  if (sessions_.HasCalls(id) && !Mutant(Fault::kReconcilesDuringCalls)) {
    // The pending calls could be granted leases that the client does not name: it no longer gets
    // their answers.
    return absl::UnavailableError(
        "calls of the session's earlier connection have yet to end; ask again");
  }
  absl::Status begun = sessions_.BeginCall(id);
  if (!begun.ok()) return begun;
  // The client asks again if the answer is lost. No other call begins until this one is complete.
  (*session)->may_reconcile = true;
  (*session)->presence = Presence::kReturning;
  return absl::OkStatus();
}

Reconciliation::Statement::Statement(absl::Span<const LeaseId> leases,
                                     absl::Span<const uint64_t> requests)
    : leases_(leases.begin(), leases.end()),
      requests_(requests.begin(), requests.end()),
      kept_(leases.begin(), leases.end()),
      asked_(requests.begin(), requests.end()) {}

absl::StatusOr<bool> Reconciliation::Reconcile(SessionId session_id, Statement& it, size_t steps) {
  using Stage = Statement::Stage;
  absl::StatusOr<Session*> found = state_.LiveSession(session_id);
  if (!found.ok()) return found.status();
  Session& session = **found;
  if (!it.resumptions_) it.resumptions_ = session.resumptions;
  if (*it.resumptions_ != session.resumptions) {
    return absl::UnavailableError("the session's client has reconnected; ask again");
  }
  for (; it.stage_ == Stage::kNamed && steps > 0; --steps) {
    if (it.next_ == it.leases_.size()) {
      it.stage_ = Stage::kHeld;
      break;
    }
    const LeaseId lease = it.leases_[it.next_++];
    if (!session.leases.contains(lease)) it.unknown_.push_back(lease);
  }
  if (it.stage_ == Stage::kHeld) {
    std::vector<LeaseId> ended;
    auto lease = session.leases.lower_bound(it.lease_);
    for (; lease != session.leases.end() && steps > 0; ++lease, --steps) {
      it.lease_ = LeaseId{ToInt(*lease) + 1};
      const Lease& held = state_.leases.at(*lease);
      const uint64_t request = held.request_id;
      // The client may not have received the answers of its lost connection, either.
      const bool asked = request != 0 && it.asked_.contains(request);
      // The client does not know of these.
      if (held.tag == records::kOverheadTag) {
        ++it.mapped_[held.segment];
        continue;
      }
      if (asked) it.before_[request].push_back(*lease);
      if (!asked && !it.kept_.contains(*lease)) {
        if (!Mutant(Fault::kReconcileKeepsAll)) ended.push_back(*lease);
      } else if (!held.suspended) {
        ++it.mapped_[held.segment];
      }
    }
    if (lease == session.leases.end()) {
      it.stage_ = Stage::kAsked;
      it.next_ = 0;
      it.replaced_.swap(session.regrants);
    }
    auditor_.Released(session_id, ended, "its client has reconnected and does not have it");
    for (LeaseId each : ended) leases_.End(each, leases_.TrustsRelease(session, each));
  }
  for (; it.stage_ == Stage::kAsked && steps > 0; --steps) {
    if (it.next_ == it.requests_.size()) {
      session.regrants.swap(it.after_);
      // Segments that the process was being handed when the daemon ended: the client states that it
      // does not have them.
      const bool trusted = session.tenant->quota.release == ReleasePolicy::kTrust;
      it.stage_ = trusted && session.operations == 0 ? Stage::kMapped : Stage::kDone;
      break;
    }
    auto regrant = it.before_.find(it.requests_[it.next_++]);
    if (regrant == it.before_.end()) continue;
    it.after_.emplace(regrant->first, std::move(regrant->second));
    it.before_.erase(regrant);
  }
  if (it.stage_ == Stage::kMapped) {
    // Leases granted since kHeld, as for the driver's overhead; none is suspended yet.
    auto lease = session.leases.lower_bound(it.lease_);
    for (; lease != session.leases.end() && steps > 0; ++lease, --steps) {
      it.lease_ = LeaseId{ToInt(*lease) + 1};
      ++it.mapped_[state_.leases.at(*lease).segment];
    }
  }
  for (; it.stage_ == Stage::kMapped && steps > 0; --steps) {
    auto next = session.exposed.lower_bound(it.segment_);
    if (next == session.exposed.end()) {
      it.stage_ = Stage::kDone;
      break;
    }
    const SegmentId id = *next;
    it.segment_ = SegmentId{ToInt(id) + 1};
    Segment& segment = *state_.segments.at(id);
    if (segment.tenant->quota.release != ReleasePolicy::kTrust) continue;
    auto mapped = it.mapped_.find(id);
    const uint32_t has = mapped == it.mapped_.end() ? 0 : mapped->second;
    if (has == 0) {
      segments_.Unexpose(id, segment, session_id, /*all=*/true);
    } else if (uint32_t& times = segment.exposures.at(session_id); times > has) {
      times = has;
      changes_.Touch(session_id, id);
    }
    segments_.Settle(id, segment);
  }
  if (it.stage_ != Stage::kDone) return false;
  claims_.ReleaseUnless(
      session_id, [&](uint64_t request) { return it.asked_.contains(request); },
      "its client has reconnected and does not have it");
  session.presence = Presence::kHere;
  return true;
}

absl::StatusOr<std::vector<LeaseId>> Reconciliation::Reconcile(
    SessionId session, absl::Span<const LeaseId> leases, absl::Span<const uint64_t> requests) {
  Statement statement(leases, requests);
  absl::StatusOr<bool> done = Reconcile(session, statement, SIZE_MAX);
  if (!done.ok()) return done.status();
  return statement.TakeUnknown();
}

}  // namespace gpumemd
