// The broker's state machine: who holds what, who is charged for it, who may have more.
//
// It does no I/O, takes no lock, calls no driver and reads no clock of its own; the
// Broker (broker.h) calls it under its mutex and does the rest. So a test can drive it
// through any interleaving, one step at a time (ledger/testing/model_test.cc).
//
// Memory moves in two-phase operations, because creating a segment and sending a file
// descriptor take time and can fail, and no lock is held meanwhile:
//
//   BeginAcquire / BeginOpen   checks, charges, pins the segments, names the leases
//     … the caller creates what is fresh and sends the descriptors …
//   Commit                     the leases are live
//   Abort                      everything is as before
//
// A segment is lost where the device says that its memory can no longer be opened
// (MarkLost): its leases go on until their holders release them, but nobody opens it again
// and it is never reused. Nor is one that another tenant has ever had open: who has kept its
// descriptor or its handle would see what comes next.
//
// A request that does not fit now, but soon or, as it asks, later, waits (admission/queue.cc):
//
//   BeginAcquire   → a waiter instead of an operation
//     … others release; AdmitWaiting() says who goes on, and who is refused …
//   EndWait        takes one out that has waited long enough
//
// What is leased as revocable can be taken back for those who go first (admission/revocation.cc).
//
// A publication is a named list of segments that outlives its publisher; attaching to it is an
// operation like opening (publication/publications.cc).
//
// A segment without leases is kept for reuse (retained), or charged until the processes
// that may still map it are gone (lingering), or doomed: TakeDoomed() hands it out to be
// given back to the driver, and Destroyed() ends its charge. What comes from a memory pool
// lingers until all processes that may have the pool open are gone (pools.cc).
//
// What changes is written down, record by record, for a daemon that comes after this one
// (TakeChanges in journal.cc), and that one begins where this one ended (Restore in
// restore.cc).
//
// Invariants, checked by CheckInvariants():
//   - charges = bytes of all segments, for every tenant and device; never over capacity
//   - a segment belongs to one tenant for life
//   - nothing lost is retained, nor what another tenant has had, nor what is of a pool
//   - nothing is retained or releasing while a lease, an operation, or a process that
//     may still map it holds it
//   - nothing is retained above its tenant's limits, for a tenant without live sessions, or
//     while draining
//   - every lease has one live session, and so has every waiter; a publication holds its segments
//     as a lease does, without a session, and nothing but its own end ends that
//   - a process holds firm leases or revocable ones
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
  // `devices` are named by their index from here on. `now` gives the time for ages.
  Ledger(std::vector<DeviceInfo> devices, Bounds bounds, std::function<absl::Time()> now);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // What there is, and answers to questions about it. Both are good until the ledger ends.
  const LedgerState& state() const { return state_; }
  Inspector look() const { return Inspector(&state_); }

  // --- Tenants ---------------------------------------------------------------------

  // Sets the configured tenants, and the quota of those that rules make at run time.
  // Takes effect at once; breaks no holder. `overridden`: the quotas of those tenants, configured
  // or not, for which an operator's word goes before both; they are there from now on.
  void Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                 const std::map<std::string, Quota>& overridden = {});

  // How an operator changes a quota (quotas.cc): checked first, then set.
  //   NOT_FOUND            no such device
  //   INVALID_ARGUMENT     a limit or guarantee for the pinned memory as if it were a device, or
  //                        the quota contradicts itself
  //   FAILED_PRECONDITION  with it, guarantees could not all be kept
  absl::Status CheckDevices(const Quota& quota) const;
  absl::Status CheckQuota(absl::string_view tenant, const Quota& quota) const;
  // Sets what has been checked; makes the tenant where it is not there.
  void OverrideQuota(absl::string_view tenant, const Quota& quota);
  // The end of what SetQuota and OverrideQuota said: `quota` is the configuration's. The tenant,
  // which may be forgotten now.
  //   NOT_FOUND  no such tenant
  absl::StatusOr<TenantView> UnsetQuota(absl::string_view tenant, const Quota& quota);

  // While draining, new sessions and operations are refused with UNAVAILABLE.
  void SetDraining(bool draining);

  // --- Sessions --------------------------------------------------------------------

  // RESOURCE_EXHAUSTED  the tenant, the user or the daemon has too many
  absl::StatusOr<SessionId> OpenSession(absl::string_view tenant, SessionDetails details,
                                        const Secret& token);
  // What OpenSession would say, before anything is made for the session.
  absl::Status CheckRoomForSession(absl::string_view tenant, const SessionDetails& details);

  // NOT_FOUND  no live session has it
  absl::StatusOr<SessionId> FindByToken(const Secret& token) const;

  // The socket is closed: its leases end; what its process may map stays charged.
  // Unknown and already closed sessions are no error: both ends of a session race.
  void SocketClosed(SessionId session, size_t steps = kLeasesAtOnce);

  // The process is gone, and with it all its mappings and GPU work.
  void ProcessGone(SessionId session, size_t steps = kLeasesAtOnce);

  // Both end about so many leases, mappings, events and segments of publications, and leave the
  // others of a session that has more to ContinueEnding. In between it is no session any more, and
  // what it still has stays charged. Until no session is ending, no request is refused for want of
  // memory, and nothing is taken back for one: what is on its way may be enough.
  bool HasEnding() const { return !state_.ending.empty(); }
  void ContinueEnding(size_t steps = kLeasesAtOnce);

  // Sessions that the ledger has forgotten since the last call, so that nothing more
  // needs to be watched for them.
  std::vector<SessionId> TakeForgotten();

  // Counts a call that the session waits for.
  //   RESOURCE_EXHAUSTED  its tenant has too many
  //   ABORTED             the session has ended
  absl::Status BeginCall(SessionId session);
  void EndCall(SessionId session);
  // Makes a watch of a call that has begun: it stays, and nobody waits for its answer.
  //   RESOURCE_EXHAUSTED  the session, or its tenant, has too many; the call goes on
  absl::Status BecomeWatch(SessionId session);
  void EndWatch(SessionId session);

  // --- Operations ------------------------------------------------------------------

  // A waiter where it would fit once memory is back that is on its way, and with spec.waits
  // where others hold what it asks for: such a call counts as waiting, and not as in flight.
  absl::StatusOr<Admission> BeginAcquire(SessionId session, const AcquireSpec& spec);

  // What has become of waiters since the last call: after each change to the ledger. Their calls
  // are in flight again. After so many grants, or so many waiters that were judged, it stops; the
  // next call goes on with it (QueueMoves). Refused are those whose session has ended (ABORTED),
  // all while draining (UNAVAILABLE), and with the denial those whose turn it is and who have too
  // many leases by now, and those who did not ask to wait where it no longer looks as if it would
  // fit soon.
  struct Admitted {
    WaiterId waiter{};
    absl::StatusOr<Operation> operation;
  };
  std::vector<Admitted> AdmitWaiting(size_t max_grants = SIZE_MAX, size_t max_judged = SIZE_MAX);
  bool QueueMoves() const { return queue_moves_; }

  // The waiter goes, its call is in flight again. The denial, as things stand, where the wait has
  // `expired`; CANCELLED where its client is gone.
  absl::Status EndWait(WaiterId waiter, bool expired);
  // The denial of a waiter that others would have to make room for; nothing where that is on its
  // way already.
  std::optional<Denial> BlockedBy(WaiterId waiter) const;
  // The same without the text.
  bool IsBlocked(WaiterId waiter) const;
  // EndWait of several whose waits have expired: each is told how things stood before.
  std::vector<absl::Status> EndExpiredWaits(absl::Span<const WaiterId> waiters);
  // How often a waiter was judged by AdmitWaiting: what the queue costs.
  uint64_t judged() const { return judged_; }

  absl::StatusOr<Operation> BeginOpen(SessionId session, absl::Span<const Secret> tickets,
                                      bool revocable = false, uint64_t request_id = 0);

  // Where an earlier daemon has granted the session `count` leases by this request: an operation
  // that hands them over once more. Commit and Abort leave them as they are.
  std::optional<Operation> Regrant(SessionId session, uint64_t request_id, uint32_t count);
  // The same of all segments of a publication that is still there.
  std::optional<Operation> RegrantAttach(SessionId session, uint64_t request_id);

  // ABORTED  the session has ended; what its process was sent lingers until it is gone
  absl::Status Commit(const Operation& operation);

  // `handed_over`: descriptors may have reached the session's process.
  void Abort(const Operation& operation, bool handed_over);

  // The same by about so many leases in each call, for those who give up the mutex between them.
  // Begin with a `next` of 0, and go on until it is true.
  absl::StatusOr<bool> Commit(const Operation& operation, size_t& next, size_t steps);
  bool Abort(const Operation& operation, bool handed_over, size_t& next, size_t steps);

  // The driver had no memory for `bytes` on the device: dooms retained segments, those of
  // the operation's own tenant first. False where nothing is retained or releasing there.
  bool MakeRoomOnDevice(SessionId session, size_t device, uint64_t bytes);

  // A denial by the driver, counted like any other.
  absl::Status DriverDenial(SessionId session, size_t device, uint64_t bytes,
                            absl::string_view driver_says);

  // Takes those holders out of a denial that the session is not to be told of.
  void HideHolders(SessionId session, HoldersShown shown, Denial& denial) const;

  // --- Publications (publication/publications.cc) ---------------------------------------

  // Statuses as proto/gpumem/v1/broker.proto says.
  struct Published {
    PublicationId id{};  // none where it is told again
    uint64_t version = 0;
    bool again = false;  // the request was answered so before; nothing has changed
  };
  // For who has to keep something under its number before it is published. One that is not used is
  // nobody's.
  PublicationId NewPublicationId() { return PublicationId{state_.next_publication++}; }
  absl::StatusOr<Published> Publish(SessionId session, const PublishSpec& spec);

  // An operation on all segments of the publication; or a waiter, where spec.version is not there
  // yet: its call counts as waiting, and not as in flight. With fewer `steps` than there are
  // segments, Expose has to do the others before anything is handed over.
  absl::StatusOr<Admission> BeginAttach(SessionId session, const AttachSpec& spec,
                                        size_t steps = SIZE_MAX);
  // Counts some more of the operation's segments as what the session's process may map.
  //   ABORTED  the session has ended
  absl::Status Expose(Operation& operation, size_t steps);
  // Waiters that wait no longer, since the last call: their calls are in flight again, and
  // BeginAttach is to say what becomes of them. Their version is there, their session has ended, or
  // the daemon drains.
  std::vector<WaiterId> TakeAttachable();
  // The waiter goes, its call is in flight again. DEADLINE_EXCEEDED where the wait has `expired`;
  // CANCELLED where its client is gone.
  absl::Status EndAttachWait(WaiterId waiter, bool expired);

  // The version that it was. Where the session's request of this number (0: none) has ended one
  // before, that one's, and nothing changes.
  absl::StatusOr<uint64_t> Unpublish(SessionId session, absl::string_view name,
                                     uint64_t request_id = 0);
  // The same by an operator, of "TENANT/NAME". `by`: for the audit.
  absl::StatusOr<uint64_t> Unpublish(absl::string_view full_name,
                                     absl::Span<const AuditOperator> by = {});

  // When ExpirePublications has something to end next.
  absl::Time NextExpiry() const;
  void ExpirePublications();

  // Publications that have ended since the last call, each exactly once: those that were replaced,
  // too. Nothing needs to be kept for them.
  std::vector<PublicationId> TakeEndedPublications();

  // --- Revocation (admission/revocation.cc) -------------------------------------------

  // Who has been told to go when, counted from the first notice.
  struct RevocationTimes {
    absl::Duration grace = absl::Seconds(10);      // until the process is asked to end
    absl::Duration kill_after = absl::Seconds(5);  // until it is ended, from then on
  };
  void SetRevocationTimes(const RevocationTimes& times) { revocation_times_ = times; }
  const RevocationTimes& revocation_times() const { return revocation_times_; }
  // Sessions with leases that are being taken back since the last call.
  std::vector<SessionId> TakeRevoked();
  // When TakeOverdue has something to say next.
  absl::Time NextOverdue() const;
  // Sessions whose time is up now: their processes are to be asked to end, or ended.
  struct Overdue {
    SessionId session{};
    bool kill = false;
  };
  std::vector<Overdue> TakeOverdue();

  // How to make a fresh segment of an operation; and that its memory is there.
  CreateSpec Creation(const Operation& operation, const Operation::Item& item) const;
  void Created(SegmentId segment);

  // NOT_FOUND  the session has no such lease; none is released then
  absl::Status Release(SessionId session, absl::Span<const LeaseId> leases);
  // The same check alone.
  absl::Status CheckLeases(SessionId session, absl::Span<const LeaseId> leases) const;

  // The ticket of a lease: `candidate`, or the one it already has for this scope.
  //   ABORTED              the session has ended
  //   NOT_FOUND            it has no such lease
  //   FAILED_PRECONDITION  the segment is lost, or it is of kind mempool and the scope kAny
  absl::StatusOr<Secret> Share(SessionId session, LeaseId lease, TicketScope scope,
                               const Secret& candidate);

  // The device says that these can no longer be opened. Unknown segments are no error: they
  // may be gone by now. Answers how many were not lost before.
  size_t MarkLost(absl::Span<const SegmentId> segments);
  // Sessions with leases on segments that were lost since the last call.
  std::vector<SessionId> TakeBereaved();

  // --- What outlives the daemon ----------------------------------------------------

  // From now on all that changes is kept for TakeChanges.
  void KeepChanges() { changes_.Keep(); }
  // What has changed since the last call: one batch of the journal, in which the state goes from
  // one that is consistent to the next.
  std::vector<journal::Change> TakeChanges() { return changes_.Take(state_); }
  // All that TakeChanges would ever have said: the state as it is.
  JournalImage Image() const { return ImageOf(state_); }

  // What is left of what the journal tells of.
  struct Survivors {
    // Sessions whose processes live, with what is known of them now.
    absl::btree_map<SessionId, SessionDetails> sessions;
    absl::flat_hash_set<SegmentId> memory;  // segments whose memory is there
    absl::flat_hash_set<PublicationId> metadata;
  };
  struct Restored {
    uint32_t sessions = 0, segments = 0, leases = 0, publications = 0;
    // Memory that is gone and was somebody's. Held where a process that lives may still map it:
    // then it stays charged, as lost, until it lets go.
    struct Lost {
      SegmentId segment{};
      std::string tenant, device_uuid;
      Kind kind = Kind::kVmm;
      uint64_t bytes = 0;
      std::vector<SessionId> sessions;  // that live and had it
    };
    std::vector<Lost> lost;
    struct LostPublication {
      std::string tenant, name;
      uint64_t version = 0;
      std::vector<SegmentId> segments;  // whose memory is gone; none: its metadata is
    };
    std::vector<LostPublication> lost_publications;
  };
  // Goes on from what an earlier daemon's journal says. To be called once, after Configure, on a
  // ledger that knows of no session. Waiters and operations are not remembered: a process that was
  // being handed a segment counts as one that may map it.
  Restored Restore(const JournalImage& image, const Survivors& survivors);

  // Its client has connected anew: after the end of an earlier daemon, or because it has lost its
  // connection to this one. Until Reconcile it is kReturning.
  //   NOT_FOUND  it has ended, or it is of another process
  absl::Status Resume(SessionId session, const PeerIdentity& peer);
  // True if calls of the session are under way or wait: of a connection that it has lost, they may
  // still be granted something.
  bool HasCalls(SessionId session) const;
  // Begins a Reconcile, which counts as a call (EndCall).
  //   ABORTED              the session has ended
  //   FAILED_PRECONDITION  it was not resumed, or has made calls since
  //   UNAVAILABLE          calls of the connection that it has lost have yet to end
  //   RESOURCE_EXHAUSTED   its tenant has too many calls in flight
  absl::Status BeginReconcile(SessionId session);
  // What the client of a session that has come back says: it has these leases and no others, and
  // will ask again by these requests. To make one takes time in proportion to both.
  class Statement {
   public:
    Statement(absl::Span<const LeaseId> leases, absl::Span<const uint64_t> requests);
    // Of the leases, those that the session does not have.
    std::vector<LeaseId> TakeUnknown() { return std::move(unknown_); }

   private:
    friend class Ledger;
    using Regrants = absl::btree_map<uint64_t, std::vector<LeaseId>>;

    const std::vector<LeaseId> leases_;
    const std::vector<uint64_t> requests_;
    const absl::flat_hash_set<LeaseId> kept_;
    const absl::flat_hash_set<uint64_t> asked_;
    // How far Reconcile has come.
    enum class Stage { kNamed, kHeld, kAsked, kMapped, kDone } stage_ = Stage::kNamed;
    size_t next_ = 0;      // of leases_, then of requests_
    LeaseId lease_{};      // of the session's, from this one on
    SegmentId segment_{};  // of those that its process may map, from this one on
    std::optional<uint32_t> resumptions_;
    std::vector<LeaseId> unknown_;
    Regrants before_, after_, replaced_;
  };
  // Carries out a statement, by about so many leases and requests in each call. All else that the
  // session was granted ends. True if that is all: from then on it is kHere.
  //   ABORTED      the session has ended
  //   UNAVAILABLE  its client has connected anew meanwhile
  absl::StatusOr<bool> Reconcile(SessionId session, Statement& statement, size_t steps);
  // All of it in one go. Those of the leases that the session does not have.
  absl::StatusOr<std::vector<LeaseId>> Reconcile(SessionId session,
                                                 absl::Span<const LeaseId> leases,
                                                 absl::Span<const uint64_t> requests);
  // It will not ask again by these: what they were granted ends. Stops after about so many leases
  // and requests, and returns how many of the requests it is done with.
  size_t DropRegrants(SessionId session, absl::Span<const uint64_t> requests,
                      size_t steps = SIZE_MAX);

  // --- Interprocess events (event/events.cc) --------------------------------------

  // Statuses of these as proto/gpumem/v1/broker.proto says, and ABORTED where the session
  // has ended.
  struct EventPlace {
    std::string name;              // in the session's tenant
    std::optional<LeaseId> lease;  // instead of a name: beside the segment of this lease
  };
  // A request of the session's that has registered one before (0: none) is answered with that.
  absl::StatusOr<IpcEventId> RegisterEvent(SessionId session, const EventPlace& place,
                                           absl::string_view device_uuid, const ExportData& handle,
                                           uint64_t request_id = 0);
  absl::StatusOr<std::vector<IpcEventView>> GetEvents(SessionId session, const EventPlace& place);
  // Whether another session was given the handle.
  absl::StatusOr<bool> UnregisterEvent(SessionId session, IpcEventId event);

  // --- Memory that was taken past the broker (unbrokered.cc) -----------------

  // All that is known now, in place of what was known before. It counts against no limit. A
  // session's goes with it.
  void SetUnbrokered(std::vector<UnbrokeredBytes> uses);

  // --- Giving memory back ----------------------------------------------------------

  // Segments to destroy, each exactly once.
  std::vector<SegmentId> TakeDoomed();
  void Destroyed(SegmentId segment);

  // Dooms retained segments until each tenant keeps at most `keep_bytes` of them on each
  // device. Empty names mean all.
  //   NOT_FOUND  no such tenant or device
  absl::StatusOr<std::vector<SegmentId>> Trim(absl::string_view tenant, absl::string_view device,
                                              uint64_t keep_bytes);

  // --- The audit (ledger/inspect/audit.cc) --------------------------------------------------

  // From now on it is told of sessions, grants, releases, publications, and of what is lost, taken
  // back and reclaimed. `sink` outlives this; null: nobody is told.
  void SetAudit(AuditSink* sink) { auditor_.SetSink(sink); }

  // --- Looking ---------------------------------------------------------------------

  // By device, and there in the order in which they are served.
  absl::StatusOr<std::vector<WaiterView>> ListWaiting(absl::string_view tenant,
                                                      absl::string_view device) const;

  // INTERNAL with a sentence naming the first violated invariant.
  absl::Status CheckInvariants() const;

 private:
  using Pool = records::Pool;
  using Tenant = records::Tenant;
  using Session = records::Session;
  using RequestKey = std::pair<SessionId, uint64_t>;
  using Segment = records::Segment;
  using Process = records::Process;
  using Lease = records::Lease;
  using Publication = records::Publication;
  using PublicationName = std::pair<std::string, std::string>;  // its tenant's and its own
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
  // Goes on with the end of what a session had, and takes the steps off `steps`. True if nothing is
  // left.
  bool WindUp(SessionId id, Session& session, size_t& steps);
  void ContinueEnding(SessionId id, size_t& steps);
  void ForgetIfDone(SessionId id, Session& session);

  void Import(SessionId id, Session& session, size_t device);
  void Unimport(SessionId id, Session& session, size_t device, bool all);  // or once
  // Ends the import of a process that is gone, and dooms what only that kept in the pool. Takes the
  // steps off `steps`, and stops where none are left.
  void EndImport(SessionId id, Session& session, size_t device, size_t& steps);
  // Nothing is left of it but that its process has pools open.
  static bool OnlyImports(const Session& session);
  // Another session of the same process is to remember which pools that has open.
  bool Bequeath(SessionId id, Session& session);
  // A session of this process and tenant of which OnlyImports is true.
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
  // `predecessor`: the tenant's session that goes as the new one comes. It may be another user's.
  absl::Status CheckSessionCount(Tenant& tenant, uid_t uid, std::optional<SessionId> predecessor);
  absl::Status CheckInFlight(Tenant& tenant);
  absl::Status CheckLeaseCount(Session& session, size_t more);
  // Counts leases, and those that operations are about to give.
  void CountLeases(Tenant& tenant, int64_t change);

  // Dooms retained segments until what is fresh would fit once they, and what is releasing
  // already, are destroyed.
  void TrimForShortfall(const Request& request, uint32_t fresh, const Claims& claims);
  // The tenant with the most retained bytes on the device, of those under `above` where that is
  // not null; null where there are none.
  Tenant* RichestRetainer(size_t device, const Tenant* above = nullptr);
  static absl::Status Deny(Tenant& tenant, const Denial& denial);
  // The same of a count.
  static absl::Status DenyCount(Tenant& tenant, Denial::Cause cause, uint64_t asked, uint64_t used,
                                uint64_t limit, absl::string_view help,
                                const Tenant* limited = nullptr);

  // The queue (admission/queue.cc, admission/waiting.cc).
  // Grants the request if it fits now; else says how it stands.
  //   RESOURCE_EXHAUSTED  it fits now, and would be too many leases
  absl::StatusOr<std::optional<Operation>> TryGrant(SessionId session, const Request& request,
                                                    const Claims& claims, Verdict* verdict);
  Operation Grant(SessionId session, const Request& request, std::vector<SegmentId> reused);
  // Where its tenant has segments of the request's size that nobody uses, and how many of these it
  // would get.
  static RetainedPool& PoolFor(const Request& request);
  static uint32_t Reusable(const Request& request);
  // In the order in which they are served.
  std::vector<WaiterId> WaitersInOrder() const;
  // How each of them stands, in that order, until `visit` says false.
  void JudgeWaiters(absl::FunctionRef<bool(WaiterId, const Waiter&, Verdict&)> visit) const;
  static QueueRank RankOf(const Request& request);
  static QueuePlace PlaceOf(WaiterId id, const Waiter& waiter) { return {waiter.rank, id}; }
  // What those claim who go before the place, where nothing is reused.
  Claims ClaimsBefore(const QueuePlace& place, const Request& request) const;
  Claims ClaimsBefore(WaiterId id) const;
  // `verdict`: by which it waits.
  void AddWaiter(WaiterId id, Waiter added, const Verdict& verdict);
  void RemoveWaiter(WaiterId id);
  // Waiters of the tenants that are under one which is under none.
  struct QueueTree {
    absl::btree_set<QueuePlace> waiters;
    absl::btree_set<QueuePlace> loose;  // of these, all but those asleep at the device's limit
    uint64_t seen = 0;                  // VersionOf it when they were last woken
    std::optional<QueuePlace> changed;  // one that claims more or less, or has gone
    bool all_behind = false;            // have to be judged for that, not only the loose ones
    // In this sweep all behind this place were woken.
    std::optional<QueuePlace> woken;
    uint64_t woken_sweep = 0;
  };
  // Waiters that no limit of their tenants keeps out, at a limit that belongs to no tenant: a
  // device's, or, the last, the daemon's of segments.
  struct QueueLimit {
    QueueLine line;
    absl::btree_set<QueuePlace> restless;  // of these, that any change there may serve
    uint64_t seen = 0;                     // VersionOf it when these were last woken
    std::optional<QueuePlace> changed;     // one that claims more or less, or has gone
  };
  // Where AdmitWaiting has come to, and what those before claim of their tenants' limits.
  struct Sweep {
    Claims claims;
    absl::flat_hash_map<const Tenant*, QueuePlace> counted;  // up to whom, of each tree
  };
  static const Tenant* TreeOf(const Tenant& tenant);
  static uint64_t VersionOf(const Tenant& top);
  uint64_t VersionOf(size_t limit) const;  // a device's index, or devices_.size(): the daemon's
  QueueLine::Left LeftAt(size_t limit) const;
  // After quotas have changed: each gets its place anew, and is to be judged.
  void PlaceAll();
  // Puts the waiter where its rank is now, with what is known of it.
  void Move(WaiterId id, Waiter& waiter, const QueueRank& rank);
  // Takes it out of all that is told by places but its tree.
  void TakeOut(const QueuePlace& place, const Waiter& waiter, QueueTree& tree);
  // Keeps in mind by what verdict it waits, and who has to be judged for that.
  void SetVerdict(WaiterId id, Waiter& waiter, const Verdict& verdict);
  void SetEntry(size_t limit, const QueuePlace& place, const QueueLine::Entry& entry);
  void NoteChange(std::optional<QueuePlace>& changed, const QueuePlace& place);
  // Wakes those that a change since the last call may serve. In a sweep, `at`: those before it had
  // their turn, and have it again in the next one.
  void Wake(const std::optional<QueuePlace>& at);
  void WakeTree(const Tenant& top, QueueTree& tree, const std::optional<QueuePlace>& at);
  void WakeOne(const QueuePlace& place, const std::optional<QueuePlace>& at);
  // Of processes that hold leases of a sort that their waiters did not ask for.
  void WakeSorted();
  // Whom no ending session keeps waiting any more.
  void WakeAwaitingEnd();
  // The next to be judged, behind swept_.
  std::optional<QueuePlace> NextAwake() const;
  // Judges one; grants or refuses it, or it waits on. True if it was granted.
  bool JudgeOne(const QueuePlace& place, Sweep& sweep, std::vector<Admitted>& admitted);
  void BeginSweep(Sweep& sweep);
  // True if the grant to one that had this place changes nothing for those before it.
  bool WasAlone(const QueuePlace& place, const Request& request, SessionId session) const;
  absl::Status CheckWaiting(Tenant& tenant);
  absl::Status CheckQueue() const;  // of CheckInvariants

  // For this request.
  void Revoke(absl::Span<const SegmentId> segments, const Request& request);
  void EndRevocation(SegmentId id, Segment& segment);
  using ProcessKey = std::pair<pid_t, uint64_t>;
  // Whether a waiter counts on this segment, which is being taken back.
  bool IsWaitedFor(Segment& segment) const;
  // FAILED_PRECONDITION where the session's process holds leases of the other sort, or revocable
  // ones are asked for and it could not be ended.
  absl::Status CheckSort(const Session& session, bool revocable) const;

  // Denies `bytes` where something denies the tenant what is new.
  absl::Status CheckUnbrokered(Tenant& tenant, uint64_t bytes) const;

  // Publications.
  absl::StatusOr<std::vector<SegmentId>> Publishable(const Session& session,
                                                     const PublishSpec& spec) const;
  absl::Status CheckPublicationRoom(Tenant& tenant, const Publication* replaced,
                                    uint64_t metadata_bytes) const;
  static absl::StatusOr<PublicationName> ParseName(absl::string_view name,
                                                   absl::string_view own_tenant);
  void CountPublication(Tenant& tenant, int change);
  // Its name's last version is remembered, unless the next one takes its place.
  void EndPublication(PublicationId id, bool replaced = false,
                      absl::Span<const AuditOperator> by = {});
  // One lease that was got through it, or was about to be, has ended.
  void Detach(std::optional<PublicationId> publication, SessionId session);
  void RemoveAttachWaiter(WaiterId id);
  absl::Status CheckPublications() const;

  // Remembers it, where the request has a number.
  void Answer(SessionId id, Session& session, uint64_t request, uint64_t number);

  void Pin(Operation& operation, Session& session, size_t steps = SIZE_MAX);
  void Expose(Operation& operation, Session& session, size_t steps);
  void StopArriving(Session& session, bool ended);
  void Unexpose(SegmentId id, Segment& segment, SessionId session_id, bool all);
  // Whether a session that releases the lease is believed to have unmapped the segment.
  bool TrustsRelease(const Session& session, LeaseId lease) const;
  // Makes the lease one of its session's.
  void AddLease(LeaseId id, Lease lease);
  void EndLease(LeaseId id, bool unmapped);
  // Puts a segment into the state that follows from who holds it.
  void Settle(SegmentId id, Segment& segment);
  void Doom(SegmentId id, Segment& segment);
  bool DoomOldest(Tenant& tenant, size_t device);  // of what it retains; false: nothing
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

  // Sessions that were restored, by what their processes called the attempts to begin them.
  std::map<std::pair<ProcessKey, uint32_t>, SessionId> begun_before_;

  uint64_t next_waiter_ = 1;
  std::vector<std::pair<WaiterId, absl::Status>> refused_;  // whose session has ended
  bool queue_moves_ = false;  // since it was last looked at somebody may fit
  // What is remembered of them so that few are judged again (admission/queue.cc).
  absl::flat_hash_map<const Tenant*, QueueTree> trees_;
  std::vector<QueueLimit> limits_;       // of the devices, and of the daemon
  absl::btree_set<QueuePlace> awake_;    // to be judged
  absl::btree_set<QueuePlace> roused_;   // by the sweep itself: in the next one
  std::optional<QueuePlace> swept_;      // up to here, if a sweep is under way
  uint64_t sweeps_ = 0;                  // that were begun
  uint64_t woken_at_ = 0;                // the sum of all devices' versions when Wake had looked
  bool queue_changed_ = false;           // a tree or a limit has changed
  bool queue_stale_ = false;             // quotas have changed: none of that is right
  absl::btree_set<WaiterId> await_end_;  // that an ending session keeps from a verdict
  std::map<ProcessKey, absl::btree_set<WaiterId>> waiting_processes_;
  std::vector<ProcessKey> sorted_processes_;  // of these, that have begun to hold leases
  uint64_t judged_ = 0;

  absl::btree_set<std::pair<absl::Time, PublicationId>> expiries_;
  std::vector<PublicationId> ended_publications_;
  std::map<WaiterId, records::AttachWaiter> attach_waiters_;
  std::vector<WaiterId> attachable_;

  RevocationTimes revocation_times_;
  absl::btree_set<SessionId> revoked_;  // to be told

  std::vector<SegmentId> doomed_;
  std::vector<SessionId> forgotten_;
  absl::btree_set<SessionId> bereaved_;
};

}  // namespace gpumemd
