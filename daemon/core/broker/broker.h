// SPDX-License-Identifier: Apache-2.0
// Carries out the ledger's decisions.
//
// Thread-safe. The broker owns the devices and the memory of every segment, and guards the ledger
// (ledger.h) with one mutex. Device calls and the sending of descriptors never run under that
// mutex. A request reserves, creates, hands over and commits; if a step fails, the broker undoes
// the earlier ones. Disposal threads give memory back to the driver, because closing a large
// segment takes milliseconds and stalls other processes' driver calls.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/continuity.h"
#include "daemon/core/broker/observer.h"
#include "daemon/core/broker/options.h"
#include "daemon/core/broker/pages/memory_pages.h"
#include "daemon/core/broker/request.h"
#include "daemon/core/broker/timed_mutex.h"
#include "daemon/core/broker/waiting_requests.h"
#include "daemon/core/latency.h"
#include "daemon/core/ledger/inspect/measures.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/device/device.h"
#include "daemon/device/metadata.h"

namespace gpumemd {

class BrokerOperators;
class BrokerSuspensions;
class BrokerTenants;
class BrokerViews;

class Broker {
 public:
  explicit Broker(BrokerOptions options);
  // Gives all memory back to the driver. Requires that no call is in flight.
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  using Handover = gpumemd::Handover;
  using Deliver = gpumemd::Deliver;
  using Acquisition = gpumemd::Acquisition;
  using Attachment = gpumemd::Attachment;
  using Call = BrokerCall;

  // The longest wait of a request for memory that is on its way back to the driver.
  static constexpr absl::Duration kDisposalWait = absl::Seconds(10);
  // Entries of a long list that are read per hold of the mutex. An entry that changes meanwhile is
  // listed either as it was or as it is.
  static constexpr size_t kListedAtOnce = 256;

  // --- Sessions --------------------------------------------------------------------

  struct NewSession {
    SessionId id{};
    Secret token{};
  };
  // Statuses as Ledger::OpenSession.
  absl::StatusOr<NewSession> OpenSession(absl::string_view tenant, const SessionDetails& details);
  // As Sessions::CheckRoom.
  absl::Status CheckRoomForSession(absl::string_view tenant, const SessionDetails& details)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void SocketClosed(SessionId session);
  void ProcessGone(SessionId session);

  // Returns a Call of the session that has this token.
  //   UNAUTHENTICATED     no live session has this token
  //   RESOURCE_EXHAUSTED  the tenant has too many calls in flight
  absl::StatusOr<Call> Authenticate(absl::string_view token);

  // Blocks until no call but watches and parked calls is in flight. False if `deadline` came first.
  bool AwaitCalls(absl::Time deadline) const;

  // True if a live session has this token.
  bool IsLive(absl::string_view token) const;
  // Returns the live session that has this token; UNAUTHENTICATED: there is none.
  absl::StatusOr<SessionId> SessionOf(absl::string_view token) const ABSL_LOCKS_EXCLUDED(mutex_);

  // --- Restart of the daemon ---------------------------------------------------------

  // Restores the state that an earlier broker has left. Call once, after Configure and before any
  // other call. Memory granted after this call outlives this process (BrokerOptions::continuity).
  struct Restored : gpumemd::Restored {
    std::vector<std::pair<SegmentId, absl::Status>> refused;  // by their devices
  };
  absl::StatusOr<Restored> Restore(Inheritance inheritance);
  // Parks each Acquire and Attach that waits or would begin: the next daemon is to answer it. A
  // parked request waits without a turn until GiveUp; the client asks the next daemon.
  void Park() ABSL_LOCKS_EXCLUDED(mutex_);
  // Finishes the session ends that have begun. After that nothing is written to the journal or let
  // go of: this process ends, and its sessions do not. Requires that no call is in flight.
  void Freeze();

  // As Sessions::Resume, for the session that has this token. Until Reconcile its calls are
  // refused.
  //   NOT_FOUND  no live session has this token, or it belongs to another process
  struct Resumed {
    SessionId id{};
    std::string tenant;
  };
  absl::StatusOr<Resumed> Resume(absl::string_view token, const PeerIdentity& peer,
                                 bool certain = true);
  // As Reconciliation::Reconcile, for the resumed session that has this token. Its calls are served
  // after that. Counts as a call in flight.
  //   INVALID_ARGUMENT  more ids than a session can hold
  //   UNAUTHENTICATED   no such session
  //   and as Reconciliation::Begin
  absl::StatusOr<std::vector<LeaseId>> Reconcile(absl::string_view token,
                                                 absl::Span<const LeaseId> leases,
                                                 absl::Span<const uint64_t> requests);

  // --- Requests of clients ---------------------------------------------------------

  // Statuses as in proto/gpumem/v1/broker.proto. The caller gets any error of `deliver`. With
  // `may_block` false, Advance makes no memory and sends only messages that can be sent at once.
  struct Progress {
    enum class State {
      kAnswered,
      kWaits,         // until it is resumed; then Advance again
      kNeedsAThread,  // Advance again with may_block
    } state = State::kAnswered;
    absl::StatusOr<std::vector<LeaseView>> leases;
  };
  Progress Advance(const std::shared_ptr<Acquisition>& acquisition, bool may_block);
  // Gives up a request whose client is gone: a waiting one answers CANCELLED, and holds nothing.
  void GiveUp(const std::shared_ptr<Acquisition>& acquisition);
  // Runs a whole Acquire on the caller's thread. `deadline` bounds the wait for memory that is on
  // its way, and with spec.waits the wait for memory that others hold.
  absl::StatusOr<std::vector<LeaseView>> Acquire(const Call& call, const AcquireSpec& spec,
                                                 absl::Time deadline, Deliver deliver);
  absl::StatusOr<std::vector<LeaseView>> Open(const Call& call, absl::Span<const Secret> tickets,
                                              bool revocable, uint64_t request_id, Deliver deliver);
  absl::StatusOr<Secret> Share(const Call& call, LeaseId lease, TicketScope scope,
                               bool given_away = false);
  // Releases the leases, and the leases that an earlier daemon granted to these requests. All of
  // them or none, unless another call of the session releases some of them at the same time.
  //   INVALID_ARGUMENT  more ids than a session can hold
  //   and as Leases::Release
  absl::Status Release(const Call& call, absl::Span<const LeaseId> leases,
                       absl::Span<const uint64_t> requests = {});
  absl::StatusOr<IpcEventId> RegisterEvent(const Call& call, const Events::Place& place,
                                           absl::string_view device_uuid, const ExportData& handle,
                                           uint64_t request_id = 0);
  absl::StatusOr<std::vector<IpcEventView>> GetEvents(const Call& call, const Events::Place& place);
  absl::StatusOr<bool> UnregisterEvent(const Call& call, IpcEventId event);
  // Returns all of the session's leases on lost segments.
  std::vector<LeaseId> LostLeases(const Call& call) const;
  Inspector::Revoked RevokedLeases(const Call& call) const;
  absl::StatusOr<TenantView> Usage(const Call& call) const;
  absl::StatusOr<std::string> TenantOf(const Call& call) const;

  // --- Publications (publications.cc) ----------------------------------------

  // Statuses as in proto/gpumem/v1/broker.proto. The size of `metadata` replaces
  // spec.metadata_bytes.
  absl::StatusOr<uint64_t> Publish(const Call& call, const PublishSpec& spec,
                                   absl::string_view metadata);
  struct Attached {
    std::vector<LeaseView> leases;
    PublicationView publication;
    std::string metadata;
    bool claimed = false;  // in place of all the others: the session has the claim
  };
  struct AttachProgress {
    Progress::State state = Progress::State::kAnswered;
    absl::StatusOr<Attached> attached;
  };
  // As for an Acquisition.
  AttachProgress Advance(const std::shared_ptr<Attachment>& attachment, bool may_block);
  void GiveUp(const std::shared_ptr<Attachment>& attachment);
  // Releases the claim of a request, or ends its wait (ContentClaims::Release).
  void ReleaseClaim(const Call& call, uint64_t request_id);
  absl::StatusOr<uint64_t> Unpublish(const Call& call, absl::string_view name,
                                     uint64_t request_id = 0);
  absl::StatusOr<std::vector<PublicationView>> ListAttachable(const Call& call,
                                                              absl::string_view tenant) const;

  // Requests by subject: suspensions.h, operators.h, tenants.h and views.h.
  BrokerSuspensions suspensions();
  BrokerOperators operators();
  BrokerTenants tenants();
  BrokerViews views() const;

 private:
  friend class BrokerCall;
  friend class BrokerOperators;
  friend class BrokerPeer;  // of a simulation: reads the ledger
  friend class BrokerSuspensions;
  friend class BrokerTenants;
  friend class BrokerViews;
  struct Doomed {
    SegmentId id{};
    std::unique_ptr<Allocation> memory;
  };
  class Update;  // update.h

  // The next five are common to Acquire and Attach.
  // True if the request may begin; false if it is parked instead. Any error is its answer.
  absl::StatusOr<bool> MayBegin(WaitingRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Resumes the request when the present Update ends. Any error is its answer. Requires that it has
  // been taken from the requests that wait.
  void Resume(const std::shared_ptr<WaitingRequest>& request, absl::Status refused)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Releases leases that have just been handed over, if the client has given up.
  //   CANCELLED  it has
  absl::Status Keep(WaitingRequest& request, const std::vector<LeaseView>& leases)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `queue`: the part of the ledger in which requests of this type wait.
  template <typename Request, typename Queue>
  void GiveUp(const std::shared_ptr<Request>& request, WaitingRequests<Request>& waiting,
              Queue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpHeld(const std::shared_ptr<Acquisition>& acquisition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Request, typename Queue>
  void Park(WaitingRequests<Request>& waiting, Queue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Begins the request or queues it. True if it has its operation.
  absl::StatusOr<bool> Reserve(const std::shared_ptr<Acquisition>& acquisition)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // True if a Resume was refused because of copies under way, or because its leases have moved.
  bool BeginsAnew(const Acquisition& acquisition, const absl::Status& refused) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the fresh segments and hands all over. nullopt: the request must begin anew.
  std::optional<absl::StatusOr<std::vector<LeaseView>>> Carry(Acquisition& acquisition)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Releases memory that has just been granted, if its client has given up.
  absl::StatusOr<std::vector<LeaseView>> Taken(Acquisition& acquisition,
                                               absl::StatusOr<std::vector<LeaseView>> leases)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Records how long the request took until it was granted these leases.
  void CountGrant(const Acquisition& acquisition, const std::vector<LeaseView>& leases);
  // Ends waits whose time is up, presses again for the others, and carries on revocations.
  void TimerLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  // False when the broker stops.
  bool AwaitNextTimer() ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks sessions that could help a waiter to give memory back. Skips the waiter if another one of
  // its tenant on that device was looked at just now. Sets its next turn.
  void PressFor(WaiterId id, Acquisition& acquisition, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time NextTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time NextHeartbeat() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  BrokerLoad Load() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whose processes are to be ended now.
  std::vector<Revocations::Overdue> RunDueTimers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `refused`: the error is not a driver's; the service manager's store has no place.
  absl::Status Create(const Operation& operation, bool* refused) ABSL_LOCKS_EXCLUDED(mutex_);
  // Copies the contents of the operation's fresh segments out of the tier (suspensions.cc).
  absl::Status CopyBack(const Operation& operation) ABSL_LOCKS_EXCLUDED(mutex_);
  // Resumes the requests that wait for the end of copies, if some have ended.
  void ResumeCopied() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct HandedOver {
    // kWouldBlock: the client does not take the message at once. kLost: some of the memory was lost
    // meanwhile; it is marked as lost.
    enum class Outcome { kDone, kWouldBlock, kLost, kFailed } outcome = Outcome::kDone;
    absl::StatusOr<std::vector<LeaseView>> leases;  // if not kDone: the reason
  };
  HandedOver HandOver(const Operation& operation, Deliver deliver, bool may_block)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort(const Operation& operation, bool handed_over) ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds some of the operation's items to `handover`, starting at `begin`. Adds each pool that the
  // session needs with its first item, and to `pools` with its device.
  absl::Status Describe(const Operation& operation, size_t begin, Handover& handover,
                        absl::flat_hash_map<uint64_t, size_t>& pools)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the request that brings a suspended publication back for an Attachment.
  void BringBackFor(Attachment& attachment, PublicationId publication) const;
  // Returns the refusal of that request without the other tenant's usage.
  absl::Status ForAttach(const Attachment& attachment, absl::Status refused) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Resumes the Attachments whose wait may be over.
  void ResumeAttaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropEndedPublications() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndOverduePublications(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Audits a denial of the session's call. Returns the denial as the session may see it.
  absl::Status Denied(SessionId session, absl::string_view call, absl::Status denial) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AuditDenial(AuditRecord record, absl::string_view call, const absl::Status& denial) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Audits the denial of a session to a process.
  void AuditNoSession(absl::string_view tenant, const SessionDetails& details,
                      const absl::Status& why) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the denial without the holders that the session may not see.
  absl::Status WithoutOthers(SessionId session, absl::Status denial) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As above for an Acquire. Also asks sessions that could help to give memory back.
  absl::Status Denied(const Acquisition& acquisition, absl::Status denial)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Press(const Denial& why, absl::Time until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Passes on the effects of a change, and journals it. Called at the end of each Update.
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the changes to the journal. Must run before a client or operator is told of them.
  void Record() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<SessionId> FindSession(absl::string_view token) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // INVALID_ARGUMENT  the session cannot have so many leases, or requests for them
  absl::Status CheckNamed(SessionId session, size_t leases, size_t requests) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As Leases::Release, but holds the mutex for only a few of the leases at a time.
  absl::Status ReleaseInParts(SessionId session, std::vector<LeaseId> leases)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void DisposeLoop(size_t lane) ABSL_LOCKS_EXCLUDED(mutex_);
  // Releases the leases and memory of large sessions that have ended, a little at a time.
  void EndLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  void PageLoop() ABSL_LOCKS_EXCLUDED(mutex_);  // pages/page_calls.cc
  // Moves segments that their last user has let go of to the tier, one at a time (suspensions.cc).
  void MoveLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the lane on which a segment's memory is disposed of. Memory that lives in a context has
  // one lane for each device, because a hanging context must not delay other devices' memory.
  size_t LaneOf(SegmentId segment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks the segments that the device has lost.
  void CollectLost(size_t device) ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<std::unique_ptr<Device>> devices_;  // changed by the destructor alone
  const std::function<Secret()> random_;
  BrokerObserver* const observer_;
  Continuity* const continuity_;
  AuditSink* const audit_;
  const size_t max_leases_per_session_;
  const size_t leases_at_once_;
  const std::function<absl::Time()> now_;
  const std::function<void(const BrokerLoad&)> heartbeat_;
  const absl::Duration heartbeat_interval_, heartbeat_pause_, copy_hold_;
  Threads* const threads_;
  // Returns the driver's free bytes by device. One caller asks, others get the last answer.
  std::vector<uint64_t> DriverFree() const ABSL_LOCKS_EXCLUDED(driver_mutex_);
  mutable absl::Mutex driver_mutex_;
  mutable std::vector<uint64_t> driver_free_ ABSL_GUARDED_BY(driver_mutex_);
  mutable absl::Time driver_asked_ ABSL_GUARDED_BY(driver_mutex_) = absl::InfinitePast();
  mutable bool driver_asking_ ABSL_GUARDED_BY(driver_mutex_) = false;

  LatencyHistogram acquires_[kKinds][2];  // by IndexOf(kind), and by whether they waited
  LatencyHistogram suspends_;
  LatencyHistogram resumes_[2];  // by whether they waited

  mutable TimedMutex mutex_{threads_};
  Ledger ledger_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SegmentId, std::unique_ptr<Allocation>> memory_ ABSL_GUARDED_BY(mutex_);
  // Of all existing publications; of ended ones, to be closed outside the mutex.
  absl::flat_hash_map<PublicationId, std::shared_ptr<const Metadata>> metadata_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<PublicationId, std::shared_ptr<const Metadata>>> ended_metadata_
      ABSL_GUARDED_BY(mutex_);
  // By session and device: the pool whose descriptor was sent last. A client ignores duplicates.
  absl::flat_hash_map<SessionId, absl::flat_hash_map<size_t, uint64_t>> pools_sent_
      ABSL_GUARDED_BY(mutex_);
  MemoryPages pages_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<Doomed>> doomed_ ABSL_GUARDED_BY(mutex_);  // by lane
  // Two, because the clock looks at the first more often, and at few of them at a time.
  WaitingRequests<Acquisition> acquiring_ ABSL_GUARDED_BY(mutex_);
  WaitingRequests<Attachment> attaching_ ABSL_GUARDED_BY(mutex_);
  // Requests for leases of segments that are being copied to or from the host tier.
  std::multimap<SegmentId, std::shared_ptr<Acquisition>> awaiting_copies_ ABSL_GUARDED_BY(mutex_);
  // Resumed at the end of the present Update.
  std::vector<std::shared_ptr<WaitingRequest>> resumed_ ABSL_GUARDED_BY(mutex_);
  // By the session's tenant and device: until when PressFor skips the waiters there.
  absl::flat_hash_map<std::pair<std::string, size_t>, absl::Time> quiet_until_
      ABSL_GUARDED_BY(mutex_);
  bool times_changed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time ask_driver_again_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time watched_expiry_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time watched_swap_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;  // since the last heartbeat
  absl::Time last_heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // When others were last asked to give back, by denied tenant, pressed tenant and device.
  struct Pressed {
    absl::Time last;
    absl::Duration pause;  // until the next one may follow
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
  std::vector<BrokerThread> disposal_;         // one a lane
  BrokerThread clock_, ending_, moving_, paging_;
};

}  // namespace gpumemd
