// The broker: the ledger's decisions, carried out.
//
// It owns the devices and the memory of every segment, and puts the ledger (ledger.h)
// under one mutex. Device calls and the sending of descriptors never run under that
// mutex: a request reserves, creates, hands over, commits, and undoes what it did where a
// step fails. Memory goes back to the driver on disposal threads, because closing a
// large segment takes milliseconds and stalls other processes' driver calls.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/continuity.h"
#include "daemon/core/broker/timed_mutex.h"
#include "daemon/core/latency.h"
#include "daemon/core/ledger/inspect/measures.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/device/device.h"
#include "daemon/device/metadata.h"

namespace gpumemd {

// A session was denied memory that others have, or waits for it.
struct Pressure {
  std::string tenant;       // whose sessions might give it, and of those under it; empty: all that
                            // have more than is guaranteed to them
  std::string device_uuid;  // empty: any
  uint64_t bytes = 0;       // that are missing
  absl::Time until = absl::InfiniteFuture();  // when it no longer helps
};

// What the broker tells the services. Called under the broker's mutex, but for ContextLost and
// EndProcess: must return at once and must not call the broker.
class BrokerObserver {
 public:
  virtual ~BrokerObserver() = default;
  // Nothing of this session is left: its process need not be watched any more.
  virtual void SessionForgotten(SessionId session) = 0;
  // The tenant's quota has changed; an empty name means any tenant's may have.
  virtual void QuotaChanged(absl::string_view tenant) = 0;
  virtual void DrainingChanged(bool draining) = 0;
  // Some of the session's segments are lost.
  virtual void SegmentsLost(SessionId session) = 0;
  // Memory was denied, or is waited for, that others might give back.
  virtual void Pressed(const Pressure& pressure) = 0;
  // Some of the session's leases are being taken back.
  virtual void Revoked(SessionId session) = 0;
  // The session's process did not give up in time what is taken back: it is to be asked to end
  // (SIGTERM), or ended (SIGKILL).
  virtual void EndProcess(SessionId session, bool kill) = 0;
  // A device's context is gone, and with it so many segments.
  virtual void ContextLost(const std::string& device_uuid, size_t segments) = 0;
};

// How much there is to do, for people.
struct BrokerLoad {
  size_t sessions = 0;
  uint64_t charged = 0;  // on all devices, but for pinned memory
  uint64_t pinned = 0;   // charged
  size_t waiting = 0;    // requests
  bool draining = false;

  bool operator==(const BrokerLoad&) const = default;
};

struct BrokerOptions {
  std::vector<std::unique_ptr<Device>> devices;
  Bounds bounds;
  Ledger::RevocationTimes revocation;
  std::function<absl::Time()> now = absl::Now;
  // Gives unguessable bits.
  std::function<Secret()> random;
  BrokerObserver* observer = nullptr;  // outlives the broker
  Continuity* continuity = nullptr;    // outlives the broker; null: nothing survives this process
  // The broker's pulse, a sign that it lives: called by its own thread, which has had its mutex
  // just then, and without the mutex. Every `pulse_every`, and once `pulse_pause` has passed since
  // the last one where something has changed. No device call can hold it up. Must return soon.
  std::function<void(const BrokerLoad&)> pulse;  // null: nobody feels it, and it takes no time
  absl::Duration pulse_every = absl::InfiniteDuration();
  absl::Duration pulse_pause = absl::Seconds(1);
  AuditSink* audit = nullptr;  // outlives the broker; null: nobody is told
};

// What an earlier broker has left.
struct Inheritance {
  JournalImage image;
  absl::flat_hash_map<SegmentId, gpumem::UniqueFd> memory;
  absl::flat_hash_map<PublicationId, gpumem::UniqueFd> metadata;
  // Sessions of processes that live, and what is known of them now.
  absl::btree_map<SessionId, SessionDetails> sessions;
};

class Broker {
 public:
  explicit Broker(BrokerOptions options);
  // Gives all memory back to the driver. No call may be under way.
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // Segments on their way to a client. The descriptors are the broker's, and open until
  // the Deliver that was given them returns.
  struct Handover {
    struct Item {
      LeaseView lease;
      int fd = -1;  // -1 for kinds that are not shared by one
    };
    std::vector<Item> items;
    std::vector<ExportedPool> pools;  // of these items, that the session has not been sent yet
    // Set by who sends it in several messages once the first has gone out: whatever comes of the
    // others, the client may have some of it.
    mutable bool partly_sent = false;
  };
  // Sends the descriptors. Unless it says so (partly_sent), only an OK may mean that the client has
  // any of them.
  using Deliver = absl::FunctionRef<absl::Status(const Handover&)>;

  // How long a request waits at most for memory that is on its way back to the driver.
  static constexpr absl::Duration kDisposalWait = absl::Seconds(10);

  // One Acquire, from its beginning to its answer.
  struct Acquisition {
    SessionId session{};
    AcquireSpec spec;
    // With spec.waits: for what others hold.
    absl::Time wait_until = absl::InfinitePast();
    // For what is on its way.
    absl::Time patient_until = absl::InfinitePast();
    // Sends the descriptors. Where it `may_block` is false and it would: DEADLINE_EXCEEDED.
    std::function<absl::Status(const Handover&, bool may_block)> deliver;
    // Called once after each Advance that left it waiting, when it can go on. On the thread of
    // whoever's call let it go on, without the mutex: must return soon.
    std::function<void()> resume;

   private:
    friend class Broker;
    std::optional<Operation> operation;
    std::optional<WaiterId> waiter;
    absl::Status refused;
    absl::Time give_up;
    absl::Time press_again;
    absl::Time due = absl::InfiniteFuture();  // its place in due_
    bool counts_on_revocation = false;
    bool given_up = false;  // by its client; under mutex_
    bool parked = false;    // likewise
    int attempt = 1;
    absl::Time begun = absl::InfinitePast();  // it has not
    bool waited = false;
  };

  // One Attach, in the same way.
  struct Attachment {
    SessionId session{};
    AttachSpec spec;
    absl::Time wait_until = absl::InfinitePast();  // for spec.version
    // As of an Acquisition.
    std::function<absl::Status(const Handover&, bool may_block)> deliver;
    std::function<void()> resume;

   private:
    friend class Broker;
    // Under mutex_.
    std::optional<WaiterId> waiter;
    absl::Status refused;
    bool given_up = false;
    bool parked = false;
  };

  // A call being answered: counted against its session's tenant while it lives.
  class Call {
   public:
    Call(Call&& other) noexcept
        : broker_(std::exchange(other.broker_, nullptr)),
          session_(other.session_),
          watch_(other.watch_) {}
    Call& operator=(Call&&) = delete;
    ~Call();
    SessionId session() const { return session_; }
    // From here on it is one of the session's watches, and is not counted as waiting.
    //   RESOURCE_EXHAUSTED  the session has too many
    absl::Status BecomeWatch();

   private:
    friend class Broker;
    Call(Broker* broker, SessionId session) : broker_(broker), session_(session) {}
    Broker* broker_;
    SessionId session_;
    bool watch_ = false;
  };

  // --- Sessions --------------------------------------------------------------------

  struct NewSession {
    SessionId id{};
    Secret token{};
  };
  // Statuses as Ledger::OpenSession.
  absl::StatusOr<NewSession> OpenSession(absl::string_view tenant, const SessionDetails& details);
  // As Ledger::CheckRoomForSession.
  absl::Status CheckRoomForSession(absl::string_view tenant, const SessionDetails& details)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void SocketClosed(SessionId session);
  void ProcessGone(SessionId session);

  // UNAUTHENTICATED     no live session has this token
  // RESOURCE_EXHAUSTED  the tenant has too many calls in flight
  absl::StatusOr<Call> Authenticate(absl::string_view token);

  // Waits until no call is in flight, but for watches and parked ones: whether that is so by
  // `deadline`.
  bool AwaitCalls(absl::Time deadline) const;

  // Whether a live session has this token.
  bool IsLive(absl::string_view token) const;
  // The live session that has this token.
  //   UNAUTHENTICATED  there is none
  absl::StatusOr<SessionId> SessionOf(absl::string_view token) const ABSL_LOCKS_EXCLUDED(mutex_);

  // --- Over the end of a daemon ------------------------------------------------------

  // Goes on from what an earlier broker has left, once, after Configure and before any other call.
  // What is granted from here on outlives this process (BrokerOptions::continuity).
  struct Restored : Ledger::Restored {
    std::vector<std::pair<SegmentId, absl::Status>> refused;  // by their devices
  };
  absl::StatusOr<Restored> Restore(Inheritance inheritance);
  // The next daemon is to answer: each Acquire and Attach that waits, or would begin, is parked. It
  // waits without a turn until GiveUp; the client asks the next daemon.
  void Park() ABSL_LOCKS_EXCLUDED(mutex_);
  // Finishes the ends of sessions that have begun. Then nothing is written down any more, and
  // nothing let go: what follows is the end of this process and not of its sessions. No call may be
  // under way.
  void Freeze();

  // The client of this session has connected anew: the session was restored, or its client has lost
  // its connection to this daemon. Until Reconcile its calls are refused.
  //   NOT_FOUND  no live session has this token, or another process's does
  struct Resumed {
    SessionId id{};
    std::string tenant;
  };
  absl::StatusOr<Resumed> Resume(absl::string_view token, const PeerIdentity& peer);
  // As Ledger::Reconcile, of the session that has this token and was resumed. From then on its
  // calls are served. Counts as a call in flight.
  //   INVALID_ARGUMENT  more ids than a session can hold
  //   UNAUTHENTICATED   no such session
  //   and as Ledger::BeginReconcile
  absl::StatusOr<std::vector<LeaseId>> Reconcile(absl::string_view token,
                                                 absl::Span<const LeaseId> leases,
                                                 absl::Span<const uint64_t> requests);

  // --- Requests of clients ---------------------------------------------------------

  // Statuses as proto/gpumem/v1/broker.proto says; whatever `deliver` returns goes to the
  // caller. With `may_block` false it makes nothing and sends only what can be sent at once.
  struct Progress {
    enum class State {
      kAnswered,
      kWaits,         // until it is resumed: then Advance again
      kNeedsAThread,  // Advance again with may_block
    } state = State::kAnswered;
    absl::StatusOr<std::vector<LeaseView>> leases;
  };
  Progress Advance(const std::shared_ptr<Acquisition>& acquisition, bool may_block);
  // Its client is gone: where it waits it is resumed. It will answer CANCELLED, and hold nothing.
  void GiveUp(const std::shared_ptr<Acquisition>& acquisition);
  // All of it on the caller's thread. `deadline`: for memory that is on its way, and with
  // spec.waits for what others hold.
  absl::StatusOr<std::vector<LeaseView>> Acquire(const Call& call, const AcquireSpec& spec,
                                                 absl::Time deadline, Deliver deliver);
  absl::StatusOr<std::vector<LeaseView>> Open(const Call& call, absl::Span<const Secret> tickets,
                                              bool revocable, uint64_t request_id, Deliver deliver);
  absl::StatusOr<Secret> Share(const Call& call, LeaseId lease, TicketScope scope);
  // With the leases what an earlier daemon has granted by these requests, if anything. All leases
  // or none, where no other call of the session releases some of them at the same time.
  //   INVALID_ARGUMENT  more ids than a session can hold
  //   and as Ledger::Release
  absl::Status Release(const Call& call, absl::Span<const LeaseId> leases,
                       absl::Span<const uint64_t> requests = {});
  absl::StatusOr<IpcEventId> RegisterEvent(const Call& call, const Ledger::EventPlace& place,
                                           absl::string_view device_uuid, const ExportData& handle,
                                           uint64_t request_id = 0);
  absl::StatusOr<std::vector<IpcEventView>> GetEvents(const Call& call,
                                                      const Ledger::EventPlace& place);
  absl::StatusOr<bool> UnregisterEvent(const Call& call, IpcEventId event);
  // All of the session's leases on lost segments.
  std::vector<LeaseId> LostLeases(const Call& call) const;
  Inspector::Revoked RevokedLeases(const Call& call) const;
  absl::StatusOr<TenantView> Usage(const Call& call) const;
  absl::StatusOr<std::string> TenantOf(const Call& call) const;

  // --- Publications (publications.cc) ----------------------------------------

  // Statuses as proto/gpumem/v1/broker.proto says. `metadata` goes before spec.metadata_bytes.
  absl::StatusOr<uint64_t> Publish(const Call& call, const PublishSpec& spec,
                                   absl::string_view metadata);
  struct Attached {
    std::vector<LeaseView> leases;
    PublicationView publication;
    std::string metadata;
  };
  struct AttachProgress {
    Progress::State state = Progress::State::kAnswered;
    absl::StatusOr<Attached> attached;
  };
  // As those of an Acquisition.
  AttachProgress Advance(const std::shared_ptr<Attachment>& attachment, bool may_block);
  void GiveUp(const std::shared_ptr<Attachment>& attachment);
  absl::StatusOr<uint64_t> Unpublish(const Call& call, absl::string_view name,
                                     uint64_t request_id = 0);
  // By an operator.
  absl::StatusOr<uint64_t> Unpublish(absl::string_view full_name,
                                     absl::Span<const AuditOperator> by = {});
  absl::StatusOr<std::vector<PublicationView>> ListAttachable(const Call& call,
                                                              absl::string_view tenant) const;
  absl::StatusOr<std::vector<PublicationView>> ListPublications(absl::string_view tenant) const;

  // --- Requests of operators -------------------------------------------------------

  // As Ledger::Configure.
  void Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                 const std::map<std::string, Quota>& overridden = {});
  // A change of a quota in two steps, for who has to write it down between them (Ledger).
  // `asked`: the part of `quota` whose devices have to be there.
  absl::Status CheckQuota(absl::string_view tenant, const Quota& quota, const Quota& asked) const;
  absl::StatusOr<TenantView> OverrideQuota(absl::string_view tenant, const Quota& quota);
  absl::StatusOr<TenantView> UnsetQuota(absl::string_view tenant, const Quota& quota);
  struct Trimmed {
    uint64_t bytes = 0;
    uint32_t segments = 0;
  };
  // Statuses as Ledger::Trim; answers once the driver has the memory back.
  absl::StatusOr<Trimmed> Trim(absl::string_view tenant, absl::string_view device,
                               uint64_t keep_bytes);
  void SetDraining(bool draining);
  // Whom denials name to workers as holders of what they asked for. Operators see all.
  void SetHoldersShown(HoldersShown shown);
  // As Ledger::SetUnbrokered.
  void SetUnbrokered(std::vector<UnbrokeredBytes> uses);

  // Memory pools, by proto/gpumem/v1/admin.proto. An empty name means all tenants or devices
  // in ListPools, the first device on which the tenant has a pool in the others.
  struct PoolView {
    std::string device_uuid;
    PoolStatus status;
  };
  absl::StatusOr<std::vector<PoolView>> ListPools(absl::string_view tenant,
                                                  absl::string_view device) const;
  absl::StatusOr<PoolView> SetPool(absl::string_view tenant, absl::string_view device,
                                   const PoolChange& change);
  absl::StatusOr<PoolView> TrimPool(absl::string_view tenant, absl::string_view device,
                                    uint64_t keep_bytes);

  // --- Looking ---------------------------------------------------------------------

  struct DeviceView {
    uint32_t index = 0;
    DeviceInfo info;
    uint64_t charged = 0;
    uint64_t driver_free = 0;  // 0 where the driver does not say, or was not asked
    pid_t context_pid = 0;     // 0: no process has a context on it for the broker
  };
  std::vector<DeviceView> Devices(bool ask_driver) const;
  struct Counts {
    size_t sessions = 0, tenants = 0, segments = 0;
    bool draining = false;
  };
  Counts Count() const;
  // For the metrics: one moment of the ledger, and nothing that asks the driver. The mutex is held
  // for one pass over the tenants.
  Measures Measure() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<TenantView> GetTenant(absl::string_view tenant) const;
  std::vector<TenantView> ListTenants() const;
  absl::StatusOr<std::vector<SessionView>> ListSessions(absl::string_view tenant) const;
  absl::StatusOr<std::vector<SegmentView>> ListSegments(absl::string_view tenant,
                                                        absl::string_view device) const;
  HoldersView ListHolders(std::optional<SegmentId> only) const;
  absl::StatusOr<std::vector<WaiterView>> ListWaiting(absl::string_view tenant,
                                                      absl::string_view device) const;
  absl::Status CheckInvariants() const;

 private:
  struct Doomed {
    SegmentId id{};
    std::unique_ptr<Allocation> memory;
  };
  class Update;  // update.h

  // Begins it, or waits for its turn: whether it has its operation.
  absl::StatusOr<bool> Reserve(const std::shared_ptr<Acquisition>& acquisition)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes what is fresh and hands it over; nothing where it has to be begun anew.
  std::optional<absl::StatusOr<std::vector<LeaseView>>> Carry(Acquisition& acquisition)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What has just been granted goes back where nobody is there any more to take it.
  absl::StatusOr<std::vector<LeaseView>> Taken(Acquisition& acquisition,
                                               absl::StatusOr<std::vector<LeaseView>> leases)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // It was granted these: how long that took.
  void CountGrant(const Acquisition& acquisition, const std::vector<LeaseView>& leases);
  // Both: it goes on once the Update has ended.
  void Resume(const std::shared_ptr<Acquisition>& acquisition, absl::StatusOr<Operation> operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Resume(const std::shared_ptr<Attachment>& attachment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends waits whose time is up, presses again for the others, and sees to what is taken back.
  void WatchTheClock() ABSL_LOCKS_EXCLUDED(mutex_);
  // False when the broker stops.
  bool AwaitWhatIsDue() ABSL_LOCKS_EXCLUDED(mutex_);
  // A waiter, as long as it waits: when the clock looks at it next, by give_up and press_again; and
  // its end.
  void SetDue(WaiterId id, Acquisition& acquisition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Acquisition> TakeWaiting(WaiterId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Attachment> TakeAttaching(WaiterId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Asks those who could help a waiter, unless another one of its tenant on that device was looked
  // at just now; and says when it has its next turn.
  void PressFor(WaiterId id, Acquisition& acquisition, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time NextTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time NextPulse() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  BrokerLoad Load() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whose processes are to be ended now.
  std::vector<Ledger::Overdue> DoWhatIsDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `refused`: the error is no driver's, but for want of a place in the manager's store.
  absl::Status Create(const Operation& operation, bool* refused) ABSL_LOCKS_EXCLUDED(mutex_);
  // FAILED_PRECONDITION where some of it was lost meanwhile: then it is marked so.
  absl::StatusOr<std::vector<LeaseView>> HandOver(const Operation& operation, Deliver deliver)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort(const Operation& operation, bool handed_over) ABSL_LOCKS_EXCLUDED(mutex_);
  // Some of the operation's items, from this one on, and of `pools` those that they are the first
  // of.
  absl::Status Describe(const Operation& operation, size_t begin, Handover& handover,
                        absl::flat_hash_set<uint64_t>& pools) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of Attachments: the end of a wait, and those whose wait may be over.
  void EndAttachWait(WaiterId waiter, bool expired) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ResumeAttaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropEndedPublications() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndOverduePublications(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ParkAttaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the audit of what the session was just denied; the denial, as the session may see it.
  absl::Status Denied(SessionId session, absl::string_view call, absl::Status denial) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AuditDenial(AuditRecord record, absl::string_view call, const absl::Status& denial) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same of a process that gets no session.
  void AuditNoSession(absl::string_view tenant, const SessionDetails& details,
                      const absl::Status& why) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A denial without the holders that the session is not to be told of.
  absl::Status WithoutOthers(SessionId session, absl::Status denial) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same of an Acquire, and asks those who could help.
  absl::Status Denied(const Acquisition& acquisition, absl::Status denial)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Press(const Denial& why, absl::Time until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Passes on what the ledger has doomed, forgotten and granted, and writes down what has changed.
  // At the end of each Update.
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes down what has changed. Before anybody is told of it.
  void Record() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<SessionId> FindSession(absl::string_view token) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // INVALID_ARGUMENT  the session cannot have so many leases, or requests for them
  absl::Status CheckNamed(SessionId session, size_t leases, size_t requests) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As Ledger::Release, with the mutex held for a few of the leases at a time.
  absl::Status ReleaseInParts(SessionId session, std::vector<LeaseId> leases)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void DisposeLoop(size_t lane) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends what large sessions had, a little at a time.
  void EndLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Where the memory of a segment is disposed of: what lives in a context has a lane for each
  // device, since a context that hangs must not keep the others' memory.
  size_t LaneOf(SegmentId segment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetOldPools(SessionId session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks what the device has lost.
  void CollectLost(size_t device) ABSL_LOCKS_EXCLUDED(mutex_);
  // The device that has the tenant's pool.
  absl::StatusOr<Device*> FindPool(absl::string_view tenant, absl::string_view device) const;

  std::vector<std::unique_ptr<Device>> devices_;  // changed by the destructor alone
  const std::function<Secret()> random_;
  BrokerObserver* const observer_;
  Continuity* const continuity_;
  AuditSink* const audit_;
  const size_t max_leases_per_session_;
  const std::function<absl::Time()> now_;
  const std::function<void(const BrokerLoad&)> pulse_;
  const absl::Duration pulse_every_, pulse_pause_;

  // The driver's own count of free bytes, by device: asked by one caller at a time and not
  // for each; the others get the last answer.
  std::vector<uint64_t> DriverFree() const ABSL_LOCKS_EXCLUDED(driver_mutex_);
  mutable absl::Mutex driver_mutex_;
  mutable std::vector<uint64_t> driver_free_ ABSL_GUARDED_BY(driver_mutex_);
  mutable absl::Time driver_asked_ ABSL_GUARDED_BY(driver_mutex_) = absl::InfinitePast();
  mutable bool driver_asking_ ABSL_GUARDED_BY(driver_mutex_) = false;

  LatencyHistogram acquires_[kKinds][2];  // by Kind, and whether they waited

  mutable TimedMutex mutex_;
  Ledger ledger_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SegmentId, std::unique_ptr<Allocation>> memory_ ABSL_GUARDED_BY(mutex_);
  // Of all publications that there are; and of those that have ended, to be closed elsewhere.
  absl::flat_hash_map<PublicationId, std::shared_ptr<const Metadata>> metadata_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<PublicationId, std::shared_ptr<const Metadata>>> ended_metadata_
      ABSL_GUARDED_BY(mutex_);
  // Which pools' descriptors each session has been sent.
  absl::flat_hash_map<SessionId, absl::flat_hash_set<uint64_t>> pools_sent_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<Doomed>> doomed_ ABSL_GUARDED_BY(mutex_);  // by lane
  absl::flat_hash_map<WaiterId, std::shared_ptr<Acquisition>> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<WaiterId, std::shared_ptr<Attachment>> attaching_
      ABSL_GUARDED_BY(mutex_);  // that wait for a version
  // What the Update under way lets go on; each keeps its Acquisition or Attachment alive.
  std::vector<std::shared_ptr<const std::function<void()>>> resumed_ ABSL_GUARDED_BY(mutex_);
  // When the clock looks at each of waiting_, and ends each of attaching_.
  absl::btree_set<std::pair<absl::Time, WaiterId>> due_ ABSL_GUARDED_BY(mutex_);
  absl::btree_set<std::pair<absl::Time, WaiterId>> attach_due_ ABSL_GUARDED_BY(mutex_);
  // By session's tenant and device: until when PressFor looks at none of those who wait there.
  absl::flat_hash_map<std::pair<std::string, size_t>, absl::Time> quiet_until_
      ABSL_GUARDED_BY(mutex_);
  bool times_changed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time watched_expiry_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // Of the pulse: whether anything has changed since the last one, and when that was.
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_pulse_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // When others were last asked to give back: by who was denied, whom that presses, and the device.
  struct Pressed {
    absl::Time last;
    absl::Duration pause;  // until the next
  };
  absl::flat_hash_map<std::tuple<std::string, std::string, std::string>, Pressed> pressed_
      ABSL_GUARDED_BY(mutex_);
  HoldersShown holders_shown_ ABSL_GUARDED_BY(mutex_) = HoldersShown::kOwn;
  bool survivable_ ABSL_GUARDED_BY(mutex_) = false;  // continuity_ has begun
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t calls_ ABSL_GUARDED_BY(mutex_) = 0;  // in flight, without watches
  bool parks_ ABSL_GUARDED_BY(mutex_) = false;
  size_t parked_ ABSL_GUARDED_BY(mutex_) = 0;  // of calls_
  std::vector<std::thread> disposal_;          // one a lane
  std::thread clock_, ending_;
};

}  // namespace gpumemd
