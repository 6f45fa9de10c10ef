// SPDX-License-Identifier: Apache-2.0
// How a session gives back leases and events, at once or later.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/session/lease_book.h"
#include "client/session/session.h"
#include "common/failpoint.h"
#include "common/grpc_status.h"

namespace gpumem::internal {
namespace {

// The maximum time that a destructor waits for a restarted daemon to resume the session.
constexpr absl::Duration kResumeTimeout = absl::Milliseconds(100);

}  // namespace

absl::Status Session::Release(std::vector<uint64_t> lease_ids, absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  return ReleasePending(book_.GiveUp(lease_ids), deadline);
}

absl::Status Session::ReleasePending(LeaseBook::PendingRelease pending, absl::Time deadline) {
  while (!pending.empty()) {
    const absl::StatusOr<ConnectionPtr> connection = reconnector_.Get(deadline);
    if (!connection.ok()) {
      book_.AddPending(std::move(pending));
      return connection.status();
    }
    // A caller that does not wait for an absent daemon does wait for a running one.
    const absl::Time answered_by = std::max(deadline, absl::Now() + kTimeout);
    FlushPending(**connection, std::min(answered_by, absl::Now() + kTimeout));
    // A statement has told the daemon meanwhile that they are no longer held.
    if ((*connection)->statement() > pending.statement) break;
    absl::Status status = Flush(**connection, pending, answered_by);
    if (HasEnded(**connection, status)) continue;
    if (MayStillHold(status)) book_.AddPending(std::move(pending));
    return status;
  }
  return absl::OkStatus();
}

void Session::Forget(std::vector<uint64_t> lease_ids) {
  if (forked()) return;  // the leases are the parent's
  book_.AddPending(book_.GiveUp(lease_ids));
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kResumeTimeout);
  if (connection.ok()) FlushPending(**connection, absl::Now() + kTimeout);
}

Session::~Session() {
  flusher_.Stop();
  // First, since memory stays charged to a process that has closed its socket.
  SendReleases();
}

void Session::ForgetSoon(std::vector<uint64_t> lease_ids, uint64_t bytes) {
  if (forked()) return;  // the leases are the parent's
  const size_t count = lease_ids.size();
  book_.AddPending(book_.GiveUp(lease_ids));
  if (!flusher_.Start()) return Forget({});
  releases_.Add(count, bytes);
}

void Session::SendReleases() {
  std::optional<ReleaseQueue::Flush> flush = releases_.TakeAll(absl::Now() + kTimeout);
  if (!flush.has_value()) return;
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kResumeTimeout);
  // With the session all its leases have ended.
  flush->Done(connection.ok() ? FlushAll(**connection, absl::Now() + kTimeout)
                              : !MayComeBack(connection.status()));
}

absl::StatusOr<v1::UnregisterIpcEventResponse> Session::UnregisterIpcEvent(uint64_t event_id) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kResumeTimeout);
  absl::StatusOr<v1::UnregisterIpcEventResponse> response =
      connection.ok() ? UnregisterOnce(**connection, event_id, absl::Now() + kTimeout)
                      : connection.status();
  if (MayStillHold(response.status())) {
    absl::MutexLock lock(&mutex_);
    pending_events_.push_back(event_id);
  }
  return response;
}

absl::StatusOr<v1::UnregisterIpcEventResponse> Session::UnregisterOnce(Connection& connection,
                                                                       uint64_t event_id,
                                                                       absl::Time deadline) {
  v1::UnregisterIpcEventRequest request;
  request.set_event_id(event_id);
  return Call(connection, &v1::Broker::Stub::UnregisterIpcEvent, request, deadline);
}

absl::Status Session::ReleaseClaim(uint64_t request, absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  return ReleasePending(book_.GiveUpClaim(request), deadline);
}

void Session::ForgetClaim(uint64_t request) {
  if (forked()) return;  // the claim is the parent's
  book_.AddPending(book_.GiveUpClaim(request));
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kResumeTimeout);
  if (connection.ok()) FlushPending(**connection, absl::Now() + kTimeout);
}

absl::Status Session::Flush(Connection& connection, const LeaseBook::PendingRelease& pending,
                            absl::Time deadline) {
  absl::Status paid = ReleaseOnce(connection, pending, deadline);
  // A lease that the restarted daemon did not know has ended.
  if (!absl::IsNotFound(paid) || connection.statement() == 0) return paid;
  return ReleaseKnown(connection, pending, deadline);
}

absl::Status Session::ReleaseKnown(Connection& connection, const LeaseBook::PendingRelease& pending,
                                   absl::Time deadline) {
  // All or none failed: tries the halves.
  const std::vector<uint64_t>& ids = pending.lease_ids;
  if (ids.size() <= 1) return absl::OkStatus();
  const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(ids.size() / 2);
  absl::Status status;
  for (const LeaseBook::PendingRelease& half :
       {LeaseBook::PendingRelease{.lease_ids = {ids.begin(), middle},
       .request_ids = pending.request_ids,
       .claims = {},
       .statement = pending.statement},
        LeaseBook::PendingRelease{.lease_ids = {middle, ids.end()},
        .request_ids = {},
        .claims = {},
        .statement = pending.statement}}) {
    absl::Status released = ReleaseOnce(connection, half, deadline);
    if (absl::IsNotFound(released)) released = ReleaseKnown(connection, half, deadline);
    status.Update(released);
  }
  return status;
}

absl::Status Session::ReleaseOnce(Connection& connection, const LeaseBook::PendingRelease& pending,
                                  absl::Time deadline) {
  for (const uint64_t claim : pending.claims) {
    v1::ReleaseClaimRequest request;
    request.set_request_id(claim);
    absl::Status status =
        Call(connection, &v1::Broker::Stub::ReleaseClaim, request, deadline).status();
    if (!status.ok()) return status;
  }
  if (pending.lease_ids.empty() && pending.request_ids.empty()) return absl::OkStatus();
  const v1::ReleaseRequest request = ToRequest(pending);
  Failpoint("client-release-asks");
  std::optional<absl::Status> status = ReleaseOnLane(connection, request, deadline);
  if (!status) status = Call(connection, &v1::Broker::Stub::Release, request, deadline).status();
  Failpoint("client-release-heard");
  return *status;
}

void Session::FlushPending(Connection& connection, absl::Time deadline, CarriedRelease* carried) {
  // Waits for a flush in progress: the daemon must know of all earlier releases.
  std::optional<ReleaseQueue::Flush> flush = releases_.TakeAll(deadline);
  const bool sent =
      FlushAll(connection, deadline, carried == nullptr ? nullptr : &carried->release);
  if (!flush.has_value()) return;
  if (carried == nullptr || carried->release.empty()) return flush->Done(sent);
  carried->flush.emplace(*std::move(flush));
  carried->others_sent = sent;
}

void Session::SettleCarried(Connection& connection, CarriedRelease carried,
                            const v1::SessionResponse* answer, absl::Time deadline) {
  if (carried.release.empty()) return;
  absl::Status status;
  if (answer == nullptr) {
    status = Flush(connection, carried.release, deadline);
  } else if (answer->number() == 0) {
    status = absl::UnavailableError("no answer");
  } else if (answer->has_release_status()) {
    status = FromGrpcStatus(FromStatusDetails(answer->release_status()));
  }
  if (absl::IsNotFound(status)) status = ReleaseKnown(connection, carried.release, deadline);
  const bool sent = !MayStillHold(status);
  if (!sent) book_.AddPending(std::move(carried.release));
  if (carried.flush.has_value()) carried.flush->Done(sent && carried.others_sent);
}

bool Session::FlushAll(Connection& connection, absl::Time deadline,
                       LeaseBook::PendingRelease* carried) {
  for (std::vector<uint64_t>& abandoned : connection.deliveries().TakeAbandoned()) {
    // A Resume without a caller: its leases are held, suspended or not.
    book_.DropHeld(&abandoned);
    // The others were never held: the daemon's next statement would end them, but there may be
    // none.
    book_.AddPending({.lease_ids = std::move(abandoned),
                      .request_ids = {},
                      .claims = {},
                      .statement = connection.statement()});
  }
  const absl::Time start = absl::Now();
  std::vector<uint64_t> events;
  {
    absl::MutexLock lock(&mutex_);
    if (start < flush_after_) return false;
    events.swap(pending_events_);
  }
  while (!events.empty()) {
    if (MayStillHold(UnregisterOnce(connection, events.back(), deadline).status())) break;
    events.pop_back();
  }
  std::vector<LeaseBook::PendingRelease> due = book_.TakePending(connection.statement());
  if (carried != nullptr && due.size() == 1 && due.front().claims.empty()) {
    *carried = std::move(due.front());
    due.clear();
  }
  while (!due.empty()) {
    absl::Status flushed = Flush(connection, due.back(), deadline);
    // A lease that has ended must not keep the others.
    if (absl::IsNotFound(flushed)) flushed = ReleaseKnown(connection, due.back(), deadline);
    if (MayStillHold(flushed)) break;
    due.pop_back();
  }
  const bool sent = due.empty() && !book_.HasPendingAfter(connection.statement());
  if (due.empty() && events.empty()) return sent;
  for (LeaseBook::PendingRelease& pending : due) book_.AddPending(std::move(pending));
  const bool ended = connection.ended();  // then the next daemon must be asked
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  pending_events_.insert(pending_events_.end(), events.begin(), events.end());
  // A caller of little patience says nothing about the daemon.
  if (!ended && now >= start + kTimeout) flush_after_ = now + kTimeout;
  return sent;
}

}  // namespace gpumem::internal
