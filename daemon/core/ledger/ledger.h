// SPDX-License-Identifier: Apache-2.0
// The broker's state machine: which session holds which memory, which tenant is charged for it, and
// which request may have more.
//
// It does no I/O, takes no lock, calls no driver and reads no clock but the one it is given. The
// Broker (broker.h) calls it under its mutex and does the rest. So a test can drive it through any
// interleaving, one step at a time (ledger/testing/model_test.cc).
//
// All parts work on one state (state.h). Each depends only on the parts before it:
//
//   segments         states of segments, and how they go back to the driver
//   tenants          quotas, and the hierarchy of tenants
//   made tenants     tenants that operators and sessions make at run time
//   sessions         sessions and their calls
//   attach waiters   sessions that wait for a publication
//   claims           which session loads contents that others wait for
//   publications     named lists of segments
//   leases           the right of a session to use a segment
//   operations       how sessions get leases, in two phases
//   revocations      memory taken back from its holders
//   admission        which request gets memory, waits or is refused
//   endings          how sessions end
//   events           interprocess events
//   reconciliation   what a client that has connected anew still has
//
// A segment is lost if the device reports that its memory can no longer be opened. Its leases go on
// until their holders release them, but it can no longer be opened and is never reused. A segment
// that another tenant has ever had open is never reused either: a process that kept its descriptor
// or handle would see the next holder's data.
//
// Each change is recorded for the next daemon (TakeChanges), which starts from that state
// (Restore).
//
// Invariants, checked by CheckInvariants():
//   - charges = bytes of all segments, for every tenant and device; never over capacity.
//   - a segment belongs to one tenant for life.
//   - no retained segment is lost, was ever given to another tenant, or comes from a pool.
//   - no segment is retained or releasing while a lease, an operation, or a process that
//     may still map it holds it.
//   - no segment is retained above its tenant's limits, for a tenant without live sessions, or
//     while draining.
//   - every lease has one live session, and so has every waiter.
//   - a publication holds its segments as a lease does, without a session. Only the end of the
//     publication ends that.
//   - contents that a session waits for are claimed by a live session of its tenant.
//   - a process holds firm leases or revocable ones.
//   - a tenant that has ended is still there only while it has something.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/admission/admission_control.h"
#include "daemon/core/admission/revocation.h"
#include "daemon/core/admission/room.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/driver/overheads.h"
#include "daemon/core/event/events.h"
#include "daemon/core/ids.h"
#include "daemon/core/journal/image.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/ledger/effects.h"
#include "daemon/core/ledger/endings.h"
#include "daemon/core/ledger/inspect/inspector.h"
#include "daemon/core/ledger/leases.h"
#include "daemon/core/ledger/made/made_tenants.h"
#include "daemon/core/ledger/operations.h"
#include "daemon/core/ledger/recovery/reconciliation.h"
#include "daemon/core/ledger/recovery/restore.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/ledger/sessions.h"
#include "daemon/core/ledger/state.h"
#include "daemon/core/ledger/tenants.h"
#include "daemon/core/publication/attach_waiters.h"
#include "daemon/core/publication/claims.h"
#include "daemon/core/publication/publications.h"
#include "daemon/core/suspension/exchange.h"
#include "daemon/core/suspension/suspension_requests.h"
#include "daemon/core/suspension/suspensions.h"
#include "daemon/core/suspension/swap_policy.h"
#include "daemon/device/device.h"

namespace gpumemd {

class Ledger {
 public:
  // Devices are identified by their index in `devices`. `now` gives the time for ages, `usage` that
  // for byte-seconds (admission/usage.h); empty: `now`.
  Ledger(std::vector<DeviceInfo> devices, Bounds bounds, std::function<absl::Time()> now,
         UsageClock usage = nullptr)
      : base_{.state{std::move(devices), bounds, std::move(now), std::move(usage)}} {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // The parts. Each is valid for the ledger's lifetime.
  Segments& segments() { return segments_; }
  Tenants& tenants() { return tenants_; }
  const Tenants& tenants() const { return tenants_; }
  MadeTenants& made_tenants() { return made_tenants_; }
  Sessions& sessions() { return sessions_; }
  Publications& publications() { return publications_; }
  const Publications& publications() const { return publications_; }
  Leases& leases() { return leases_; }
  Suspensions& suspensions() { return suspensions_; }
  Exchanges& exchanges() { return exchanges_; }
  SuspensionRequests& suspension_requests() { return suspension_requests_; }
  SwapPolicy& swaps() { return swaps_; }
  const SwapPolicy& swaps() const { return swaps_; }
  Operations& operations() { return operations_; }
  Overheads& overheads() { return overheads_; }
  Revocations& revocations() { return revocations_; }
  const Revocations& revocations() const { return revocations_; }
  AdmissionControl& admission() { return admission_; }
  const AdmissionControl& admission() const { return admission_; }
  Endings& endings() { return endings_; }
  const Endings& endings() const { return endings_; }
  Events& events() { return events_; }
  Reconciliation& reconciliation() { return reconciliation_; }

  // Return the state, and an inspector that answers questions about it. Both are valid for the
  // ledger's lifetime.
  const LedgerState& state() const { return base_.state; }
  Inspector look() const { return Inspector(&base_.state); }
  // Returns what changes have led to. The caller takes each list (Drain) and acts on it.
  Effects& effects() { return base_.effects; }

  // Opens a session.
  //   UNAVAILABLE         the daemon drains
  //   RESOURCE_EXHAUSTED  the tenant, the user or the daemon has too many
  absl::StatusOr<SessionId> OpenSession(absl::string_view tenant, SessionDetails details,
                                        const Secret& token);
  // Ends the charge of a doomed segment whose memory the driver has back.
  void Destroyed(SegmentId segment) { tenants_.ForgetIfIdle(segments_.Destroyed(segment)); }
  // While draining, new sessions and operations are refused with UNAVAILABLE. Suspended leases can
  // be resumed.
  void SetDraining(bool draining);
  // Drains for good, and refuses resumptions, too.
  void Close();
  // Replaces all known uses of memory past the broker with `uses`. They count against no limit, but
  // may deny their tenant new memory. A session's uses go with it.
  void SetUnbrokered(std::vector<UnbrokeredBytes> uses);

  // Sets the sink for records of sessions, grants, releases, publications, and lost, revoked and
  // reclaimed memory. `sink` must outlive this; null records nothing.
  void SetAudit(AuditSink* sink) { base_.auditor.SetSink(sink); }

  // --- What outlives the daemon

  // Records all later changes for TakeChanges.
  void KeepChanges() { base_.changes.Keep(&base_.state); }
  // Returns the changes since the last call: one batch of the journal. A batch takes the state from
  // one consistent state to the next.
  std::vector<journal::Change> TakeChanges() { return base_.changes.Take(base_.state); }
  // Returns the whole state: the sum of all that TakeChanges would ever have returned.
  JournalImage Image() const { return ImageOf(base_.state); }
  // Restores the state that an earlier daemon's journal describes. Call it once, after
  // Tenants::Configure, on a ledger without sessions. Waiters and operations are not remembered: a
  // process that was being handed a segment counts as one that may map it.
  Restored Restore(const JournalImage& image, const Survivors& survivors);

  // Returns INTERNAL with a sentence that names the first violated invariant.
  absl::Status CheckInvariants() const;

 private:
  LedgerBase base_;
  const Room room_{&base_.state};
  Segments segments_{&base_};
  Tenants tenants_{&base_, &segments_};
  MadeTenants made_tenants_{&base_, &segments_, &tenants_};
  Sessions sessions_{&base_, &tenants_};
  AttachWaiters attach_waiters_{&base_};
  ContentClaims claims_{&base_, &attach_waiters_};
  Publications publications_{&base_, &segments_, &sessions_, &attach_waiters_, &claims_};
  Leases leases_{&base_, &segments_, &publications_};
  Suspensions suspensions_{&base_, &room_, &segments_, &leases_};
  Exchanges exchanges_{&base_};
  SuspensionRequests suspension_requests_{&base_, &suspensions_};
  SwapPolicy swaps_{&base_, &room_, &suspensions_, &suspension_requests_};
  Operations operations_{&base_,   &segments_,     &sessions_,   &attach_waiters_,
                         &claims_, &publications_, &suspensions_};
  Overheads overheads_{&base_, &leases_, &operations_};
  Revocations revocations_{&base_, &room_};
  AdmissionControl admission_{&base_,       &room_,        &segments_, &tenants_,
                              &operations_, &suspensions_, &swaps_,    &revocations_};
  Endings endings_{&base_,   &segments_,     &made_tenants_, &sessions_, &attach_waiters_,
                   &claims_, &publications_, &suspensions_,  &leases_,   &admission_};
  Events events_{&base_, &sessions_};
  Reconciliation reconciliation_{&base_, &segments_, &sessions_, &claims_, &leases_};
};

}  // namespace gpumemd
