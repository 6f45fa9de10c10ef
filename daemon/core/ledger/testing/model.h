// A second ledger, to hold the first against: the promises of ledger.h in the most naive
// form. It keeps lists of who holds what and no sum of anything; every number is counted
// anew by going through the lists, and nothing is forgotten by an event but by looking,
// after each step, for what nobody needs any more.
//
// Each method plays one call of the ledger's: it is given the arguments and the ledger's
// answer, says whether the answer is right, and goes on to the state that follows.
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

  // --- Calls of the ledger's -------------------------------------------------------

  void Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults);
  absl::Status SetQuota(const std::string& tenant, const Quota& quota, const absl::Status& answer);
  void OverrideQuota(const std::string& tenant, const Quota& quota);
  absl::Status UnsetQuota(const std::string& tenant, const Quota& quota,
                          const absl::Status& answer);
  void SetDraining(bool draining);
  absl::Status OpenSession(const std::string& tenant, const std::string& client,
                           const PeerIdentity& peer, absl::Time now, const Secret& token,
                           const absl::StatusOr<SessionId>& answer);
  // These begin the end of a session; ContinueEnding goes on with it, as far as the ledger has
  // come.
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
  // Nobody's: an operator's.
  absl::Status Unpublish(std::optional<SessionId> session, const std::string& name,
                         uint64_t request, const absl::StatusOr<uint64_t>& answer);
  void ExpirePublications(absl::Time now);
  absl::Status TakeEndedPublications(const std::vector<PublicationId>& answer);
  // After each step: whoever is attached no longer has been until then.
  void NoteAttached(absl::Time now);

  // --- The daemon is killed, and another goes on (model_restart.cc) ----------

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
  // What sessions may ask for once more: what they were granted before, by request.
  using Regrants = std::map<std::pair<SessionId, uint64_t>, std::vector<LeaseId>>;
  const Regrants& regrants() const { return regrants_; }
  // Segments whose memory outlives the daemon; and those of which nobody has ever had any.
  std::set<SegmentId> Lasting() const;
  std::map<std::string, Quota> Overridden() const;

  // Every tenant, session and segment that the ledger lists is as here; so are those that
  // it lists for one tenant and device.
  absl::Status Compare(const Ledger& ledger, absl::Time now) const;
  absl::Status CompareFiltered(const Ledger& ledger, const std::string& tenant,
                               const std::string& device, absl::Time now) const;

  // Nobody waits for what is there.
  absl::Status NobodyWaitsInVain() const;

  // --- For choosing what to do next ------------------------------------------------

  // What is asked of a device, once it is known what is meant.
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
  // One limit, by its cause, by whose it is ("": nobody's of the tenants) and where it counts.
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
    bool revokes = false;         // something is, or was, taken back for it
    std::set<LimitName> claimed;  // others get nothing there before it
  };

  struct Session {
    std::string tenant;
    std::string client;
    PeerIdentity peer;
    Secret token{};
    absl::Time opened;
    bool live = true;
    bool process_gone = false;
    bool ending = false;   // not live, and has some of what it had
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
    bool attached = false;  // somebody was, after the last step
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
    bool listed = true;  // false: the lease that it is beside has ended
    SegmentId segment{};
  };
  const std::vector<Event>& events() const { return events_; }
  // Those of kinds that live in a context, on one device.
  std::vector<SegmentId> ContextBound(size_t device) const;
  size_t segment_count() const { return segments_.size(); }
  SegmentState StateOf(SegmentId segment) const;
  bool AnyReleasing() const;
  const std::string& OwnerOf(SegmentId segment) const { return segments_.at(segment).tenant; }
  bool IsRevocable(SegmentId segment) const { return segments_.at(segment).revocable; }
  bool Knows(const std::string& tenant) const { return tenants_.contains(tenant); }
  std::vector<std::string> TenantNames() const;
  const Quota& QuotaOf(const std::string& tenant) const { return tenants_.at(tenant).quota; }
  // The tenant, and all that it is under, the nearest first.
  std::vector<std::string> PathOf(const std::string& tenant) const;
  // What of the tenant's own guarantee nobody holds.
  uint64_t UnusedGuarantee(const std::string& tenant, size_t device) const;
  // Whether it gets nothing new for what its processes took past the broker.
  bool TookTooMuch(const std::string& tenant) const { return PastTheBroker(tenant).has_value(); }
  // That of it and of those above it, where it is enough for the request; else 0.
  uint64_t Deficit(const Request& request) const;
  // Whether no guarantee and no limit of the configuration stands in the way of so much more on the
  // device; `emptied`: when nobody holds anything.
  bool Allowed(const Request& request, bool emptied) const;
  // Whether its process has, or had and may still map, what it was not to lose.
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
    uint64_t kept_since = 0;  // above 0: retained; the lower the older
    bool given_up = false;    // doomed, perhaps taken, not yet destroyed
    bool made = false;
    bool lost = false;
    bool shared_out = false;  // another tenant was given it
    bool revocable = false;
    bool revoking = false;  // it is being taken back; the following is about that
    absl::Time until;       // then the next is due
    bool asked_to_end = false;
    bool ended = false;
    bool stuck = false;  // its holders did not even end by force
  };
  // That a process was sent a segment, and may map it. One entry for each time.
  struct Mapping {
    SessionId session{};
    SegmentId segment{};
    bool revocable = false;  // by which sort of lease
    bool operator==(const Mapping& other) const {
      return session == other.session && segment == other.segment;
    }
  };
  // That a process was sent something of its tenant's pool on a device, and has the pool open.
  // One entry for each time.
  struct Import {
    SessionId session{};
    size_t device = 0;
    bool operator==(const Import&) const = default;
  };
  // What waiters that go first will take of a limit.
  struct Claim {
    uint64_t asked = 0;
    uint64_t need = 0;
  };
  using Claims = std::map<LimitName, Claim>;
  enum class Fit { kNow, kSoon, kRevoked, kBlocked };
  // A limit, and how a request stands to it.
  struct Limit {
    LimitName name;
    uint64_t asked;      // in all, those that are reused included
    uint64_t used;       // of what is not reused now
    uint64_t held;       // of that, what does not come back without its holders
    uint64_t not_taken;  // of that, what is not being taken back
    uint64_t firm;       // of that, what cannot be
    uint64_t limit;
    uint64_t need = 0;    // with all that is guaranteed
    uint64_t growth = 0;  // of the need, by the request
    uint64_t least = 0;   // the need with the request, if nobody held anything
    bool Fits(uint64_t taken, const Claim& claim) const;
    bool KeepsGuarantees(const Claim& claim) const;
    Fit FitOf(const Claim& claim, bool may_revoke) const;
  };
  struct Expected {
    LimitName name;  // its cause is that of the denial
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
  // What it would reuse.
  std::set<SegmentId> Reusable(const Request& request) const;
  std::vector<SegmentId> VictimsFor(const Request& request, const std::vector<Limit>& limits,
                                    const Claims& claims) const;
  bool Counts(const LimitName& limit, const Segment& segment) const;  // of limits in bytes
  bool IsWaitedFor(SegmentId segment);
  void TakeBack(SegmentId segment, absl::Time now);
  // What can be given up for the request is, and what can be taken back.
  void MakeRoom(const Request& request, const std::set<SegmentId>& reused,
                const Judgement& judgement, const Claims& claims, absl::Time now);
  absl::Status Grant(SessionId session, const Request& request, const std::set<SegmentId>& reused,
                     absl::Time now, const Operation& answer);
  bool GoesBefore(const Request& request, const Request& other) const;
  std::vector<WaiterId> InOrder() const;
  Claims ClaimsOfThoseBefore(WaiterId waiter) const;
  void Leave(WaiterId waiter);
  bool OtherSort(SessionId session, bool revocable) const;
  // The device of the first use for which a tenant is denied all that is new.
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
  // The sessions whose processes have the segment's pool open; none for other kinds.
  std::set<SessionId> Importers(SegmentId segment) const;
  // Nothing is left of it but that its process has pools open.
  bool OnlyImports(SessionId session) const;
  std::optional<SessionId> OtherOfItsProcess(SessionId session) const;
  size_t DeviceIndex(const std::string& uuid) const;  // devices_.size(): none

  // Counts the segments of a tenant and those under it ("" means all) on a device, or everywhere.
  enum class Which {
    kAll,
    kStaying,   // all but those that are given up
    kHeld,      // neither retained nor given up
    kNotTaken,  // of those, what is not being taken back
    kFirm,      // of those, what cannot be
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
  uint64_t Retained(const std::string& tenant, size_t device) const;  // by itself, bytes

  bool IsUnder(const std::string& tenant, absl::string_view above) const;
  bool Pinned(size_t device) const;
  bool Makes(size_t device, Kind kind) const;
  Kind KindFor(const std::string& tenant, const AcquireSpec& spec, size_t device) const;
  uint64_t Obtainable(const std::string& tenant, size_t device) const;
  // Where a request goes; else the code of its refusal.
  absl::StatusOr<size_t> DeviceFor(const std::string& tenant, const AcquireSpec& spec) const;
  uint64_t LimitOn(const std::string& tenant, size_t device) const;
  uint64_t MaxRetainedOn(const Tenant& tenant, size_t device) const;
  uint64_t GuaranteeOn(const std::string& tenant, size_t device) const;
  // What has to be there for a tenant ("" means all), if it holds so much more itself; `emptied`:
  // if nobody holds anything else.
  uint64_t Need(const std::string& tenant, size_t device, uint64_t more = 0,
                bool emptied = false) const;
  bool OverALimit(const std::string& tenant, size_t device) const;
  std::vector<Limit> LimitsFor(const Request& request, const std::set<SegmentId>& reused) const;
  void GiveUpFor(const Request& request, uint32_t fresh, const Claims& claims);

  // Gives up the segment that a tenant retained first on a device; on the first device
  // where it retains any; false where it retains none.
  bool GiveUpOldest(const std::string& tenant, size_t device);
  bool GiveUpAnywhere(const std::string& tenant, bool pinned_too = true);
  // Of the tenant that retains most on the device; by name where several do.
  bool GiveUpOfTheRichest(size_t device, absl::string_view above = "");
  void ApplyQuota(const std::string& tenant, const Quota& quota);
  void GiveUpAllOf(const std::string& tenant);
  void GiveUp(Segment& segment);
  void Link(const std::string& tenant);
  absl::StatusCode Check(const std::string& tenant, const Quota& quota) const;
  void NotePeaks();

  // Of a restart.
  void ForgetSession(SessionId session);
  void ForgetSegment(SegmentId segment);
  absl::Status RestorePublications(const Ledger::Survivors& survivors,
                                   const Ledger::Restored& answer);
  // What becomes of a segment that nobody holds any more.
  void Rest(SegmentId segment);
  // Whether a release of it is believed.
  bool Trusts(const Lease& lease) const;
  void EndLease(LeaseId lease, bool unmapped);
  void EndSession(SessionId session);
  bool HasEnding() const;
  // True if nothing is left of a session that has ended.
  bool HasEnded(SessionId session) const;
  void Unmap(SessionId session, SegmentId segment);           // once
  void Unimport(SessionId session, size_t device, bool all);  // or once
  // Forgets sessions and tenants that nothing is left of; after each step.
  void Sweep();

  template <typename... What>
  static absl::Status Wrong(const What&... what) {
    return absl::InternalError(absl::StrCat(what...));
  }
  static absl::Status ExpectCode(const absl::Status& answer, absl::StatusCode code);
  // That the tenant was denied it, and that it counts.
  absl::Status ExpectDenial(const absl::Status& answer, const std::string& tenant,
                            const Expected& expected);
  absl::Status CompareTenants(const Ledger& ledger) const;

  // What the session's request was answered before; 0 is no request.
  std::optional<uint64_t> AnswerTo(SessionId session, uint64_t request) const;
  void Answered(SessionId session, uint64_t request, uint64_t number);
  const Publication* FindPublication(const std::string& tenant, const std::string& name) const;
  std::set<SessionId> AttachedTo(PublicationId id) const;
  bool IsPublished(SegmentId segment) const;
  absl::Time ExpiryOf(const Publication& publication) const;
  absl::Time NextExpiry() const;
  void EndPublication(PublicationId id, bool replaced = false);
  void LeaveAttachQueue(WaiterId id);
  void EndAttachWaitsOf(std::optional<SessionId> session);  // or of all
  absl::Status ComparePublications(const Ledger& ledger, const std::string& tenant,
                                   absl::Time now) const;
  // The verdict on the denial where too many wait already.
  std::optional<absl::Status> NoRoomToWait(const std::string& tenant, const absl::Status& answer);
  uint64_t WaitingOf(const std::string& tenant) const;
  // The same where there are too many leases.
  std::optional<absl::Status> NoRoomForLeases(SessionId session, uint64_t more,
                                              const absl::Status& answer);

  const std::vector<DeviceInfo> devices_;
  const Bounds bounds_;
  Quota defaults_;
  bool draining_ = false;
  uint64_t clock_ = 0;  // orders what is retained

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
  std::vector<WaiterId> refused_;  // whose session has ended
  bool stirred_ = false;           // something has changed that waiters may wait for
  std::set<SessionId> revoked_;    // to be told
  Ledger::RevocationTimes times_;
  std::vector<UnbrokeredBytes> unbrokered_;
  std::vector<Event> events_;
  Regrants regrants_;
  std::vector<Publication> publications_;  // by number
  std::map<std::pair<std::string, std::string>, uint64_t> last_versions_;
  // The highest of all that were ever in it, and of those before the last restart; and by tenant,
  // of those that were forgotten with it.
  uint64_t ended_version_ = 0, forgotten_version_ = 0;
  std::map<std::string, uint64_t> gone_versions_;
  // Of each session the last requests that were answered with a number, and that.
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
