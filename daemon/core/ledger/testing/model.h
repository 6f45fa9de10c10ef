// A second, naive ledger, to compare the first with: the promises of ledger.h in the simplest form.
// It keeps lists of holders and no sums; every number is counted anew from the lists. Events forget
// nothing: after each step the model looks for entries that are no longer needed.
//
// Each method plays one call of the ledger. It takes the arguments and the ledger's answer, checks
// the answer, and moves to the next state.
//
//   INTERNAL  the answer is wrong; the message says what was expected
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

class LedgerModel {
 public:
  LedgerModel(std::vector<DeviceInfo> devices, Bounds bounds);

  // --- Calls of the ledger -----------------------------------------------------------

  void Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults);
  absl::Status SetQuota(const std::string& tenant, const Quota& quota, const absl::Status& answer);
  void OverrideQuota(const std::string& tenant, const Quota& quota);
  absl::Status UnsetQuota(const std::string& tenant, const Quota& quota,
                          const absl::Status& answer);
  void SetDraining(bool draining);
  absl::Status OpenSession(const std::string& tenant, const std::string& client,
                           const PeerIdentity& peer, absl::Time now, const Secret& token,
                           const absl::StatusOr<SessionId>& answer);
  // SocketClosed and ProcessGone begin the end of a session. ContinueEnding goes on with it, as far
  // as the ledger has come.
  void SocketClosed(SessionId session);
  void ProcessGone(SessionId session);
  absl::Status ContinueEnding(const Ledger& ledger);
  absl::Status BeginCall(SessionId session, const absl::Status& answer);
  void EndCall(SessionId session);
  absl::Status BeginAcquire(SessionId session, const AcquireSpec& spec, absl::Time now,
                            const absl::StatusOr<Admission>& answer);
  absl::Status AdmitWaiting(const std::vector<Ledger::Admitted>& answer, absl::Time now);
  absl::Status EndWait(WaiterId waiter, bool expired, const absl::Status& answer);
  absl::Status BeginOpen(SessionId session, absl::Span<const Secret> tickets, bool revocable,
                         uint64_t request_id, const absl::StatusOr<Operation>& answer);
  absl::Status Commit(OperationId operation, const absl::Status& answer);
  void Abort(OperationId operation, bool handed_over);
  void Created(SegmentId segment) { segments_.at(segment).made = true; }
  absl::Status MakeRoomOnDevice(SessionId session, size_t device, uint64_t bytes, bool answer);
  absl::Status DriverDenial(SessionId session, size_t device, uint64_t bytes,
                            const absl::Status& answer);
  absl::Status Release(SessionId session, absl::Span<const LeaseId> leases,
                       const absl::Status& answer);
  absl::Status Share(SessionId session, LeaseId lease, TicketScope scope, const Secret& candidate,
                     const absl::StatusOr<Secret>& answer);
  void MarkLost(absl::Span<const SegmentId> segments);
  absl::Status TakeBereaved(const std::vector<SessionId>& answer);
  absl::Status RegisterEvent(SessionId session, const Ledger::EventPlace& place,
                             const std::string& device, const ExportData& handle, uint64_t request,
                             const absl::StatusOr<IpcEventId>& answer);
  absl::Status GetEvents(SessionId session, const Ledger::EventPlace& place,
                         const absl::StatusOr<std::vector<IpcEventView>>& answer);
  absl::Status UnregisterEvent(SessionId session, IpcEventId event,
                               const absl::StatusOr<bool>& answer);
  void SetUnbrokered(const std::vector<UnbrokeredBytes>& uses);
  void SetRevocationTimes(const Ledger::RevocationTimes& times) { times_ = times; }
  absl::Status TakeRevoked(const std::vector<SessionId>& answer);
  absl::Status TakeOverdue(absl::Time now, const std::vector<Ledger::Overdue>& answer);
  absl::Status TakeDoomed(const std::vector<SegmentId>& answer);
  void Destroyed(SegmentId segment);
  absl::Status Trim(const std::string& tenant, const std::string& device, uint64_t keep_bytes,
                    const absl::StatusOr<std::vector<SegmentId>>& answer);
  absl::Status TakeForgotten(std::vector<SessionId> answer);

  absl::Status Publish(SessionId session, const PublishSpec& spec, absl::Time now,
                       const absl::StatusOr<Ledger::Published>& answer);
  absl::Status BeginAttach(SessionId session, const AttachSpec& spec,
                           const absl::StatusOr<Admission>& answer);
  absl::Status TakeAttachable(const std::vector<WaiterId>& answer);
  absl::Status EndAttachWait(WaiterId waiter, bool expired, const absl::Status& answer);
  // nullopt: by an operator.
  absl::Status Unpublish(std::optional<SessionId> session, const std::string& name,
                         uint64_t request, const absl::StatusOr<uint64_t>& answer);
  void ExpirePublications(absl::Time now);
  absl::Status TakeEndedPublications(const std::vector<PublicationId>& answer);
  // Call after each step: a session that is no longer attached was attached until then.
  void NoteAttached(absl::Time now);

  // --- The daemon is killed, and another goes on (model_restart.cc) ------------------

  absl::Status Restart(const Ledger::Survivors& survivors, const Ledger::Restored& answer);
  absl::Status Regrant(SessionId session, uint64_t request, uint32_t count,
                       const std::optional<Operation>& answer);
  absl::Status RegrantAttach(SessionId session, uint64_t request,
                             const std::optional<Operation>& answer);
  void DropRegrants(SessionId session, const std::vector<uint64_t>& requests);
  absl::Status Resume(SessionId session, const PeerIdentity& peer, const absl::Status& answer);
  absl::Status Reconcile(SessionId session, const std::vector<LeaseId>& leases,
                         const std::set<uint64_t>& requests,
                         const absl::StatusOr<std::vector<LeaseId>>& answer);
  // Grants from before a restart that sessions may ask for again, by request.
  using Regrants = std::map<std::pair<SessionId, uint64_t>, std::vector<LeaseId>>;
  const Regrants& regrants() const { return regrants_; }
  // Returns the segments whose memory outlives the daemon.
  std::set<SegmentId> Lasting() const;
  std::map<std::string, Quota> Overridden() const;

  // Checks that every tenant, session and segment that the ledger lists is the same as here.
  // CompareFiltered checks those that it lists for one tenant and device.
  absl::Status Compare(const Ledger& ledger, absl::Time now) const;
  absl::Status CompareFiltered(const Ledger& ledger, const std::string& tenant,
                               const std::string& device, absl::Time now) const;

  // Checks that no session waits for memory that is available.
  absl::Status NobodyWaitsInVain() const;

  // --- For choosing the next step ----------------------------------------------------

  // A request to one device, with all defaults resolved.
  struct Request {
    std::string tenant;
    size_t device = 0;
    Kind kind = Kind::kVmm;
    uint64_t bytes = 0;  // of each segment, rounded up
    uint32_t count = 1;
    bool revocable = false;
    uint64_t request_id = 0;
    uint64_t in_all() const { return bytes * count; }
  };
  // One limit: its cause, its tenant ("": no tenant's) and its device.
  struct LimitName {
    Denial::Cause cause{};
    std::string whose;
    size_t device = 0;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 means the operator itself
    auto operator<=>(const LimitName&) const = default;
  };
  struct Waiter {
    SessionId session{};
    Request request;
    bool asked_to = false;
    absl::Time since;
    bool revokes = false;         // segments are, or were, revoked for it
    std::set<LimitName> claimed;  // other requests get nothing there before it
  };

  struct Session {
    std::string tenant;
    std::string client;
    PeerIdentity peer;
    Secret token{};
    absl::Time opened;
    bool live = true;
    bool process_gone = false;
    bool ending = false;   // not live, and still has some of its leases or mappings
    bool goes_on = false;  // it was ending after an earlier call
    Presence presence = Presence::kHere;
    uint32_t calls = 0;
  };
  struct Lease {
    SessionId session{};
    SegmentId segment{};
    std::optional<Secret> tickets[2];  // by TicketScope
    std::optional<PublicationId> publication{};
    uint64_t request_id = 0;
  };
  const std::map<WaiterId, Waiter>& waiters() const { return waiters_; }
  const std::map<SessionId, Session>& sessions() const { return sessions_; }
  const std::map<LeaseId, Lease>& leases() const { return leases_; }
  const std::map<OperationId, Operation>& operations() const { return operations_; }
  const std::set<SegmentId>& in_destruction() const { return in_destruction_; }
  struct Publication {
    PublicationId id{};
    std::string tenant, name;
    uint64_t version = 0;
    std::vector<SegmentId> segments;
    uint64_t metadata_bytes = 0;
    bool to_any = false;
    bool ephemeral = false;
    absl::Duration expire_after;
    absl::Time published;
    absl::Time idle_since;
    SessionId publisher{};
    bool attached = false;  // a session was attached after the last step
  };
  const std::vector<Publication>& publications() const { return publications_; }
  struct AttachWaiter {
    SessionId session{};
    std::string tenant, name;
    uint64_t version = 0;
  };
  const std::map<WaiterId, AttachWaiter>& attach_waiters() const { return attach_waiters_; }
  struct Event {
    IpcEventId id{};
    SessionId session{};
    std::string device;
    ExportData handle{};
    Ledger::EventPlace place;
    bool handed_out = false;
    bool listed = true;  // false: the lease that it belongs to has ended
    SegmentId segment{};
  };
  const std::vector<Event>& events() const { return events_; }
  // Returns the segments on one device whose kind lives in a context.
  std::vector<SegmentId> ContextBound(size_t device) const;
  size_t segment_count() const { return segments_.size(); }
  SegmentState StateOf(SegmentId segment) const;
  bool AnyReleasing() const;
  const std::string& OwnerOf(SegmentId segment) const { return segments_.at(segment).tenant; }
  bool IsRevocable(SegmentId segment) const { return segments_.at(segment).revocable; }
  bool Knows(const std::string& tenant) const { return tenants_.contains(tenant); }
  std::vector<std::string> TenantNames() const;
  const Quota& QuotaOf(const std::string& tenant) const { return tenants_.at(tenant).quota; }
  // Returns the tenant and all tenants above it, the nearest first.
  std::vector<std::string> PathOf(const std::string& tenant) const;
  // Returns the part of the tenant's guarantee that is not held; without guarantees above it.
  uint64_t UnusedGuarantee(const std::string& tenant, size_t device) const;
  // True if the tenant gets nothing new because of memory that its processes took past the broker.
  bool TookTooMuch(const std::string& tenant) const { return PastTheBroker(tenant).has_value(); }
  // Returns the unused guarantees of the tenant and those above it, if they cover the request; else
  // 0.
  uint64_t Deficit(const Request& request) const;
  // True if no guarantee and no configured limit rules out the request on its device. `emptied`: as
  // if no memory were held.
  bool Allowed(const Request& request, bool emptied) const;
  // True if the session's process has, or may still map, memory that is not revocable.
  bool HoldsFirmly(SessionId session) const;
  absl::Time NextOverdue() const;
  bool Granted(const Operation& operation) const { return operations_.contains(operation.id); }

 private:
  struct Tenant {
    Quota quota;
    std::string parent;  // empty: none
    bool configured = false;
    bool quota_set = false;
    uint64_t denials = 0;
    std::vector<uint64_t> peaks;  // by device
  };
  struct Segment {
    std::string tenant;
    size_t device = 0;
    Kind kind = Kind::kVmm;
    uint64_t bytes = 0;
    absl::Time created;
    uint64_t kept_since = 0;  // above 0: retained; the lower, the older
    bool given_up = false;    // doomed, perhaps taken by TakeDoomed, not yet destroyed
    bool made = false;
    bool lost = false;
    bool shared_out = false;  // it was given to another tenant
    bool revocable = false;
    bool revoking = false;  // it is being revoked; the next fields are about that
    absl::Time until;       // when the next step is due
    bool asked_to_end = false;
    bool ended = false;
    bool stuck = false;  // its holders did not end even by force
  };
  // A process was sent a segment, and may map it. One entry for each time.
  struct Mapping {
    SessionId session{};
    SegmentId segment{};
    bool revocable = false;  // the lease was revocable
    bool operator==(const Mapping& other) const {
      return session == other.session && segment == other.segment;
    }
  };
  // A process was sent memory of its tenant's pool on a device, and has the pool open. One entry
  // for each time.
  struct Import {
    SessionId session{};
    size_t device = 0;
    bool operator==(const Import&) const = default;
  };
  // The part of a limit that waiters ahead will take.
  struct Claim {
    uint64_t asked = 0;
    uint64_t need = 0;
  };
  using Claims = std::map<LimitName, Claim>;
  enum class Fit { kNow, kSoon, kRevoked, kBlocked };
  // A limit, and the state of a request against it.
  struct Limit {
    LimitName name;
    uint64_t asked;      // in total, including reused segments
    uint64_t used;       // without segments that are reused now
    uint64_t held;       // of used: does not come back without its holders
    uint64_t not_taken;  // of held: is not being revoked
    uint64_t firm;       // of held: cannot be revoked
    uint64_t limit;
    uint64_t need = 0;    // with all guarantees
    uint64_t growth = 0;  // of the need, by the request
    uint64_t least = 0;   // the need with the request, if no other memory were held
    bool Fits(uint64_t taken, const Claim& claim) const;
    bool KeepsGuarantees(const Claim& claim) const;
    Fit FitOf(const Claim& claim, bool may_revoke) const;
  };
  struct Expected {
    LimitName name;  // its cause is the denial's cause
    uint64_t asked = 0, used = 0, limit = 0;
  };
  struct Judgement {
    Fit fit = Fit::kNow;
    bool hopeless = false;
    bool awaits_end = false;         // of kSoon: a session that is ending may make room
    std::set<LimitName> in_the_way;  // and those before
    std::vector<Limit> limits;
    std::vector<SegmentId> victims;
    Expected denial;
  };
  // `exactly`: also while sessions are ending.
  Judgement Judge(const Request& request, const std::set<SegmentId>& reused, const Claims& claims,
                  bool exactly = false) const;
  static Claim On(const Claims& claims, const LimitName& name);
  static void Add(const std::vector<Limit>& limits, const std::set<LimitName>& which,
                  Claims& claims);
  // Returns the segments that the request would reuse.
  std::set<SegmentId> Reusable(const Request& request) const;
  std::vector<SegmentId> VictimsFor(const Request& request, const std::vector<Limit>& limits,
                                    const Claims& claims) const;
  bool Counts(const LimitName& limit, const Segment& segment) const;  // of limits in bytes
  bool IsWaitedFor(SegmentId segment);
  void TakeBack(SegmentId segment, absl::Time now);
  // Gives up and revokes the segments that the request needs and may take.
  void MakeRoom(const Request& request, const std::set<SegmentId>& reused,
                const Judgement& judgement, const Claims& claims, absl::Time now);
  absl::Status Grant(SessionId session, const Request& request, const std::set<SegmentId>& reused,
                     absl::Time now, const Operation& answer);
  bool GoesBefore(const Request& request, const Request& other) const;
  std::vector<WaiterId> InOrder() const;
  Claims ClaimsOfThoseBefore(WaiterId waiter) const;
  void Leave(WaiterId waiter);
  bool OtherSort(SessionId session, bool revocable) const;
  // Returns the device of the first use past the broker for which a tenant is denied new memory.
  std::optional<size_t> PastTheBroker(const std::string& tenant) const;
  uint64_t Unbrokered(const std::string& tenant, size_t device) const;
  absl::Status ExpectUnbrokered(const Request& request, const absl::Status& answer);
  absl::Status CompareWaiters(const Ledger& ledger, const std::string& tenant,
                              const std::string& device, absl::Time now) const;
  absl::Status CheckDenial(const Denial& denial, const std::string& tenant,
                           const Expected& expected) const;

  bool Live(SessionId session) const;
  bool Held(SegmentId segment) const;
  bool MayMap(SessionId session, SegmentId segment) const;
  bool MayMap(SegmentId segment) const;  // any process
  // Returns the sessions whose processes have the segment's pool open; none for other kinds.
  std::set<SessionId> Importers(SegmentId segment) const;
  // True if nothing of the session is left except that its process has pools open.
  bool OnlyImports(SessionId session) const;
  std::optional<SessionId> OtherOfItsProcess(SessionId session) const;
  size_t DeviceIndex(const std::string& uuid) const;  // devices_.size(): none

  // Selects the segments of a tenant and those under it ("": all) to count, on a device or
  // everywhere.
  enum class Which {
    kAll,
    kStaying,   // not given up
    kHeld,      // neither retained nor given up
    kNotTaken,  // of kHeld: not being revoked
    kFirm,      // of kHeld: cannot be revoked
    kGivenUp,
  };
  static constexpr size_t kEverywhere = SIZE_MAX;
  static constexpr size_t kUnpinned = SIZE_MAX - 1;  // everywhere but in pinned memory
  struct Sum {
    uint64_t bytes = 0;
    uint64_t segments = 0;
  };
  Sum Of(absl::string_view tenant, size_t device, Which which,
         const std::set<SegmentId>& without = {}) const;
  uint64_t Retained(const std::string& tenant, size_t device) const;  // of the tenant alone, bytes

  bool IsUnder(const std::string& tenant, absl::string_view above) const;
  bool Pinned(size_t device) const;
  bool Makes(size_t device, Kind kind) const;
  Kind KindFor(const std::string& tenant, const AcquireSpec& spec, size_t device) const;
  uint64_t Obtainable(const std::string& tenant, size_t device) const;
  // Returns the device for a request; else the code of its refusal.
  absl::StatusOr<size_t> DeviceFor(const std::string& tenant, const AcquireSpec& spec) const;
  uint64_t LimitOn(const std::string& tenant, size_t device) const;
  uint64_t MaxRetainedOn(const Tenant& tenant, size_t device) const;
  uint64_t GuaranteeOn(const std::string& tenant, size_t device) const;
  // Returns the bytes that must be available for a tenant ("": all) that holds `more` more itself.
  // `emptied`: as if no other memory were held.
  uint64_t Need(const std::string& tenant, size_t device, uint64_t more = 0,
                bool emptied = false) const;
  bool OverALimit(const std::string& tenant, size_t device) const;
  std::vector<Limit> LimitsFor(const Request& request, const std::set<SegmentId>& reused) const;
  void GiveUpFor(const Request& request, uint32_t fresh, const Claims& claims);

  // GiveUpOldest gives up the segment that a tenant retained first on a device. GiveUpAnywhere
  // takes the first device on which the tenant retains any. Both return false if the tenant retains
  // none.
  bool GiveUpOldest(const std::string& tenant, size_t device);
  bool GiveUpAnywhere(const std::string& tenant, bool pinned_too = true);
  // For the tenant that retains most on the device; by name if several do.
  bool GiveUpOfTheRichest(size_t device, absl::string_view above = "");
  void ApplyQuota(const std::string& tenant, const Quota& quota);
  void GiveUpAllOf(const std::string& tenant);
  void GiveUp(Segment& segment);
  void Link(const std::string& tenant);
  absl::StatusCode Check(const std::string& tenant, const Quota& quota) const;
  void NotePeaks();

  // For a restart.
  void ForgetSession(SessionId session);
  void ForgetSegment(SegmentId segment);
  absl::Status RestorePublications(const Ledger::Survivors& survivors,
                                   const Ledger::Restored& answer);
  // Updates a segment that may no longer be held.
  void Rest(SegmentId segment);
  // True if a release of the lease is trusted.
  bool Trusts(const Lease& lease) const;
  void EndLease(LeaseId lease, bool unmapped);
  void EndSession(SessionId session);
  bool HasEnding() const;
  // True if nothing is left of a session that has ended.
  bool HasEnded(SessionId session) const;
  void Unmap(SessionId session, SegmentId segment);           // one entry
  void Unimport(SessionId session, size_t device, bool all);  // all entries, or one
  // Forgets sessions and tenants that nothing is left of. Call after each step.
  void Sweep();

  template <typename... What>
  static absl::Status Wrong(const What&... what) {
    return absl::InternalError(absl::StrCat(what...));
  }
  static absl::Status ExpectCode(const absl::Status& answer, absl::StatusCode code);
  // Checks that the tenant was denied it, and counts the denial.
  absl::Status ExpectDenial(const absl::Status& answer, const std::string& tenant,
                            const Expected& expected);
  absl::Status CompareTenants(const Ledger& ledger) const;

  // Returns the earlier answer to the session's request; 0 is no request.
  std::optional<uint64_t> AnswerTo(SessionId session, uint64_t request) const;
  void Answered(SessionId session, uint64_t request, uint64_t number);
  const Publication* FindPublication(const std::string& tenant, const std::string& name) const;
  std::set<SessionId> AttachedTo(PublicationId id) const;
  bool IsPublished(SegmentId segment) const;
  absl::Time ExpiryOf(const Publication& publication) const;
  absl::Time NextExpiry() const;
  void EndPublication(PublicationId id, bool replaced = false);
  void LeaveAttachQueue(WaiterId id);
  void EndAttachWaitsOf(std::optional<SessionId> session);  // nullopt: of all
  absl::Status ComparePublications(const Ledger& ledger, const std::string& tenant,
                                   absl::Time now) const;
  // Checks the denial if there are too many waiters already; else nullopt.
  std::optional<absl::Status> NoRoomToWait(const std::string& tenant, const absl::Status& answer);
  uint64_t WaitingOf(const std::string& tenant) const;
  // Checks the denial if there are too many leases already; else nullopt.
  std::optional<absl::Status> NoRoomForLeases(SessionId session, uint64_t more,
                                              const absl::Status& answer);

  const std::vector<DeviceInfo> devices_;
  const Bounds bounds_;
  Quota defaults_;
  bool draining_ = false;
  uint64_t clock_ = 0;  // orders retained segments

  std::map<std::string, Tenant> tenants_;
  std::map<SessionId, Session> sessions_;
  std::map<SegmentId, Segment> segments_;
  std::map<LeaseId, Lease> leases_;
  std::map<OperationId, Operation> operations_;
  std::vector<Mapping> mappings_;
  std::vector<Import> imports_;
  std::set<SegmentId> in_destruction_;  // taken by TakeDoomed, not yet destroyed
  std::vector<SessionId> forgotten_;
  std::set<SessionId> bereaved_;
  std::map<WaiterId, Waiter> waiters_;
  std::vector<WaiterId> refused_;  // their session has ended
  bool stirred_ = false;           // a change that waiters may wait for
  std::set<SessionId> revoked_;    // to be told
  Ledger::RevocationTimes times_;
  std::vector<UnbrokeredBytes> unbrokered_;
  std::vector<Event> events_;
  Regrants regrants_;
  std::vector<Publication> publications_;  // by number
  std::map<std::pair<std::string, std::string>, uint64_t> last_versions_;
  // ended_version_: the highest of all versions that ended. forgotten_version_: the same as of the
  // last restart. gone_versions_: by tenant, of names forgotten with the tenant.
  uint64_t ended_version_ = 0, forgotten_version_ = 0;
  std::map<std::string, uint64_t> gone_versions_;
  // For each session, the last requests that were answered with a number, and the number.
  std::map<SessionId, std::vector<std::pair<uint64_t, uint64_t>>> answered_;
  std::set<PublicationId> ended_publications_;
  std::map<WaiterId, AttachWaiter> attach_waiters_;
  std::set<WaiterId> attachable_;
  uint64_t last_publication_ = 0;
  // No number is ever given out twice.
  uint64_t last_session_ = 0, last_segment_ = 0, last_lease_ = 0, last_operation_ = 0;
  uint64_t last_waiter_ = 0;
  uint64_t last_event_ = 0;
};

}  // namespace gpumemd
