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
#include "daemon/core/admission/standing.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/denial.h"
#include "daemon/core/event/ipc_events.h"
#include "daemon/core/identity/rules.h"
#include "daemon/core/ids.h"
#include "daemon/core/journal/image.h"
#include "daemon/core/journal/records.h"
#include "daemon/core/ledger/inspect/measures.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/retained_pool.h"
#include "daemon/core/ledger/sharded_map.h"
#include "daemon/core/quota/quota.h"
#include "daemon/device/device.h"

namespace gpumemd {

// The daemon's own bounds, over all tenants.
struct Bounds {
  uint32_t max_sessions = 4096;
  // Of processes of one user. And so many of all are for users who have none: one for each.
  uint32_t max_sessions_per_uid = UINT32_MAX;
  uint32_t reserved_sessions = 0;
  uint32_t max_segments = 100000;
  // Opening a segment once more costs a tenant no bytes, and the daemon some.
  uint32_t max_leases_per_session = 65536;
  uint32_t max_leases_per_tenant = 262144;
  uint32_t max_leases = 1048576;
  uint32_t max_watches_per_session = 64;
  uint32_t max_watches_per_tenant = 1024;
  uint32_t max_waiting = 4096;
  uint32_t max_events = 65536;
  uint32_t max_events_per_tenant = 16384;
  uint32_t max_events_per_session = 4000;  // a process makes 4095 (CUDA)
  uint32_t max_events_per_segment = 64;
  uint32_t max_publications = 4096;
  uint64_t max_metadata_bytes = uint64_t{256} << 20;  // of all publications
  uint64_t max_metadata_bytes_per_tenant = uint64_t{64} << 20;
};

// Segments that one operation may touch: what one SCM_RIGHTS message carries.
inline constexpr uint32_t kMaxSegmentsPerCall = 253;

// Leases that end in one go, where thousands do: what takes the Broker's mutex for a millisecond.
inline constexpr size_t kLeasesAtOnce = 512;

// Of one publication.
inline constexpr size_t kMaxPublicationSegments = 4096;
inline constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 20;

struct AcquireSpec {
  std::string device_uuid;   // empty: the first device that makes the kind
  uint64_t bytes = 0;        // of each segment, before rounding
  std::optional<Kind> kind;  // absent: the device's default
  uint32_t count = 1;
  bool most_free = false;          // instead of a UUID: where the tenant can get most
  std::vector<std::string> among;  // with most_free: one of these; empty: any
  bool without_pressure = false;   // nobody is asked to make room for it
  bool revocable = false;          // the leases may be taken back
  bool waits = false;              // also for what others hold
  uint64_t request_id = 0;         // of the session's own choice, for Regrant; 0: none
};

struct PublishSpec {
  PublicationId id{};  // of NewPublicationId; 0: the next
  std::string name;
  std::vector<LeaseId> leases;  // their segments, in this order
  uint64_t metadata_bytes = 0;
  bool to_any = false;     // every tenant's sessions may attach; else its own
  bool ephemeral = false;  // it ends with its publisher's session
  absl::Duration expire_after = absl::InfiniteDuration();  // above 0; without anybody attached
  uint64_t request = 0;  // of the client's choice: the same again is answered the same; 0: none
};

struct AttachSpec {
  std::string name;      // of the session's tenant, or "TENANT/NAME"
  uint64_t version = 0;  // this or a later one; 0: the newest that is there
  bool revocable = false;
  uint64_t request_id = 0;  // as in AcquireSpec
};

// What Begin… decided. For each segment, whether it still has to be created.
struct Operation {
  OperationId id{};
  SessionId session{};
  size_t device = 0;  // index of the devices given to the ledger; of an Acquire only
  Kind kind = Kind::kVmm;
  bool revocable = false;  // the leases
  bool regrant = false;    // the leases are there already (Regrant)
  uint64_t request_id = 0;
  std::optional<PublicationId> publication;  // of an Attach
  struct Item {
    LeaseId lease{};
    SegmentId segment{};
    bool fresh = false;   // still to be created
    bool reused = false;  // was retained: holds old bytes of the same tenant
  };
  std::vector<Item> items;
  size_t exposed = 0;  // of these, that count as what the session's process may map
};

// What BeginAcquire or BeginAttach decided: one of the two.
struct Admission {
  std::optional<Operation> operation;
  std::optional<WaiterId> waiter;
};

class Ledger {
 public:
  // `devices` are named by their index from here on. `now` gives the time for ages.
  Ledger(std::vector<DeviceInfo> devices, Bounds bounds, std::function<absl::Time()> now);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

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
  absl::StatusOr<Quota> GetQuota(absl::string_view tenant) const;

  // While draining, new sessions and operations are refused with UNAVAILABLE.
  void SetDraining(bool draining);
  bool draining() const { return draining_; }

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
  bool HasEnding() const { return !ending_.empty(); }
  bool IsEnding(SessionId session) const { return ending_.contains(session); }
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
  // The device that the request of a waiter is for.
  size_t DeviceOf(WaiterId waiter) const { return waiters_.at(waiter).request.device; }
  // How often a waiter was judged by AdmitWaiting: what the queue costs.
  uint64_t judged() const { return judged_; }
  // Whether somebody's leases are taken back for it.
  bool Revokes(WaiterId waiter) const { return waiters_.at(waiter).revokes; }

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
  PublicationId NewPublicationId() { return PublicationId{next_publication_++}; }
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

  absl::StatusOr<PublicationView> GetPublication(PublicationId id) const;
  // An empty name means all tenants.
  //   NOT_FOUND  no such tenant
  absl::StatusOr<std::vector<PublicationView>> ListPublications(absl::string_view tenant) const;
  // Of these, those that the session may attach to. A tenant without any is no error.
  absl::StatusOr<std::vector<PublicationView>> ListAttachable(SessionId session,
                                                              absl::string_view tenant) const;

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
  struct Revoked {
    std::vector<LeaseId> leases;  // all of the session's that are being taken back
    absl::Time until = absl::InfiniteFuture();
  };
  Revoked RevokedLeases(SessionId session) const;
  // The same in parts: of `count` leases from `next` on. Returns where to go on, nothing at the
  // end.
  std::optional<LeaseId> RevokedLeases(SessionId session, LeaseId next, size_t count,
                                       Revoked& revoked) const;
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
  // All leases of a session on lost segments.
  std::vector<LeaseId> LostLeases(SessionId session) const;
  // The same in parts, as of RevokedLeases.
  std::optional<LeaseId> LostLeases(SessionId session, LeaseId next, size_t count,
                                    std::vector<LeaseId>& lost) const;

  // --- What outlives the daemon ----------------------------------------------------

  // From now on all that changes is kept for TakeChanges.
  void KeepChanges() { keeps_changes_ = true; }
  // What has changed since the last call: one batch of the journal, in which the state goes from
  // one that is consistent to the next.
  std::vector<journal::Change> TakeChanges();
  // All that TakeChanges would ever have said: the state as it is.
  JournalImage Image() const;

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

  // Of a session that is there. A restored one is away until its process has come back for it.
  Presence presence(SessionId session) const { return sessions_.at(session)->presence; }
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
  void SetAudit(AuditSink* sink) { audit_ = sink; }
  // A record about a session that is there: who its process is.
  AuditRecord AuditOf(AuditEvent event, SessionId session) const;

  // --- Looking ---------------------------------------------------------------------

  const std::vector<DeviceInfo>& devices() const { return devices_; }
  absl::StatusOr<size_t> FindDevice(absl::string_view uuid) const;
  uint64_t charged(size_t device) const { return device_accounts_[device].charged(); }
  uint64_t releasing(size_t device) const {
    return device_accounts_[device].bytes(SegmentState::kReleasing);
  }
  struct Place {
    size_t device = 0;
    Kind kind = Kind::kVmm;
  };
  Place PlaceOf(SegmentId segment) const {
    return {segments_.at(segment)->device, segments_.at(segment)->kind};
  }
  bool HasSegment(SegmentId segment) const { return segments_.contains(segment); }
  // Leases of the session; 0 if there is no such session.
  size_t LeaseCountOf(SessionId session) const;
  size_t session_count() const { return sessions_.size(); }
  size_t segment_count() const { return segments_.size(); }
  size_t tenant_count() const { return tenants_.size(); }
  LeaseView Describe(const Operation::Item& item) const;
  absl::StatusOr<TenantView> GetTenant(absl::string_view tenant) const;
  absl::StatusOr<std::string> TenantOf(SessionId session) const;
  std::vector<TenantView> ListTenants() const;
  // For the metrics (ledger/inspect/measures.cc).
  LedgerMeasures Measure() const;
  absl::StatusOr<std::vector<SessionView>> ListSessions(absl::string_view tenant) const;
  absl::StatusOr<std::vector<SegmentView>> ListSegments(absl::string_view tenant,
                                                        absl::string_view device) const;
  // Leases by number, publications by name; of one segment alone where it is given.
  HoldersView ListHolders(std::optional<SegmentId> only) const;
  // The same in parts, for callers that give up the mutex between them: first all numbers, in no
  // order, then what is there of some of them, in theirs.
  std::vector<SessionId> SessionIds() const;
  std::vector<SegmentId> SegmentIds() const;
  absl::Status CheckListed(absl::string_view tenant, absl::string_view device) const;
  void View(absl::Span<const SessionId> ids, absl::string_view tenant,
            std::vector<SessionView>& views) const;
  void View(absl::Span<const SegmentId> ids, absl::string_view tenant, absl::string_view device,
            std::vector<SegmentView>& views) const;
  // Up to `count` leases of a session, from `next` on; where to go on, nothing at the end.
  std::optional<LeaseId> View(SessionId session, std::optional<SegmentId> only, LeaseId next,
                              size_t count, std::vector<LeaseHolderView>& views) const;
  std::vector<PublicationHolderView> PublicationHolders(std::optional<SegmentId> only) const;
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

  // The sum over all devices; of bytes, over all but pinned memory.
  uint64_t TotalCharged(const Tenant& tenant) const;
  static uint64_t TotalSegments(const Tenant& tenant);
  uint64_t LimitOn(const Tenant& tenant, size_t device) const;
  uint64_t GuaranteeOn(const Tenant& tenant, size_t device) const;
  uint64_t MaxRetainedOn(const Tenant& tenant, size_t device) const;
  // Whether what the tenant has, but for what is releasing, is within its limits, and so for
  // those that it is under: on this device, over all, and in number. Above them nothing is kept
  // for reuse.
  bool WithinLimits(const Tenant& tenant, size_t device) const;

  Tenant* FindTenant(absl::string_view name);
  const Tenant* FindTenant(absl::string_view name) const;
  Tenant& EnsureTenant(absl::string_view name);
  void ForgetIfIdle(Tenant& tenant);
  void ApplyQuota(Tenant& tenant, const Quota& quota);
  // Puts the tenant under the one that its quota names.
  void Link(Tenant& tenant);
  void PutUnder(Tenant& tenant, Tenant* parent);
  void CountSession(const Session& session, int change);
  void CountWaiting(Tenant& tenant, int change);
  static bool IsUnder(const Tenant& tenant, const Tenant& above);
  absl::StatusOr<Session*> LiveSession(SessionId id);
  void EndSession(SessionId id, Session& session);
  // Goes on with the end of what a session had, and takes the steps off `steps`. True if nothing is
  // left.
  bool WindUp(SessionId id, Session& session, size_t& steps);
  void ContinueEnding(SessionId id, size_t& steps);
  void ForgetIfDone(SessionId id, Session& session);

  // Memory pools (pools.cc).
  Pool& PoolOf(const Segment& segment) const { return segment.tenant->pools[segment.device]; }
  // By a process that has its pool open, though it need not have the segment itself.
  bool HeldByPool(const Segment& segment) const {
    return segment.kind == Kind::kMempool && !PoolOf(segment).importers.empty();
  }
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
  // Released memory of the tenant's pools: on a device, or on all.
  static uint64_t IdleInPools(const Tenant& tenant, std::optional<size_t> device);

  // Admission (admission.cc). Each refusal that these return counts as a denial.
  static absl::Status Draining();
  static absl::Status Lost(SegmentId segment);
  static absl::Status NoSuchLease(LeaseId lease);
  static absl::Status NoSuchTenant(absl::string_view name);
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
  // What the tenant can get on the device at most, once all that comes back is back; of a size that
  // lies idle in its pool there it can get more.
  uint64_t Obtainable(const Tenant& tenant, size_t device) const;
  // `predecessor`: the tenant's session that goes as the new one comes. It may be another user's.
  absl::Status CheckSessionCount(Tenant& tenant, uid_t uid, std::optional<SessionId> predecessor);
  absl::Status CheckInFlight(Tenant& tenant);
  absl::Status CheckLeaseCount(Session& session, size_t more);
  // Counts leases, and those that operations are about to give.
  void CountLeases(Tenant& tenant, int64_t change);

  // From the tenant's own limits, over those of the tenants that it is under, to the device's.
  std::vector<Standing> StandingsOf(const Request& request, uint32_t reused) const;
  // `exactly`: also while what ends may make room for it.
  Verdict Judge(const Request& request, uint32_t reused, const Claims& claims,
                bool exactly = false) const;
  // What is in the way of a request, as Judge has just found; with the text, which takes longer
  // than all the rest.
  Denial Explain(const Request& request, const Verdict& verdict) const;
  Denial DenialFor(const Request& request, const Standing& standing, const Claim& claim,
                   Fit fit) const;
  void AddHolders(const Standing& standing, Denial& denial) const;
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
  std::string HelpFor(const Tenant& tenant, const Denial& denial) const;

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
  // Of what is guaranteed to the tenant and those it is under, what nobody holds, while that is
  // enough for the request; else 0.
  static uint64_t Deficit(const Request& request);
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

  // Revocation.
  // Segments to be taken back so that the shortages become 0; empty where that does not do.
  std::vector<SegmentId> Victims(const Request& request, const std::vector<Standing>& standings,
                                 const Claims& claims) const;
  bool MayRevokeFrom(const Request& request, const Tenant& tenant) const;
  // For this request.
  void Revoke(absl::Span<const SegmentId> segments, const Request& request);
  void EndRevocation(SegmentId id, Segment& segment);
  using ProcessKey = std::pair<pid_t, uint64_t>;
  static ProcessKey ProcessOf(const Session& session);
  // Whether a waiter counts on this segment, which is being taken back.
  bool IsWaitedFor(Segment& segment) const;
  // FAILED_PRECONDITION where the session's process holds leases of the other sort, or revocable
  // ones are asked for and it could not be ended.
  absl::Status CheckSort(const Session& session, bool revocable) const;

  // Denies `bytes` where something denies the tenant what is new.
  absl::Status CheckUnbrokered(Tenant& tenant, uint64_t bytes) const;
  uint64_t UnbrokeredOf(const Tenant& tenant, absl::string_view device_uuid) const;
  uint64_t UnbrokeredOf(SessionId session) const;

  // Publications.
  absl::StatusOr<std::vector<SegmentId>> Publishable(const Session& session,
                                                     const PublishSpec& spec) const;
  absl::Status CheckPublicationRoom(Tenant& tenant, const Publication* replaced,
                                    uint64_t metadata_bytes) const;
  uint64_t TakeNextVersion(Tenant& tenant, const std::string& name, const Publication* replaced);
  // No name of the tenant that is not remembered has had a higher version.
  void ForgetVersion(Tenant& tenant, uint64_t version);
  // The same of any tenant's.
  void ForgetVersion(uint64_t version);
  // Of a tenant that is about to be forgotten, and of one that is there (again).
  void KeepVersions(const Tenant& tenant);
  void RecallVersions(Tenant& tenant);
  static absl::StatusOr<PublicationName> ParseName(absl::string_view name,
                                                   absl::string_view own_tenant);
  // Null where there is none, or where a session of `reader` (null: an operator) may not know it.
  const Publication* FindPublication(const PublicationName& name, const Tenant* reader) const;
  static bool MayAttach(const Publication& publication, const Tenant& reader);
  void CountPublication(Tenant& tenant, int change);
  // Its name's last version is remembered, unless the next one takes its place.
  void EndPublication(PublicationId id, bool replaced = false,
                      absl::Span<const AuditOperator> by = {});
  // One lease that was got through it, or was about to be, has ended.
  void Detach(std::optional<PublicationId> publication, SessionId session);
  absl::Time ExpiryOf(const Publication& publication) const;
  void RemoveAttachWaiter(WaiterId id);
  PublicationView View(PublicationId id, const Publication& publication) const;
  absl::Status CheckPublications() const;

  // What the session's request was answered before.
  static std::optional<uint64_t> AnswerTo(const Session& session, uint64_t request);
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

  TenantView View(const Tenant& tenant) const;

  // Records, where there is a sink.
  static AuditRecord AuditOf(AuditEvent event, const Publication& publication);
  void Audit(AuditRecord record) const;
  struct AuditedSegment {
    SegmentId segment{};
    LeaseId lease{};  // 0: none
  };
  // One record like `about` for each owner, device and kind of these.
  void AuditSegments(const AuditRecord& about, absl::Span<const AuditedSegment> segments) const;
  // Whether the sink needs no record of this.
  bool LeavesOut(AuditEvent event, SessionId session,
                 absl::Span<const AuditedSegment> segments) const;
  void AuditGrant(const Operation& operation) const;
  // Of these, those that it has: they are about to end.
  void AuditRelease(SessionId session, absl::Span<const LeaseId> leases,
                    absl::string_view why = "") const;
  void AuditSession(AuditEvent event, SessionId session) const;
  // Of what an ended process could map: what nobody maps any more.
  void AuditReclaim(SessionId session, absl::Span<const SegmentId> mapped) const;
  void AuditRevocation(AuditEvent event, absl::Span<const SegmentId> segments,
                       absl::string_view why) const;
  void AuditLost(const absl::flat_hash_set<SegmentId>& segments) const;
  void AuditPublish(SessionId session, const Publication& publication) const;
  void AuditPublicationEnd(const Publication& publication, bool replaced,
                           absl::Span<const AuditOperator> by) const;

  // Marks what TakeChanges is to tell of.
  void Touch(SessionId id) { Touch(touched_.sessions, id); }
  void Touch(SegmentId id) { Touch(touched_.segments, id); }
  void Touch(LeaseId id) { Touch(touched_.leases, id); }
  void Touch(IpcEventId id) { Touch(touched_.events, id); }
  void Touch(PublicationId id) { Touch(touched_.publications, id); }
  void Touch(const RequestKey& key) { Touch(touched_.answers, key); }
  // It has so many segments, and is new or has ended.
  void Touch(PublicationId id, size_t segments) {
    Touch(id);
    Touch(touched_.lists, std::pair(id, segments));
  }
  void Touch(SessionId session, SegmentId segment) {
    Touch(touched_.exposures, std::pair(session, segment));
  }
  void Touch(SessionId session, size_t device) {
    Touch(touched_.imports, std::pair(session, device));
  }
  template <typename Key>
  void Touch(std::vector<Key>& touched, Key key) {
    if (keeps_changes_) touched.push_back(key);
  }
  std::optional<journal::Session> RecordOf(SessionId id) const;
  std::optional<journal::Segment> RecordOf(SegmentId id) const;
  std::optional<journal::Lease> RecordOf(LeaseId id) const;
  std::optional<journal::Exposure> RecordOf(SessionId session, SegmentId segment) const;
  std::optional<journal::PoolImport> RecordOf(SessionId session, size_t device) const;
  std::optional<journal::IpcEvent> RecordOf(IpcEventId id) const;
  journal::Counters NumbersGivenOut() const;  // the highest
  std::optional<journal::Publication> RecordOf(PublicationId id) const;
  std::optional<journal::PublicationItem> RecordOf(PublicationId id, size_t index) const;
  std::optional<journal::Answer> RecordOf(const RequestKey& key) const;
  void RestoreSessions(const JournalImage& image, const Survivors& survivors);
  void RestoreSegments(const JournalImage& image, const Survivors& survivors, Restored& restored);
  void RestoreHolders(const JournalImage& image);
  void RestorePublications(const JournalImage& image, const Survivors& survivors,
                           Restored& restored);

  const std::vector<DeviceInfo> devices_;
  const Bounds bounds_;
  const std::function<absl::Time()> now_;

  std::vector<Account> device_accounts_;
  // By device: bytes that ended processes still had, and nobody else.
  std::vector<uint64_t> reclaimed_;
  std::map<std::string, std::unique_ptr<Tenant>, std::less<>> tenants_;
  Quota default_quota_;
  bool draining_ = false;

  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions_;
  absl::flat_hash_map<SegmentId, std::unique_ptr<Segment>> segments_;
  ShardedMap<LeaseId, Lease> leases_;
  uint64_t lease_count_ = 0;  // of all tenants
  ShardedMap<Secret, TicketEntry> tickets_;
  absl::flat_hash_map<Secret, SessionId> tokens_;
  absl::btree_set<SessionId> ending_;
  absl::flat_hash_map<uid_t, uint32_t> sessions_of_uid_;  // live and lingering
  // Sessions that were restored, by what their processes called the attempts to begin them.
  std::map<std::pair<ProcessKey, uint32_t>, SessionId> begun_before_;

  uint64_t next_session_ = 1;
  uint64_t next_segment_ = 1;
  uint64_t next_lease_ = 1;
  uint64_t next_operation_ = 1;
  uint64_t open_operations_ = 0;
  uint64_t regranting_ = 0;  // items of those that are regrants

  IpcEvents events_;
  std::vector<UnbrokeredBytes> unbrokered_;

  std::map<WaiterId, Waiter> waiters_;  // by arrival
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

  absl::btree_map<PublicationId, Publication> publications_;
  absl::btree_map<PublicationName, PublicationId> by_name_;  // the newest of each
  absl::btree_set<std::pair<absl::Time, PublicationId>> expiries_;
  std::vector<PublicationId> ended_publications_;
  uint64_t metadata_bytes_ = 0;
  uint64_t next_publication_ = 1;
  std::map<WaiterId, records::AttachWaiter> attach_waiters_;
  std::vector<WaiterId> attachable_;

  std::map<ProcessKey, Process> processes_;
  RevocationTimes revocation_times_;
  absl::btree_set<SegmentId> revoking_;
  absl::btree_set<SessionId> revoked_;  // to be told

  AuditSink* audit_ = nullptr;

  std::vector<SegmentId> doomed_;
  std::vector<SessionId> forgotten_;
  absl::btree_set<SessionId> bereaved_;

  bool keeps_changes_ = false;
  struct Touched {
    std::vector<SessionId> sessions;
    std::vector<SegmentId> segments;
    std::vector<LeaseId> leases;
    std::vector<std::pair<SessionId, SegmentId>> exposures;
    std::vector<std::pair<SessionId, size_t>> imports;
    std::vector<IpcEventId> events;
    std::vector<RequestKey> answers;
    std::vector<PublicationId> publications;
    std::vector<std::pair<PublicationId, size_t>> lists;  // and how many segments it has, or had
  } touched_;
  // The highest version of the names that are not published any more; and of those among them of
  // which not even the tenant is remembered: a name of which nothing is known begins behind it, so
  // that the versions of every name grow.
  uint64_t ended_version_ = 0, forgotten_version_ = 0;
  // Tenants that are forgotten, the oldest first, and the highest version of their names: what one
  // tenant publishes does not show in the versions of others.
  std::map<uint64_t, std::pair<std::string, uint64_t>> gone_tenants_;
  absl::flat_hash_map<std::string, uint64_t> gone_places_;  // in gone_tenants_, by name
  uint64_t next_gone_ = 1;
  journal::Counters recorded_numbers_;  // that TakeChanges has told of
};

}  // namespace gpumemd
