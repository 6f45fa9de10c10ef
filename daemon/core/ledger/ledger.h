// The broker's state machine: which session holds which memory, which tenant is charged for it, and
// which request may have more.
//
// It does no I/O, takes no lock, calls no driver and reads no clock but the one it is given. The
// Broker (broker.h) calls it under its mutex and does the rest. So a test can drive it through any
// interleaving, one step at a time (ledger/testing/model_test.cc).
//
// Memory moves in two-phase operations. Creating a segment and sending a file descriptor take time
// and can fail, and no lock is held meanwhile:
//
//   BeginAcquire / BeginOpen   checks, charges, pins the segments, names the leases
//     … the caller creates fresh segments and sends the descriptors …
//   Commit                     the leases are live
//   Abort                      everything is as before
//
// A segment is lost if the device reports that its memory can no longer be opened (MarkLost). Its
// leases go on until their holders release them, but it can no longer be opened and is never
// reused. A segment that another tenant has ever had open is never reused either: a process that
// kept its descriptor or handle would see the next holder's data.
//
// A request waits if it does not fit now, but soon or, if it asks to wait, later
// (admission/queue.cc):
//
//   BeginAcquire   → a waiter instead of an operation.
//     … others release; AdmitWaiting() returns the granted and the refused waiters.
//   EndWait        removes a waiter that has waited long enough.
//
// Memory leased as revocable can be taken back for requests that go first
// (admission/revocation.cc).
//
// A publication is a named list of segments that outlives its publisher. Attaching to it is an
// operation like opening (publication/publications.cc).
//
// A segment without leases is in one of these states:
// - Kept for reuse (retained).
// - Charged until the processes that may still map it are gone (lingering).
// - Doomed: TakeDoomed() returns it, to be given back to the driver, and Destroyed() ends its
//   charge.
//
// A segment from a memory pool lingers until all processes that may have the pool open are gone
// (pools.cc).
//
// Each change is recorded for the next daemon (TakeChanges in change_log.cc), which starts from
// that state (Restore in restore.cc).
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
//   - a process holds firm leases or revocable ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/admission/account.h"
#include "daemon/core/admission/queue_line.h"
#include "daemon/core/admission/room.h"
#include "daemon/core/admission/standing.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/denial.h"
#include "daemon/core/identity/rules.h"
#include "daemon/core/ids.h"
#include "daemon/core/journal/image.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/ledger/change_log.h"
#include "daemon/core/ledger/inspect/auditor.h"
#include "daemon/core/ledger/inspect/inspector.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/retained_pool.h"
#include "daemon/core/ledger/state.h"
#include "daemon/core/quota/quota.h"
#include "daemon/device/device.h"

namespace gpumemd {

class Ledger {
 public:
  // Devices are identified by their index in `devices`. `now` gives the time for ages.
  Ledger(std::vector<DeviceInfo> devices, Bounds bounds, std::function<absl::Time()> now);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Return the state, and an inspector that answers questions about it. Both are valid for the
  // ledger's lifetime.
  const LedgerState& state() const { return state_; }
  Inspector look() const { return Inspector(&state_); }

  // --- Tenants ---------------------------------------------------------------------

  // Sets the configured tenants, and the quota of tenants that rules make at run time. Takes effect
  // at once and revokes no lease. `overridden`: an operator's quotas for tenants, configured or
  // not. They take precedence over the configuration, and these tenants exist once this returns.
  void Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                 const std::map<std::string, Quota>& overridden = {});

  // Check a quota that an operator wants to set (quotas.cc). The caller sets it afterwards.
  //   NOT_FOUND            no such device
  //   INVALID_ARGUMENT     a limit or guarantee for the pinned memory as if it were a device, or
  //                        the quota contradicts itself
  //   FAILED_PRECONDITION  with it, guarantees could not all be kept
  absl::Status CheckDevices(const Quota& quota) const;
  absl::Status CheckQuota(absl::string_view tenant, const Quota& quota) const;
  // Sets a checked quota. Makes the tenant if there is none.
  void OverrideQuota(absl::string_view tenant, const Quota& quota);
  // Ends the effect of SetQuota and OverrideQuota: sets `quota`, the configuration's. Returns the
  // tenant, which may already be forgotten.
  //   NOT_FOUND  no such tenant
  absl::StatusOr<TenantView> UnsetQuota(absl::string_view tenant, const Quota& quota);

  // While draining, new sessions and operations are refused with UNAVAILABLE.
  void SetDraining(bool draining);

  // --- Sessions --------------------------------------------------------------------

  // Opens a session.
  //   RESOURCE_EXHAUSTED  the tenant, the user or the daemon has too many
  absl::StatusOr<SessionId> OpenSession(absl::string_view tenant, SessionDetails details,
                                        const Secret& token);
  // Returns the status that OpenSession would return, before anything is made for the session.
  absl::Status CheckRoomForSession(absl::string_view tenant, const SessionDetails& details);

  // Returns the session with this token.
  //   NOT_FOUND  no live session has it
  absl::StatusOr<SessionId> FindByToken(const Secret& token) const;

  // Ends the session's leases, as its socket is closed. Segments that its process may map stay
  // charged. Unknown and already closed sessions are no error: both ends of a session race.
  void SocketClosed(SessionId session, size_t steps = kLeasesAtOnce);

  // Ends the session's mappings too: the process is gone, and with it all its mappings and GPU
  // work.
  void ProcessGone(SessionId session, size_t steps = kLeasesAtOnce);

  // SocketClosed and ProcessGone end about `steps` leases, mappings, events and segments of
  // publications. ContinueEnding ends the rest of a larger session. In between, the session no
  // longer counts as one, and what it still has stays charged. Until no session is ending, no
  // request is refused for want of memory, and no memory is revoked for one: the memory on its way
  // back may be enough.
  bool HasEnding() const { return !state_.ending.empty(); }
  void ContinueEnding(size_t steps = kLeasesAtOnce);

  // Returns the sessions that the ledger has forgotten since the last call, so that the caller can
  // stop watching for them.
  std::vector<SessionId> TakeForgotten();

  // Counts a call that the session waits for.
  //   RESOURCE_EXHAUSTED  its tenant has too many
  //   ABORTED             the session has ended
  absl::Status BeginCall(SessionId session);
  void EndCall(SessionId session);
  // Turns a call that has begun into a watch: it stays open, and the client does not wait for its
  // answer.
  //   RESOURCE_EXHAUSTED  the session, or its tenant, has too many; the call goes on
  absl::Status BecomeWatch(SessionId session);
  void EndWatch(SessionId session);

  // --- Operations ------------------------------------------------------------------

  // Returns an operation, or a waiter. A request waits if it would fit once memory on its way back
  // has arrived. With spec.waits, it also waits for memory that others hold. Such a call counts as
  // waiting, not as in flight.
  absl::StatusOr<Admission> BeginAcquire(SessionId session, const AcquireSpec& spec);

  // Returns the waiters that were granted or refused since the last call. Call it after each change
  // to the ledger. Their calls are in flight again. Stops after `max_grants` grants or `max_judged`
  // checked waiters; the next call continues (QueueMoves). Refuses:
  // - Waiters whose session has ended (ABORTED).
  // - All waiters while draining (UNAVAILABLE).
  // - With the denial, a waiter whose turn it is and whose session has too many leases by now.
  // - With the denial, a waiter that did not ask to wait, once its request no longer looks as if it
  //   would fit soon.
  struct Admitted {
    WaiterId waiter{};
    absl::StatusOr<Operation> operation;
  };
  std::vector<Admitted> AdmitWaiting(size_t max_grants = SIZE_MAX, size_t max_judged = SIZE_MAX);
  bool QueueMoves() const { return queue_moves_; }

  // Removes the waiter; its call is in flight again. Returns the present denial if the wait has
  // `expired`, or CANCELLED if its client is gone.
  absl::Status EndWait(WaiterId waiter, bool expired);
  // Returns the denial of a waiter for which others would have to make room, or nothing if the
  // memory is on its way back already.
  std::optional<Denial> BlockedBy(WaiterId waiter) const;
  // True if BlockedBy() has a value. Builds no text.
  bool IsBlocked(WaiterId waiter) const;
  // Ends several waits that have expired, as EndWait does. Each waiter gets the denial as it was
  // before this call.
  std::vector<absl::Status> EndExpiredWaits(absl::Span<const WaiterId> waiters);
  // Returns how often AdmitWaiting has checked a waiter: the queue's cost.
  uint64_t judged() const { return judged_; }

  absl::StatusOr<Operation> BeginOpen(SessionId session, absl::Span<const Secret> tickets,
                                      bool revocable = false, uint64_t request_id = 0);

  // Returns an operation that hands over `count` leases once more, if an earlier daemon granted
  // them to the session for this request. Commit and Abort do not change these leases.
  std::optional<Operation> Regrant(SessionId session, uint64_t request_id, uint32_t count);
  // Returns the same for all segments of a publication that still exists.
  std::optional<Operation> RegrantAttach(SessionId session, uint64_t request_id);

  // Makes the operation's leases live.
  //   ABORTED  the session has ended; what its process was sent lingers until it is gone
  absl::Status Commit(const Operation& operation);

  // `handed_over`: descriptors may have reached the session's process.
  void Abort(const Operation& operation, bool handed_over);

  // Do the same for about `steps` leases in each call, for callers that release the mutex between
  // calls. Start with a `next` of 0, and repeat until the result is true.
  absl::StatusOr<bool> Commit(const Operation& operation, size_t& next, size_t steps);
  bool Abort(const Operation& operation, bool handed_over, size_t& next, size_t steps);

  // Dooms retained segments because the driver had no memory for `bytes` on the device. Takes those
  // of the operation's tenant first. False if no segment is retained or releasing there.
  bool MakeRoomOnDevice(SessionId session, size_t device, uint64_t bytes);

  // Returns a denial by the driver, counted like any other.
  absl::Status DriverDenial(SessionId session, size_t device, uint64_t bytes,
                            absl::string_view driver_says);

  // Removes from a denial the holders that the session may not be told of.
  void HideHolders(SessionId session, HoldersShown shown, Denial& denial) const;

  // --- Publications (publication/publications.cc) ---------------------------------------

  // Statuses as proto/gpumem/v1/broker.proto lists them.
  struct Published {
    PublicationId id{};  // none if the answer is repeated
    uint64_t version = 0;
    bool again = false;  // the request was answered before; nothing has changed
  };
  // Returns an id for callers that store something under it before the publication exists. An
  // unused id is harmless.
  PublicationId NewPublicationId() { return PublicationId{state_.next_publication++}; }
  absl::StatusOr<Published> Publish(SessionId session, const PublishSpec& spec);

  // Returns an operation on all segments of the publication, or a waiter if spec.version does not
  // exist yet. The waiter's call counts as waiting, not as in flight. If `steps` is less than the
  // number of segments, Expose must do the others before any descriptor is handed over.
  absl::StatusOr<Admission> BeginAttach(SessionId session, const AttachSpec& spec,
                                        size_t steps = SIZE_MAX);
  // Counts up to `steps` more of the operation's segments as mappable by the session's process.
  //   ABORTED  the session has ended
  absl::Status Expose(Operation& operation, size_t steps);
  // Returns the waiters that stopped waiting since the last call: their version exists, their
  // session has ended, or the daemon drains. Their calls are in flight again. Call BeginAttach for
  // each to get its result.
  std::vector<WaiterId> TakeAttachable();
  // Removes the waiter; its call is in flight again. Returns DEADLINE_EXCEEDED if the wait has
  // `expired`, or CANCELLED if its client is gone.
  absl::Status EndAttachWait(WaiterId waiter, bool expired);

  // Returns the version that was ended. If the session's request of this number (0: none) ended one
  // before, returns that version and changes nothing.
  absl::StatusOr<uint64_t> Unpublish(SessionId session, absl::string_view name,
                                     uint64_t request_id = 0);
  // Ends a publication for an operator, of "TENANT/NAME". `by`: for the audit.
  absl::StatusOr<uint64_t> Unpublish(absl::string_view full_name,
                                     absl::Span<const AuditOperator> by = {});

  // Returns when ExpirePublications next has a publication to end.
  absl::Time NextExpiry() const;
  void ExpirePublications();

  // Returns the publications that have ended since the last call, each exactly once, including
  // those that were replaced. The caller can delete what it kept for them.
  std::vector<PublicationId> TakeEndedPublications();

  // --- Revocation (admission/revocation.cc) -------------------------------------------

  // Deadlines of a revocation, counted from the first notice.
  struct RevocationTimes {
    absl::Duration grace = absl::Seconds(10);      // until the process is asked to end
    absl::Duration kill_after = absl::Seconds(5);  // after that, until it is ended
  };
  void SetRevocationTimes(const RevocationTimes& times) { revocation_times_ = times; }
  const RevocationTimes& revocation_times() const { return revocation_times_; }
  // Returns the sessions with leases whose revocation began since the last call.
  std::vector<SessionId> TakeRevoked();
  // Returns when TakeOverdue next has a session to return.
  absl::Time NextOverdue() const;
  // A session whose deadline has passed: its process is to be asked to end, or to be ended.
  struct Overdue {
    SessionId session{};
    bool kill = false;
  };
  std::vector<Overdue> TakeOverdue();

  // Returns how to make a fresh segment of an operation. Created() records that its memory exists.
  CreateSpec Creation(const Operation& operation, const Operation::Item& item) const;
  void Created(SegmentId segment);

  // Releases the leases.
  //   NOT_FOUND  the session has no such lease; none is released then
  absl::Status Release(SessionId session, absl::Span<const LeaseId> leases);
  // Makes the same check and changes nothing.
  absl::Status CheckLeases(SessionId session, absl::Span<const LeaseId> leases) const;

  // Returns the ticket of a lease: `candidate`, or the one it already has for this scope.
  //   ABORTED              the session has ended
  //   NOT_FOUND            it has no such lease
  //   FAILED_PRECONDITION  the segment is lost, or it is of kind mempool and the scope kAny
  absl::StatusOr<Secret> Share(SessionId session, LeaseId lease, TicketScope scope,
                               const Secret& candidate);

  // Marks segments that the device can no longer open. Unknown segments are no error: they may be
  // gone by now. Returns how many were not lost before.
  size_t MarkLost(absl::Span<const SegmentId> segments);
  // Returns the sessions with leases on segments that were lost since the last call.
  std::vector<SessionId> TakeBereaved();

  // --- What outlives the daemon ----------------------------------------------------

  // Records all later changes for TakeChanges.
  void KeepChanges() { changes_.Keep(); }
  // Returns the changes since the last call: one batch of the journal. A batch takes the state from
  // one consistent state to the next.
  std::vector<journal::Change> TakeChanges() { return changes_.Take(state_); }
  // Returns the whole state: the sum of all that TakeChanges would ever have returned.
  JournalImage Image() const { return ImageOf(state_); }

  // The objects in the journal that still exist.
  struct Survivors {
    // Sessions whose processes live, with their present details.
    absl::btree_map<SessionId, SessionDetails> sessions;
    absl::flat_hash_set<SegmentId> memory;  // segments whose memory still exists
    absl::flat_hash_set<PublicationId> metadata;
  };
  struct Restored {
    uint32_t sessions = 0, segments = 0, leases = 0, publications = 0;
    // Segments that had holders and whose memory is gone. If a live process may still map the
    // segment, it stays charged, as lost, until the process lets go.
    struct Lost {
      SegmentId segment{};
      std::string tenant, device_uuid;
      Kind kind = Kind::kVmm;
      uint64_t bytes = 0;
      std::vector<SessionId> sessions;  // live ones that had it
    };
    std::vector<Lost> lost;
    struct LostPublication {
      std::string tenant, name;
      uint64_t version = 0;
      std::vector<SegmentId> segments;  // whose memory is gone; none: its metadata is
    };
    std::vector<LostPublication> lost_publications;
  };
  // Restores the state that an earlier daemon's journal describes. Call it once, after Configure,
  // on a ledger without sessions. Waiters and operations are not remembered: a process that was
  // being handed a segment counts as one that may map it.
  Restored Restore(const JournalImage& image, const Survivors& survivors);

  // Marks the session's client as connected anew, after the end of an earlier daemon or the loss of
  // its connection to this one. The session is kReturning until Reconcile.
  //   NOT_FOUND  it has ended, or it is of another process
  absl::Status Resume(SessionId session, const PeerIdentity& peer);
  // True if calls of the session are in flight or waiting. Calls of a lost connection may still be
  // granted something.
  bool HasCalls(SessionId session) const;
  // Begins a Reconcile, which counts as a call (EndCall).
  //   ABORTED              the session has ended
  //   FAILED_PRECONDITION  it was not resumed, or has made calls since
  //   UNAVAILABLE          calls of the connection that it has lost have yet to end
  //   RESOURCE_EXHAUSTED   its tenant has too many calls in flight
  absl::Status BeginReconcile(SessionId session);
  // The statement of a returning session's client: it has these leases and no others, and will
  // repeat these requests. The constructor takes time in proportion to both.
  class Statement {
   public:
    Statement(absl::Span<const LeaseId> leases, absl::Span<const uint64_t> requests);
    // Returns the named leases that the session does not have.
    std::vector<LeaseId> TakeUnknown() { return std::move(unknown_); }

   private:
    friend class Ledger;
    using Regrants = absl::btree_map<uint64_t, std::vector<LeaseId>>;

    const std::vector<LeaseId> leases_;
    const std::vector<uint64_t> requests_;
    const absl::flat_hash_set<LeaseId> kept_;
    const absl::flat_hash_set<uint64_t> asked_;
    // The progress of Reconcile.
    enum class Stage { kNamed, kHeld, kAsked, kMapped, kDone } stage_ = Stage::kNamed;
    size_t next_ = 0;      // index into leases_, then into requests_
    LeaseId lease_{};      // next of the session's leases
    SegmentId segment_{};  // next of the segments that its process may map
    std::optional<uint32_t> resumptions_;
    std::vector<LeaseId> unknown_;
    Regrants before_, after_, replaced_;
  };
  // Carries out a statement, by about `steps` leases and requests in each call. Ends everything
  // else that the session was granted. True if complete: the session is then kHere.
  //   ABORTED      the session has ended
  //   UNAVAILABLE  its client has connected anew meanwhile
  absl::StatusOr<bool> Reconcile(SessionId session, Statement& statement, size_t steps);
  // Carries out all of a statement in one call. Returns the leases that the session does not have.
  absl::StatusOr<std::vector<LeaseId>> Reconcile(SessionId session,
                                                 absl::Span<const LeaseId> leases,
                                                 absl::Span<const uint64_t> requests);
  // Ends what these requests were granted: the session will not repeat them. Stops after about
  // `steps` leases and requests, and returns the number of requests that are complete.
  size_t DropRegrants(SessionId session, absl::Span<const uint64_t> requests,
                      size_t steps = SIZE_MAX);

  // --- Interprocess events (event/events.cc) --------------------------------------

  // Return the statuses that proto/gpumem/v1/broker.proto lists, and ABORTED if the session has
  // ended.
  struct EventPlace {
    std::string name;              // in the session's tenant
    std::optional<LeaseId> lease;  // instead of a name: beside the segment of this lease
  };
  // Registers an event. If the session's request of this number (0: none) has registered one
  // before, returns that one.
  absl::StatusOr<IpcEventId> RegisterEvent(SessionId session, const EventPlace& place,
                                           absl::string_view device_uuid, const ExportData& handle,
                                           uint64_t request_id = 0);
  absl::StatusOr<std::vector<IpcEventView>> GetEvents(SessionId session, const EventPlace& place);
  // True if another session was given the handle.
  absl::StatusOr<bool> UnregisterEvent(SessionId session, IpcEventId event);

  // --- Memory that was taken past the broker (unbrokered.cc) -----------------

  // Replaces all known unbrokered uses with `uses`. They count against no limit. A session's uses
  // go with it.
  void SetUnbrokered(std::vector<UnbrokeredBytes> uses);

  // --- Giving memory back ----------------------------------------------------------

  // Returns the segments to destroy, each exactly once.
  std::vector<SegmentId> TakeDoomed();
  void Destroyed(SegmentId segment);

  // Dooms retained segments until each tenant keeps at most `keep_bytes` of them on each device.
  // Empty names mean all.
  //   NOT_FOUND  no such tenant or device
  absl::StatusOr<std::vector<SegmentId>> Trim(absl::string_view tenant, absl::string_view device,
                                              uint64_t keep_bytes);

  // --- The audit (ledger/inspect/auditor.cc) --------------------------------------------------

  // Sets the sink for records of sessions, grants, releases, publications, and lost, revoked and
  // reclaimed memory. `sink` must outlive this; null records nothing.
  void SetAudit(AuditSink* sink) { auditor_.SetSink(sink); }

  // --- Looking ---------------------------------------------------------------------

  // Returns waiters by device, and for each device in the order in which they are served.
  absl::StatusOr<std::vector<WaiterView>> ListWaiting(absl::string_view tenant,
                                                      absl::string_view device) const;

  // Returns INTERNAL with a sentence that names the first violated invariant.
  absl::Status CheckInvariants() const;

 private:
  using Pool = records::Pool;
  using Tenant = records::Tenant;
  using Session = records::Session;
  using RequestKey = ChangeLog::RequestKey;
  using Segment = records::Segment;
  using Process = records::Process;
  using Lease = records::Lease;
  using Publication = records::Publication;
  using PublicationName = LedgerState::PublicationName;
  using TicketEntry = records::TicketEntry;
  using Request = records::Request;
  using Waiter = records::Waiter;

  Tenant& EnsureTenant(absl::string_view name);
  void ForgetIfIdle(Tenant& tenant);
  void ApplyQuota(Tenant& tenant, const Quota& quota);
  // Puts the tenant under the one that its quota names.
  void Link(Tenant& tenant);
  void PutUnder(Tenant& tenant, Tenant* parent);
  void CountSession(const Session& session, int change);
  void CountWaiting(Tenant& tenant, int change);
  absl::StatusOr<Session*> LiveSession(SessionId id);
  void EndSession(SessionId id, Session& session);
  // Continues to end what a session had, and subtracts the steps from `steps`. True if nothing is
  // left.
  bool WindUp(SessionId id, Session& session, size_t& steps);
  void ContinueEnding(SessionId id, size_t& steps);
  void ForgetIfDone(SessionId id, Session& session);

  void Import(SessionId id, Session& session, size_t device);
  void Unimport(SessionId id, Session& session, size_t device, bool all);  // false: once
  // Ends the import of a process that is gone, and dooms the segments that only this import kept in
  // the pool. Subtracts the steps from `steps`, and stops at 0.
  void EndImport(SessionId id, Session& session, size_t device, size_t& steps);
  // True if all that is left of the session is that its process has pools open.
  static bool OnlyImports(const Session& session);
  // Hands over to another session of the same process which pools that process has open. False if
  // there is none.
  bool Bequeath(SessionId id, Session& session);
  // Returns a session of this process and tenant for which OnlyImports is true.
  std::optional<SessionId> Predecessor(const Tenant& tenant, const PeerIdentity& peer) const;

  // Admission (admission.cc). Each refusal that these return counts as a denial.
  static absl::Status Draining();
  static absl::Status Lost(SegmentId segment);
  static absl::Status NoSuchLease(LeaseId lease);
  struct AcquireTerms {
    size_t device = 0;
    Kind kind = Kind::kVmm;
    uint64_t bytes = 0;  // of each segment, rounded up
  };
  absl::StatusOr<AcquireTerms> CheckSpec(const Tenant& tenant, const AcquireSpec& spec) const;
  absl::StatusOr<size_t> ChooseDevice(const Tenant& tenant, const AcquireSpec& spec) const;
  Kind KindOf(const Tenant& tenant, const AcquireSpec& spec, size_t device) const;
  bool Makes(size_t device, Kind kind) const;
  absl::Status DoesNotMake(size_t device, Kind kind) const;
  // `predecessor`: the tenant's session that ends as the new one begins. It may be another user's.
  absl::Status CheckSessionCount(Tenant& tenant, uid_t uid, std::optional<SessionId> predecessor);
  absl::Status CheckInFlight(Tenant& tenant);
  absl::Status CheckLeaseCount(Session& session, size_t more);
  // Counts leases, including those that operations are about to give.
  void CountLeases(Tenant& tenant, int64_t change);

  // Dooms retained segments until the fresh ones would fit once these, and those releasing already,
  // are destroyed.
  void TrimForShortfall(const Request& request, uint32_t fresh, const Claims& claims);
  // Returns the tenant with the most retained bytes on the device, or null. If `above` is not null,
  // only tenants under `above` count.
  Tenant* RichestRetainer(size_t device, const Tenant* above = nullptr);
  static absl::Status Deny(Tenant& tenant, const Denial& denial);
  // The same for a count.
  static absl::Status DenyCount(Tenant& tenant, Denial::Cause cause, uint64_t asked, uint64_t used,
                                uint64_t limit, absl::string_view help,
                                const Tenant* limited = nullptr);

  // The queue (admission/queue.cc, admission/waiting.cc).
  // Grants the request if it fits now; else sets `verdict`.
  //   RESOURCE_EXHAUSTED  it fits now, and would be too many leases
  absl::StatusOr<std::optional<Operation>> TryGrant(SessionId session, const Request& request,
                                                    const Claims& claims, Verdict* verdict);
  Operation Grant(SessionId session, const Request& request, std::vector<SegmentId> reused);
  // Return the tenant's pool of unused segments for the request, and how many of its segments the
  // request would reuse.
  static RetainedPool& PoolFor(const Request& request);
  static uint32_t Reusable(const Request& request);
  // Returns waiters in the order in which they are served.
  std::vector<WaiterId> WaitersInOrder() const;
  // Visits each waiter and its verdict in that order, until `visit` returns false.
  void JudgeWaiters(absl::FunctionRef<bool(WaiterId, const Waiter&, Verdict&)> visit) const;
  static QueueRank RankOf(const Request& request);
  static QueuePlace PlaceOf(WaiterId id, const Waiter& waiter) { return {waiter.rank, id}; }
  // Return the claims of waiters before the place, assuming no reuse.
  Claims ClaimsBefore(const QueuePlace& place, const Request& request) const;
  Claims ClaimsBefore(WaiterId id) const;
  // `verdict`: the one by which it waits.
  void AddWaiter(WaiterId id, Waiter added, const Verdict& verdict);
  void RemoveWaiter(WaiterId id);
  // Waiters of a topmost tenant and of the tenants under it.
  struct QueueTree {
    absl::btree_set<QueuePlace> waiters;
    absl::btree_set<QueuePlace> loose;  // of these, all but those asleep at the device's limit
    uint64_t seen = 0;                  // VersionOf it when they were last woken
    std::optional<QueuePlace> changed;  // first that claims more or less, or has gone
    bool all_behind = false;            // check all behind `changed`, not only the loose ones
    // All behind this place were woken in sweep `woken_sweep`.
    std::optional<QueuePlace> woken;
    uint64_t woken_sweep = 0;
  };
  // Waiters that no limit of their tenants keeps out, at a limit without a tenant: a device's or,
  // as the last limit, the daemon's limit of segments.
  struct QueueLimit {
    QueueLine line;
    absl::btree_set<QueuePlace> restless;  // of these, that any change there may serve
    uint64_t seen = 0;                     // VersionOf it when these were last woken
    std::optional<QueuePlace> changed;     // first that claims more or less, or has gone
  };
  // Progress of AdmitWaiting, and what earlier waiters claim of their tenants' limits.
  struct Sweep {
    Claims claims;
    absl::flat_hash_map<const Tenant*, QueuePlace> counted;  // last one counted, by tree
  };
  static const Tenant* TreeOf(const Tenant& tenant);
  static uint64_t VersionOf(const Tenant& top);
  uint64_t VersionOf(size_t limit) const;  // a device's index, or devices_.size(): the daemon's
  QueueLine::Left LeftAt(size_t limit) const;
  // Assigns each waiter's place anew after quotas have changed. All are to be checked.
  void PlaceAll();
  // Moves the waiter, and the data kept by its place, to the place of its present rank.
  void Move(WaiterId id, Waiter& waiter, const QueueRank& rank);
  // Removes the waiter from everything ordered by place except its tree.
  void TakeOut(const QueuePlace& place, const Waiter& waiter, QueueTree& tree);
  // Records the verdict by which it waits, and which waiters have to be checked because of that.
  void SetVerdict(WaiterId id, Waiter& waiter, const Verdict& verdict);
  void SetEntry(size_t limit, const QueuePlace& place, const QueueLine::Entry& entry);
  void NoteChange(std::optional<QueuePlace>& changed, const QueuePlace& place);
  // Wakes the waiters that a change since the last call may serve. `at`: position of the sweep
  // under way. Waiters before it are checked again in the next sweep.
  void Wake(const std::optional<QueuePlace>& at);
  void WakeTree(const Tenant& top, QueueTree& tree, const std::optional<QueuePlace>& at);
  void WakeOne(const QueuePlace& place, const std::optional<QueuePlace>& at);
  // Wakes waiters of processes that hold firm leases and asked for revocable ones, or the reverse.
  void WakeSorted();
  // Wakes waiters that no ending session keeps waiting any more.
  void WakeAwaitingEnd();
  // Returns the next waiter to check, behind swept_.
  std::optional<QueuePlace> NextAwake() const;
  // Checks one waiter, and grants it, refuses it or lets it wait. True if it was granted.
  bool JudgeOne(const QueuePlace& place, Sweep& sweep, std::vector<Admitted>& admitted);
  void BeginSweep(Sweep& sweep);
  // True if the grant to a waiter at this place changes nothing for those before it.
  bool WasAlone(const QueuePlace& place, const Request& request, SessionId session) const;
  absl::Status CheckWaiting(Tenant& tenant);
  absl::Status CheckQueue() const;  // part of CheckInvariants

  // Revokes segments for this request.
  void Revoke(absl::Span<const SegmentId> segments, const Request& request);
  void EndRevocation(SegmentId id, Segment& segment);
  using ProcessKey = LedgerState::ProcessKey;
  // True if a waiter counts on this segment, which is being taken back.
  bool IsWaitedFor(Segment& segment) const;
  // Returns FAILED_PRECONDITION if the session's process holds firm leases and revocable ones are
  // asked for, or the reverse. Also if revocable leases are asked for and the process could not be
  // ended.
  absl::Status CheckSort(const Session& session, bool revocable) const;

  // Denies `bytes` if an unbrokered use denies the tenant new memory.
  absl::Status CheckUnbrokered(Tenant& tenant, uint64_t bytes) const;

  // Publications.
  absl::StatusOr<std::vector<SegmentId>> Publishable(const Session& session,
                                                     const PublishSpec& spec) const;
  absl::Status CheckPublicationRoom(Tenant& tenant, const Publication* replaced,
                                    uint64_t metadata_bytes) const;
  static absl::StatusOr<PublicationName> ParseName(absl::string_view name,
                                                   absl::string_view own_tenant);
  void CountPublication(Tenant& tenant, int change);
  // Ends the publication and remembers the last version of its name, unless the next version takes
  // its place.
  void EndPublication(PublicationId id, bool replaced = false,
                      absl::Span<const AuditOperator> by = {});
  // Ends one lease that was got through the publication, or was about to be.
  void Detach(std::optional<PublicationId> publication, SessionId session);
  void RemoveAttachWaiter(WaiterId id);
  absl::Status CheckPublications() const;

  // Remembers the answer, if the request has a number.
  void Answer(SessionId id, Session& session, uint64_t request, uint64_t number);

  void Pin(Operation& operation, Session& session, size_t steps = SIZE_MAX);
  void Expose(Operation& operation, Session& session, size_t steps);
  void StopArriving(Session& session, bool ended);
  void Unexpose(SegmentId id, Segment& segment, SessionId session_id, bool all);
  // True if a session that releases the lease is trusted to have unmapped the segment.
  bool TrustsRelease(const Session& session, LeaseId lease) const;
  // Adds the lease to its session.
  void AddLease(LeaseId id, Lease lease);
  void EndLease(LeaseId id, bool unmapped);
  // Puts a segment into the state that follows from its holders.
  void Settle(SegmentId id, Segment& segment);
  void Doom(SegmentId id, Segment& segment);
  bool DoomOldest(Tenant& tenant, size_t device);  // retained segment; false: none
  void DoomAllRetained(Tenant& tenant);

  journal::Counters NumbersGivenOut() const;  // the highest
  void RestoreSessions(const JournalImage& image, const Survivors& survivors);
  void RestoreSegments(const JournalImage& image, const Survivors& survivors, Restored& restored);
  void RestoreHolders(const JournalImage& image);
  void RestorePublications(const JournalImage& image, const Survivors& survivors,
                           Restored& restored);

  LedgerState state_;
  ChangeLog changes_;
  Auditor auditor_{&state_};
  const Room room_{&state_};

  // Restored sessions, by process and by the id that the process gave its attempt to begin one.
  std::map<std::pair<ProcessKey, uint32_t>, SessionId> begun_before_;

  uint64_t next_waiter_ = 1;
  std::vector<std::pair<WaiterId, absl::Status>> refused_;  // whose session has ended
  bool queue_moves_ = false;                                // a waiter may fit since the last look
  // Queue data that limits how many waiters are checked again (admission/queue.cc).
  absl::flat_hash_map<const Tenant*, QueueTree> trees_;
  std::vector<QueueLimit> limits_;       // of the devices, and of the daemon
  absl::btree_set<QueuePlace> awake_;    // to be checked
  absl::btree_set<QueuePlace> roused_;   // woken by the sweep itself: for the next one
  std::optional<QueuePlace> swept_;      // up to here, if a sweep is under way
  uint64_t sweeps_ = 0;                  // that were begun
  uint64_t woken_at_ = 0;                // the sum of all devices' versions at the end of Wake
  bool queue_changed_ = false;           // a tree or a limit has changed
  bool queue_stale_ = false;             // quotas have changed: all of that is stale
  absl::btree_set<WaiterId> await_end_;  // that an ending session keeps from a verdict
  std::map<ProcessKey, absl::btree_set<WaiterId>> waiting_processes_;
  std::vector<ProcessKey> sorted_processes_;  // of these, that have begun to hold leases
  uint64_t judged_ = 0;

  absl::btree_set<std::pair<absl::Time, PublicationId>> expiries_;
  std::vector<PublicationId> ended_publications_;
  std::map<WaiterId, records::AttachWaiter> attach_waiters_;
  std::vector<WaiterId> attachable_;

  RevocationTimes revocation_times_;
  absl::btree_set<SessionId> revoked_;  // to be notified

  std::vector<SegmentId> doomed_;
  std::vector<SessionId> forgotten_;
  absl::btree_set<SessionId> bereaved_;
};

}  // namespace gpumemd
