// SPDX-License-Identifier: Apache-2.0
// How a session gives back leases and events, at once or later.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/session/lease_book.h"
#include "client/session/session.h"
#include "common/failpoint.h"

namespace gpumem::internal {
namespace {

// The maximum time that a destructor waits for a restarted daemon to resume the session.
constexpr absl::Duration kResumeTimeout = absl::Milliseconds(100);

// True if leases may still be held after a release with that status. All other statuses are final:
// the leases have ended, now, before, or with the session.
bool MayStillHold(const absl::Status& release) {
  return absl::IsDeadlineExceeded(release) || absl::IsResourceExhausted(release) ||
         absl::IsUnavailable(release);
}

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
  // All or none failed: retries them one by one.
  absl::Status others;
  for (const uint64_t id : pending.lease_ids) {
    if (pending.lease_ids.size() == 1) break;
    absl::Status status = ReleaseOnce(
        connection,
        {.lease_ids = {id}, .request_ids = {}, .claims = {}, .statement = pending.statement},
        deadline);
    if (!absl::IsNotFound(status)) others.Update(status);
  }
  return others;
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
  v1::ReleaseRequest request;
  request.mutable_lease_ids()->Add(pending.lease_ids.begin(), pending.lease_ids.end());
  request.mutable_request_ids()->Add(pending.request_ids.begin(), pending.request_ids.end());
  Failpoint("client-release-asks");
  absl::Status status = Call(connection, &v1::Broker::Stub::Release, request, deadline).status();
  Failpoint("client-release-heard");
  return status;
}

void Session::FlushPending(Connection& connection, absl::Time deadline) {
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
  std::vector<uint64_t> events;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Now() < flush_after_) return;
    events.swap(pending_events_);
  }
  while (!events.empty()) {
    if (MayStillHold(UnregisterOnce(connection, events.back(), deadline).status())) break;
    events.pop_back();
  }
  std::vector<LeaseBook::PendingRelease> due = book_.TakePending(connection.statement());
  while (!due.empty()) {
    if (MayStillHold(Flush(connection, due.back(), deadline))) break;
    due.pop_back();
  }
  if (due.empty() && events.empty()) return;
  for (LeaseBook::PendingRelease& pending : due) book_.AddPending(std::move(pending));
  const bool ended = connection.ended();  // then the next daemon must be asked
  absl::MutexLock lock(&mutex_);
  pending_events_.insert(pending_events_.end(), events.begin(), events.end());
  if (ended) return;
  flush_after_ = absl::Now() + kTimeout;
}

}  // namespace gpumem::internal
