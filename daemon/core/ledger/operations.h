// SPDX-License-Identifier: Apache-2.0
// Operations: how sessions get leases.
//
// Memory moves in two phases. Creating a segment and sending a file descriptor take time and can
// fail, and no lock is held meanwhile:
//
//   BeginOpen, BeginAttach, Grant   charge, pin the segments, name the leases
//     … the caller creates fresh segments and sends the descriptors …
//   Commit                          the leases are live
//   Abort                           everything is as before
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/ledger/sessions.h"
#include "daemon/core/publication/attach_waiters.h"
#include "daemon/core/publication/claims.h"
#include "daemon/core/publication/publications.h"
#include "daemon/core/suspension/suspensions.h"

namespace gpumemd {

class Operations {
 public:
  // All must outlive this.
  Operations(LedgerBase* base, Segments* segments, Sessions* sessions,
             AttachWaiters* attach_waiters, ContentClaims* claims, Publications* publications,
             Suspensions* suspensions)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        effects_(base->effects),
        segments_(*segments),
        sessions_(*sessions),
        attach_waiters_(*attach_waiters),
        claims_(*claims),
        publications_(*publications),
        suspensions_(*suspensions) {}

  // Returns an operation on the segments behind the tickets.
  //   ABORTED              the session has ended
  //   UNAVAILABLE          the daemon drains
  //   INVALID_ARGUMENT     none or too many tickets
  //   NOT_FOUND            no lease stands behind a ticket
  //   PERMISSION_DENIED    a ticket is for sessions of another tenant
  //   FAILED_PRECONDITION  a segment is lost, suspended, is being taken back, or is revocable and
  //                        `revocable` is false; or the process holds leases of the other type
  //   RESOURCE_EXHAUSTED   too many leases
  absl::StatusOr<Operation> BeginOpen(SessionId session, absl::Span<const Secret> tickets,
                                      bool revocable = false, uint64_t request_id = 0);

  // Returns an operation on all segments of the publication, or a waiter if spec.version does not
  // exist yet, or the publication if its segments are in the tier, or on their way. With
  // spec.claims, the waiter or the claim on its contents, if they are not published. The waiter's
  // call counts as waiting, not as in flight. If `steps` is less than the number of segments,
  // Expose must do the others before any descriptor is handed over.
  absl::StatusOr<Admission> BeginAttach(SessionId session, const AttachSpec& spec,
                                        size_t steps = SIZE_MAX);
  // Counts up to `steps` more of the operation's segments as mappable by the session's process.
  //   ABORTED  the session has ended
  absl::Status Expose(Operation& operation, size_t steps);

  // Returns an operation on the reused segments, and on as many fresh ones as the request lacks. It
  // has been checked that they fit.
  Operation Grant(SessionId session, const records::Request& request,
                  std::vector<SegmentId> reused);
  // Returns an operation that brings the suspended leases of request.resumes back, or the suspended
  // segments of request.publication on request.device (operation_resumes.cc). It has been checked
  // that they fit. Only the latter may be without a session.
  Operation GrantResume(SessionId session, const records::Request& request);

  // Makes the operation's leases live.
  //   ABORTED  the session has ended; what its process was sent lingers until it is gone
  absl::Status Commit(const Operation& operation);
  // `handed_over`: descriptors may have reached the session's process.
  void Abort(const Operation& operation, bool handed_over);
  // Do the same for about `steps` leases in each call, for callers that release the mutex between
  // calls. Start with a `next` of 0, and repeat until the result is true.
  absl::StatusOr<bool> Commit(const Operation& operation, size_t& next, size_t steps);
  bool Abort(const Operation& operation, bool handed_over, size_t& next, size_t steps);

  // Returns how to make a fresh segment of an operation. Created() records that its memory exists.
  CreateSpec Creation(const Operation& operation, const Operation::Item& item) const;
  void Created(SegmentId segment);
  // Dooms retained segments because the driver had no memory for `bytes` on the device. Takes those
  // of the session's tenant first. False if no segment is retained or releasing there.
  bool MakeRoomOnDevice(SessionId session, size_t device, uint64_t bytes);
  // The driver had no memory for `bytes` on the device, although the charges leave room for them:
  // processes that the ledger does not know hold it. Until ForgetElsewhere() requests find less
  // room there than that.
  void NoteElsewhere(size_t device, uint64_t bytes);
  void ForgetElsewhere();
  // Returns a denial by the driver, counted like any other.
  absl::Status DriverDenial(SessionId session, size_t device, uint64_t bytes,
                            absl::string_view driver_says);

 private:
  using Process = records::Process;
  using Publication = records::Publication;
  using Request = records::Request;
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;
  using TicketEntry = records::TicketEntry;
  using ProcessKey = LedgerState::ProcessKey;

  void Pin(Operation& operation, Session& session, size_t steps = SIZE_MAX);
  void Expose(Operation& operation, Session& session, size_t steps);
  void StopArriving(Session& session, bool ended);
  // Returns null for an operation of an operator.
  Session* SessionOf(const Operation& operation) {
    return operation.session == SessionId{} ? nullptr : state_.sessions.at(operation.session).get();
  }
  // Counts an operation of the session, or of an operator, as ended.
  void EndOperation(Session* session);
  // Charges a segment on the device from which the contents of one in the tier came, and marks
  // these as being copied.
  SegmentId ChargeFresh(SegmentId tier, bool revocable);
  // Ends the suspension of an item's lease. Returns how many leases moved with it.
  size_t CommitResumed(SessionId session, const Operation::Item& item);

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  Effects& effects_;
  Segments& segments_;
  Sessions& sessions_;
  AttachWaiters& attach_waiters_;
  ContentClaims& claims_;
  Publications& publications_;
  Suspensions& suspensions_;
};

}  // namespace gpumemd
