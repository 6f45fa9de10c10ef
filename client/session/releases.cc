// How a session gives back leases and events, at once or later.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/session/lease_book.h"
#include "client/session/session.h"
#include "client/session/session_calls.h"
#include "common/failpoint.h"

namespace gpumem::internal {
namespace {

// The maximum time that a destructor waits for a restarted daemon to resume the session.
constexpr absl::Duration kResumePatience = absl::Milliseconds(100);

// True if leases may still be held after a release with that status. All other statuses are final:
// the leases have ended, now, before, or with the session.
bool MayStillHold(const absl::Status& release) {
  return absl::IsDeadlineExceeded(release) || absl::IsResourceExhausted(release) ||
         absl::IsUnavailable(release);
}

}  // namespace

absl::Status Session::Release(std::vector<uint64_t> lease_ids, absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  LeaseBook::Debt debt = book_.GiveUp(lease_ids);
  while (!debt.empty()) {
    const absl::StatusOr<ConnectionPtr> connection = reconnector_.Get(deadline);
    if (!connection.ok()) {
      book_.Owe(std::move(debt));
      return connection.status();
    }
    // A caller that does not wait for an absent daemon does wait for a running one.
    const absl::Time answered_by = std::max(deadline, absl::Now() + kPatience);
    PayOwed(**connection, std::min(answered_by, absl::Now() + kPatience));
    // A statement has told the daemon meanwhile that they are no longer held.
    if ((*connection)->statement() > debt.statement) break;
    absl::Status status = Pay(**connection, debt, answered_by);
    if (HasEnded(**connection, status)) continue;
    if (MayStillHold(status)) book_.Owe(std::move(debt));
    return status;
  }
  return absl::OkStatus();
}

void Session::Forget(std::vector<uint64_t> lease_ids) {
  if (forked()) return;  // the leases are the parent's
  book_.Owe(book_.GiveUp(lease_ids));
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kResumePatience);
  if (connection.ok()) PayOwed(**connection, absl::Now() + kPatience);
}

absl::StatusOr<v1::UnregisterIpcEventResponse> Session::UnregisterIpcEvent(uint64_t event_id) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kResumePatience);
  absl::StatusOr<v1::UnregisterIpcEventResponse> response =
      connection.ok() ? UnregisterOnce(**connection, event_id, absl::Now() + kPatience)
                      : connection.status();
  if (MayStillHold(response.status())) {
    absl::MutexLock lock(&mutex_);
    owed_events_.push_back(event_id);
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

absl::Status Session::Pay(Connection& connection, const LeaseBook::Debt& debt,
                          absl::Time deadline) {
  absl::Status paid = ReleaseOnce(connection, debt, deadline);
  // A lease that the restarted daemon did not know has ended.
  if (!absl::IsNotFound(paid) || connection.statement() == 0) return paid;
  // All or none failed: retries them one by one.
  absl::Status others;
  for (const uint64_t id : debt.lease_ids) {
    if (debt.lease_ids.size() == 1) break;
    absl::Status status =
        ReleaseOnce(connection, {.lease_ids = {id}, .statement = debt.statement}, deadline);
    if (!absl::IsNotFound(status)) others.Update(status);
  }
  return others;
}

absl::Status Session::ReleaseOnce(Connection& connection, const LeaseBook::Debt& debt,
                                  absl::Time deadline) {
  v1::ReleaseRequest request;
  request.mutable_lease_ids()->Add(debt.lease_ids.begin(), debt.lease_ids.end());
  request.mutable_request_ids()->Add(debt.request_ids.begin(), debt.request_ids.end());
  Failpoint("client-release-asks");
  absl::Status status = Call(connection, &v1::Broker::Stub::Release, request, deadline).status();
  Failpoint("client-release-heard");
  return status;
}

void Session::PayOwed(Connection& connection, absl::Time deadline) {
  for (std::vector<uint64_t>& abandoned : connection.deliveries().TakeAbandoned()) {
    // They were never held: the daemon's next statement would end them, but there may be none.
    book_.Owe({.lease_ids = std::move(abandoned), .statement = connection.statement()});
  }
  std::vector<uint64_t> events;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Now() < pay_after_) return;
    events.swap(owed_events_);
  }
  while (!events.empty()) {
    if (MayStillHold(UnregisterOnce(connection, events.back(), deadline).status())) break;
    events.pop_back();
  }
  std::vector<LeaseBook::Debt> owed = book_.TakeOwed(connection.statement());
  while (!owed.empty()) {
    if (MayStillHold(Pay(connection, owed.back(), deadline))) break;
    owed.pop_back();
  }
  if (owed.empty() && events.empty()) return;
  for (LeaseBook::Debt& debt : owed) book_.Owe(std::move(debt));
  const bool ended = connection.ended();  // then the next daemon must be asked
  absl::MutexLock lock(&mutex_);
  owed_events_.insert(owed_events_.end(), events.begin(), events.end());
  if (ended) return;
  pay_after_ = absl::Now() + kPatience;
}

}  // namespace gpumem::internal
