// SPDX-License-Identifier: Apache-2.0
// Decides on requests for memory: grants, queues or refuses them.
//
// A request waits if it does not fit now, but soon or, if it asks to wait, later (wait_queue.h has
// the order):
//
//   BeginAcquire   → a waiter instead of an operation.
//     … others release; AdmitWaiting() returns the granted and the refused waiters.
//   EndWait        removes a waiter that has waited long enough.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/admission/revocation.h"
#include "daemon/core/admission/room.h"
#include "daemon/core/admission/wait_queue.h"
#include "daemon/core/denial.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/operations.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/suspension/suspensions.h"
#include "daemon/core/suspension/swap_policy.h"

namespace gpumemd {

class AdmissionControl {
 public:
  // All must outlive this.
  AdmissionControl(LedgerBase* base, const Room* room, Segments* segments, Tenants* tenants,
                   Operations* operations, const Suspensions* suspensions, SwapPolicy* swaps,
                   Revocations* revocations)
      : state_(base->state),
        room_(*room),
        segments_(*segments),
        operations_(*operations),
        suspensions_(*suspensions),
        swaps_(*swaps),
        revocations_(*revocations),
        queue_(&base->state, room, tenants) {}

  // Returns an operation, or a waiter. A request waits if it would fit once memory on its way back
  // has arrived. With spec.waits, it also waits for memory that others hold. Such a call counts as
  // waiting, not as in flight.
  absl::StatusOr<Admission> BeginAcquire(SessionId session, const AcquireSpec& spec);

  // Returns an operation that brings the segments of a suspended publication back to one of their
  // devices, for an operator. It gets nothing that a waiter before it waits for.
  //   RESOURCE_EXHAUSTED  it does not fit now; not counted as a denial
  //   UNAVAILABLE         the daemon drains
  //   and as Suspensions::TermsOf
  absl::StatusOr<Operation> BeginResume(PublicationId publication);

  // Returns the waiters that were granted or refused since the last call. Call it after each change
  // to the ledger. Their calls are in flight again. Stops after `max_grants` grants or
  // `max_checked` checked waiters; the next call continues (QueueMoves). Refuses:
  // - Waiters whose session has ended (ABORTED).
  // - All waiters but resumptions while draining (UNAVAILABLE).
  // - With the denial, a waiter whose turn it is and whose session has too many leases by now.
  // - With the denial, a waiter that did not ask to wait, once its request no longer looks as if it
  //   would fit soon.
  struct Admitted {
    WaiterId waiter{};
    absl::StatusOr<Operation> operation;
  };
  std::vector<Admitted> AdmitWaiting(size_t max_grants = SIZE_MAX, size_t max_checked = SIZE_MAX);
  // True if AdmitWaiting may have something to return.
  bool QueueMoves() const { return !refused_.empty() || queue_.Moves(); }

  // Removes the waiter; its call is in flight again. Returns the present denial if the wait has
  // `expired`, or CANCELLED if its client is gone.
  absl::Status EndWait(WaiterId waiter, bool expired);
  // Ends several waits that have expired, as EndWait does. Each waiter gets the denial as it was
  // before this call.
  std::vector<absl::Status> EndExpiredWaits(absl::Span<const WaiterId> waiters);
  // Refuses all waiters of a session that has ended. AdmitWaiting() returns them.
  void RefuseWaitersOf(records::Session& session);
  // No session is ending any more. Waiters that do not fit yet were not refused meanwhile, and no
  // memory was revoked for them.
  void EndingsDone() { queue_.WakeAwaitingEnd(); }

  // Lets SwapPolicy act on the time, and checks the waiters again that this may serve. Due at
  // NextSwap.
  void RunSwaps();
  absl::Time NextSwap() const { return swaps_.NextDue(queue_.AwaitsSuspension()); }

  // Returns the denial of a waiter for which others would have to make room, or nothing if the
  // memory is on its way back already.
  std::optional<Denial> BlockedBy(WaiterId waiter) const;
  // True if BlockedBy() has a value. Builds no text.
  bool IsBlocked(WaiterId waiter) const;
  // Returns waiters by device, and for each device in the order in which they are served.
  //   NOT_FOUND  no such tenant or device
  absl::StatusOr<std::vector<WaiterView>> ListWaiting(absl::string_view tenant,
                                                      absl::string_view device) const;
  // Returns how often AdmitWaiting has checked a waiter: the queue's cost.
  uint64_t checked() const { return checked_; }
  // As Room::looks().
  uint64_t looks() const { return room_.looks(); }
  absl::Status CheckInvariants() const { return queue_.CheckInvariants(); }

 private:
  using Request = records::Request;
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;
  using Waiter = records::Waiter;

  // Returns the request that a spec makes, once all is checked but its room.
  absl::StatusOr<Request> RequestOf(SessionId session, const AcquireSpec& spec) const;
  // The same for a spec that brings suspended leases back.
  absl::StatusOr<Request> ResumeRequestOf(SessionId session,
                                          absl::Span<const LeaseId> leases) const;
  absl::StatusOr<Request> ResumeRequestOf(PublicationId publication) const;
  // Returns OK if a waiting request to bring memory back is still as it came.
  absl::Status CheckResume(SessionId session, const Request& request) const;
  // A request that is being checked.
  struct Asker {
    SessionId session{};
    const Request& request;
    bool waits = false;      // for memory that others hold
    absl::Time& swap_until;  // as of its waiter
  };
  // Grants the request if it fits now; else sets `decision`.
  //   RESOURCE_EXHAUSTED  it fits now, and would be too many leases
  absl::StatusOr<std::optional<Operation>> TryGrant(const Asker& asker, const Claims& claims,
                                                    Decision* decision);
  // Asks sessions to suspend for the request. True if it is expected to fit once they have.
  bool AwaitsSuspensions(const Asker& asker, const Claims& claims, Decision& decision);
  // Checks one waiter, and grants it, refuses it or lets it wait. True if it was granted.
  bool CheckOne(const QueuePlace& place, std::vector<Admitted>& admitted);
  // Returns the limits in the way of a waiter, as Room::Explain, and that sessions are asked to
  // suspend for it before anything is revoked.
  Denial Explain(const Waiter& waiter, const Decision& decision) const;
  // Visits each waiter and its decision in that order.
  void CheckWaiters(absl::FunctionRef<void(WaiterId, const Waiter&, Decision&)> visit) const;

  LedgerState& state_;
  const Room& room_;
  Segments& segments_;
  Operations& operations_;
  const Suspensions& suspensions_;
  SwapPolicy& swaps_;
  Revocations& revocations_;
  WaitQueue queue_;
  std::vector<std::pair<WaiterId, absl::Status>> refused_;  // whose session has ended
  uint64_t checked_ = 0;
};

}  // namespace gpumemd
