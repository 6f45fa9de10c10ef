// SPDX-License-Identifier: Apache-2.0
// A client's session with the daemon, and with the daemons that succeed it after a crash. It
// implements the protocol; it maps nothing.
//
// A call without a daemon resumes the session first (Reconnector). A call whose daemon dies is
// repeated until its deadline, unless stated otherwise. Requests for leases have numbers, so that
// none is granted twice. LeaseBook records the state that a new daemon must learn.
//
// Thread-safe; it has no thread. In a child after fork() every call returns FAILED_PRECONDITION and
// the session is never destroyed: the child must not use gRPC's locks or the socket.
//
// Every call ends by its deadline. It may return the statuses that client.h lists for all calls,
// and those of broker.proto.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/session/connection.h"
#include "client/session/interrupt.h"
#include "client/session/lane/message.h"
#include "client/session/lease_book.h"
#include "client/session/pools.h"
#include "client/session/reconnector.h"
#include "client/session/release/flusher.h"
#include "client/session/release/release_queue.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {

class Session;

// Leases that were granted and are not mapped yet. The destructor releases them unless Keep() was
// called.
class Grant {
 public:
  // `connection`: the one that brought their Delivery.
  Grant(std::shared_ptr<Session> session, std::shared_ptr<Connection> connection,
        std::vector<v1::Lease> leases);
  ~Grant();
  Grant(Grant&&) noexcept = default;
  Grant& operator=(Grant&&) = delete;

  const std::vector<v1::Lease>& leases() const { return leases_; }
  std::vector<uint64_t> LeaseIds() const;
  // One descriptor for each lease, in order; not valid() for kinds that have none.
  const std::vector<UniqueFd>& fds() const { return fds_; }
  void set_fds(std::vector<UniqueFd> fds) { fds_ = std::move(fds); }
  std::vector<UniqueFd> TakeFds() { return std::move(fds_); }

  // The connection that brought it, with the memory pools that the leases may come from.
  Connection& connection() const { return *connection_; }

  // Disarms the destructor: the caller now owns the leases.
  void Keep() { session_.reset(); }

 private:
  std::shared_ptr<Session> session_;
  std::shared_ptr<Connection> connection_;
  std::vector<v1::Lease> leases_;
  std::vector<UniqueFd> fds_;
};

// Uses the memory of a grant as soon as it is there.
class Recipient {
 public:
  virtual ~Recipient() = default;
  // Called when the leases and their memory have arrived, maybe before the daemon's answer and on
  // the caller's thread. Not every grant is announced.
  virtual void Arrived(const Grant& grant) = 0;
  // The daemon has not confirmed the grant. Undoes Arrived(); then the leases are released.
  virtual void Withdrawn() = 0;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // See Client::Connect.
  static absl::StatusOr<std::shared_ptr<Session>> Connect(const ConnectOptions& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The daemon's Welcome. Does not change.
  const v1::Welcome& welcome() const { return welcome_; }
  // The folder of the daemon's sockets.
  const std::string& runtime_dir() const { return runtime_dir_; }

  // Returns the deadline of a call that begins now.
  absl::Time Deadline(std::optional<absl::Duration> timeout) const;

  // `recipient` may be null.
  absl::StatusOr<Grant> Acquire(const v1::AcquireRequest& request, absl::Time deadline,
                                Recipient* recipient = nullptr);
  // As Acquire, for requests that wait or can be cancelled. Meanwhile the session's other calls
  // proceed, and pending releases are flushed.
  //   CANCELLED  by the interrupt, or by `look`; no lease is kept
  absl::StatusOr<Grant> AcquireWaiting(const v1::AcquireRequest& request, absl::Time deadline,
                                       const Disturbance& disturbance);
  absl::StatusOr<Grant> Open(const v1::OpenRequest& request, absl::Time deadline,
                             Recipient* recipient = nullptr);

  absl::StatusOr<v1::UnpublishResponse> Unpublish(const v1::UnpublishRequest& request,
                                                  absl::Time deadline);
  template <typename Response>
  struct Answered {
    Grant grant;
    Response response;
  };
  // The leases are not in the response, but in the Grant. Waits as AcquireWaiting.
  using Attached = Answered<v1::AttachResponse>;
  absl::StatusOr<Attached> Attach(const v1::AttachRequest& request, absl::Time deadline,
                                  const Disturbance& disturbance, Recipient* recipient = nullptr);
  // As Attach. With response.claimed(), the Grant is empty and the caller has the claim of
  // `request_id`, and must give it to ReleaseClaim or ForgetClaim once. `contents`: what it is for.
  struct AttachedOrClaimed {
    Answered<v1::AttachOrClaimResponse> answered;
    uint64_t request_id = 0;
  };
  absl::StatusOr<AttachedOrClaimed> AttachOrClaim(const v1::AttachOrClaimRequest& request,
                                                  LeaseBook::Contents contents, absl::Time deadline,
                                                  const Disturbance& disturbance);
  // Releases a claim. Without an answer of the daemon it is retried later.
  absl::Status ReleaseClaim(uint64_t request_id, absl::Time deadline);
  // Releases a claim in a destructor, as Forget.
  void ForgetClaim(uint64_t request_id);
  absl::StatusOr<v1::ListPublicationsResponse> ListPublications(
      const v1::ListPublicationsRequest& request, absl::Time deadline);

  // Put leases aside, and bring them back (broker.proto). A lost lease is FAILED_PRECONDITION.
  // Repeated over a restart of the daemon: a reservation that has ended with its daemon is made
  // anew by Suspend, and leases that are suspended already are no error.
  absl::StatusOr<v1::PrepareSuspendResponse> PrepareSuspend(
      const v1::PrepareSuspendRequest& request, absl::Time deadline);
  absl::StatusOr<v1::SuspendResponse> Suspend(const v1::SuspendRequest& request,
                                              absl::Time deadline);
  // For rollbacks: they wait for no absent daemon.
  void CancelSuspend(uint64_t suspension_id);
  absl::Status SuspendAgain(const v1::SuspendRequest& request, absl::Time deadline);
  // The memory of resumed leases, in the order of the request. The leases are the caller's already,
  // in contrast to those of a Grant.
  struct Resumed {
    std::vector<v1::Lease> leases;
    std::vector<UniqueFd> fds;
  };
  // Waits as AcquireWaiting. Leases that are not suspended are resumed, too: a repeated call brings
  // fresh descriptors. After CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE the leases may be
  // resumed.
  absl::StatusOr<Resumed> Resume(v1::ResumeRequest request, absl::Time deadline,
                                 const Disturbance& disturbance);

  // Exchanges the segments of pairs of leases (broker.proto). A lost lease is FAILED_PRECONDITION.
  // Repeated over a restart of the daemon. After DEADLINE_EXCEEDED and UNAVAILABLE they may be
  // exchanged.
  absl::Status ExchangeLeases(const v1::ExchangeLeasesRequest& request, absl::Time deadline);

  // Returns a unique id for requests that carry one.
  uint64_t NewRequestId() { return ++last_request_id_; }
  absl::StatusOr<v1::ShareResponse> Share(const v1::ShareRequest& request, absl::Time deadline);
  absl::StatusOr<v1::GetUsageResponse> GetUsage(absl::Time deadline);
  absl::StatusOr<v1::WhoAmIResponse> WhoAmI(absl::Time deadline);
  absl::StatusOr<v1::ListDevicesResponse> ListDevices(absl::Time deadline);

  absl::StatusOr<v1::RegisterIpcEventResponse> RegisterIpcEvent(
      const v1::RegisterIpcEventRequest& request, absl::Time deadline);
  absl::StatusOr<v1::GetIpcEventsResponse> GetIpcEvents(const v1::GetIpcEventsRequest& request,
                                                        absl::Time deadline);
  // For destructors: ends soon, and waits for no absent daemon. Without an answer it is retried
  // later.
  absl::StatusOr<v1::UnregisterIpcEventResponse> UnregisterIpcEvent(uint64_t event_id);

  // The daemon's event stream, until the daemon or `context` ends it. It is not restarted
  // automatically.
  struct EventStream {
    std::shared_ptr<Connection> connection;
    std::unique_ptr<grpc::ClientReader<v1::Event>> reader;
  };
  absl::StatusOr<EventStream> Watch(grpc::ClientContext* context, const v1::WatchRequest& request,
                                    absl::Time deadline);
  // Returns why a stream ended, in this library's words. OK is the end of the session.
  absl::Status Explain(const EventStream& stream, const grpc::Status& status);
  // True if only the daemon has ended, not the session: another daemon may follow.
  bool MayComeBack(const absl::Status& status) const;

  // Ends leases, all or none. Without an answer of the daemon it is retried later. Lost leases
  // count as ended.
  absl::Status Release(std::vector<uint64_t> lease_ids, absl::Time deadline);

  // As Release, for destructors and rollbacks: reports no error, and ends soon. Any process may
  // call it.
  void Forget(std::vector<uint64_t> lease_ids);

  // As Forget, but the session's next call tells the daemon, or soon a thread. `bytes`: of them.
  void ForgetSoon(std::vector<uint64_t> lease_ids, uint64_t bytes);
  // For so long ForgetSoon is not to linger: others wait for memory.
  void HurryReleases(absl::Duration time) { releases_.Hurry(time); }

  // The leases that a restarted daemon did not know (SegmentsLost).
  std::set<uint64_t> LostLeases() const { return book_.lost(); }

  // Call after a Segment with memory of a pool was destroyed.
  void DropDeadPools() { reconnector_.current()->pools().DropDead(); }
  // Keeps `object` as long as the session lives.
  void Keep(std::shared_ptr<void> object);

  // True in a fork()ed child of the process that connected. CheckProcess() then returns
  // FAILED_PRECONDITION.
  bool forked() const;
  absl::Status CheckProcess() const;

 private:
  friend class ::gpumem::Client;
  friend class Flusher;
  friend class OwnTenants;
  using ConnectionPtr = std::shared_ptr<Connection>;

  absl::StatusOr<v1::PublishResponse> Publish(const v1::PublishRequest& request,
                                              absl::Time deadline);
  // See Client::ReportActivity.
  void ReportActivity();
  // Tells the daemon what ForgetSoon has recorded. Bounded as Forget; the rest is told later.
  void SendReleases();

  // The maximum time that a destructor or a rollback waits for the daemon.
  static constexpr absl::Duration kTimeout = absl::Seconds(1);

  Session(v1::Welcome welcome, const ConnectOptions& options, Greeting greeting,
          std::string runtime_dir, ConnectionPtr connection);
  ~Session();

  template <typename Request, typename Response>
  using Method = Connection::Method<Request, Response>;

  // Makes one call, repeatedly until a daemon has answered it.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(Method<Request, Response> method, const Request& request,
                               absl::Time deadline);

  // Makes the call once over one connection.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(Connection& connection, Method<Request, Response> method,
                                const Request& request, absl::Time deadline);
  // Makes a call whose answer is leases and a Delivery; its request has a request_id.
  template <typename Request, typename Response>
  absl::StatusOr<Grant> CallForGrant(Method<Request, Response> method, Request request, int count,
                                     absl::Time deadline, Recipient* recipient);
  // What such calls are answered with.
  struct Granted {
    std::vector<v1::Lease> leases;
    uint64_t delivery_id = 0;
  };
  // Takes the leases out of an answer.
  template <typename Response>
  static Granted TakeLeases(Response& response) {
    Granted granted = {.leases = {}, .delivery_id = response.delivery_id()};
    granted.leases.reserve(static_cast<size_t>(response.leases_size()));
    for (v1::Lease& lease : *response.mutable_leases()) granted.leases.push_back(std::move(lease));
    return granted;
  }
  template <typename Response>
  static absl::StatusOr<Granted> TakeLeases(absl::StatusOr<Response>& response) {
    if (!response.ok()) return response.status();
    return TakeLeases(*response);
  }
  static absl::StatusOr<Granted> TakeLeasesOf(v1::SessionResponse& answer);
  static bool Matches(const Granted& granted, const Grant& grant, std::optional<int> count);
  // Makes such a call on the connection's lane. Nullopt: it was not made. `count`: how many leases
  // the answer must have, if that is known.
  std::optional<absl::StatusOr<Grant>> CallOnLane(
      const ConnectionPtr& connection, Deliveries::Call& call, LeaseBook::Request& booked,
      v1::SessionRequest message, std::optional<int> count, absl::Time deadline,
      Recipient* recipient, v1::SessionResponse* answer);
  // Makes a Release on the connection's lane. Nullopt: it was not made.
  std::optional<absl::Status> ReleaseOnLane(Connection& connection,
                                            const v1::ReleaseRequest& request, absl::Time deadline);
  // Collects the Delivery that the answer names.
  absl::StatusOr<Grant> TakeGrant(const ConnectionPtr& connection, Deliveries::Call& call,
                                  LeaseBook::Request& request, absl::StatusOr<Granted> granted,
                                  std::optional<int> count, absl::Time deadline);
  // A call during which other calls proceed; `method` is an asynchronous method of the stub.
  // `waits`: true if it may take long. Else it polls the socket so often that the daemon need not
  // wait.
  template <typename Request, typename Response>
  using AsyncMethod = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (
      v1::Broker::Stub::*)(grpc::ClientContext*, const Request&, grpc::CompletionQueue*);
  template <typename Request, typename Response>
  absl::StatusOr<Response> CallWaiting(Connection& connection,
                                       AsyncMethod<Request, Response> method,
                                       const Request& request, absl::Time deadline,
                                       const Disturbance& disturbance, bool waits);
  struct Wait {
    bool is_long = false;                      // `waits` of CallWaiting
    absl::Time ends = absl::InfiniteFuture();  // a repeated request waits for the rest only
    int64_t least_ms = 0;                      // of a repeated request whose wait is over
    Recipient* recipient = nullptr;
  };
  // As CallForGrant, for calls that may wait or can be cancelled (AcquireWaiting). Calls `heard`
  // with the answer, before the Delivery; it returns the number of leases that the answer must
  // have.
  template <typename Request, typename Response>
  absl::StatusOr<Answered<Response>> CallWaitingForGrant(
      AsyncMethod<Request, Response> method, LeaseBook::Request& booked, Request request,
      const Wait& wait, absl::Time deadline, const Disturbance& disturbance,
      absl::FunctionRef<int(const std::type_identity_t<Response>&)> heard);
  absl::StatusOr<Resumed> ResumeOnce(Connection& connection, const v1::ResumeRequest& request,
                                     absl::Time deadline, const Disturbance& disturbance);
  // Returns why a call about leases was refused: FAILED_PRECONDITION if one of them is lost.
  absl::Status ExplainLost(absl::Span<const uint64_t> lease_ids, const absl::Status& refusal) const;
  // Gives back what a cancelled call may have been granted at the last moment.
  void SettleCancelled(Connection& connection);

  // True if a call that failed with `status` over this connection may be repeated over another.
  bool HasEnded(Connection& connection, const absl::Status& status) const;
  // True if the daemon may have carried the call out, although it failed for this process.
  static bool MayHaveTakenEffect(const absl::Status& failure);
  absl::Status Explain(Connection& connection, const grpc::Status& status, absl::Time deadline);

  // Prepares each call: ensures a living connection and flushes pending releases, also those of
  // this process's other sessions. With `carried`, most are left to the call.
  absl::StatusOr<ConnectionPtr> Prepare(absl::Time deadline, CarriedRelease* carried = nullptr);
  // As Prepare, but returns CANCELLED if there is nothing left to wait for.
  absl::StatusOr<ConnectionPtr> PrepareUnless(const Disturbance& disturbance, absl::Time deadline);
  absl::Status ReleasePending(LeaseBook::PendingRelease pending, absl::Time deadline);
  absl::Status Flush(Connection& connection, const LeaseBook::PendingRelease& pending,
                     absl::Time deadline);
  // Releases those of the leases that the daemon knows.
  absl::Status ReleaseKnown(Connection& connection, const LeaseBook::PendingRelease& pending,
                            absl::Time deadline);
  absl::Status ReleaseOnce(Connection& connection, const LeaseBook::PendingRelease& pending,
                           absl::Time deadline);
  absl::StatusOr<v1::UnregisterIpcEventResponse> UnregisterOnce(Connection& connection,
                                                                uint64_t event_id,
                                                                absl::Time deadline);
  void FlushPending(Connection& connection, absl::Time deadline, CarriedRelease* carried = nullptr);
  // As FlushPending, without a wait for threads. True if it left no release but `carried` pending.
  bool FlushAll(Connection& connection, absl::Time deadline,
                LeaseBook::PendingRelease* carried = nullptr);
  // Ends what a message of the lane has carried. `answer`: empty if none came; null: it was not
  // sent.
  void SettleCarried(Connection& connection, CarriedRelease carried,
                     const v1::SessionResponse* answer, absl::Time deadline);

  const uint64_t forks_;  // of the process: another number in a forked child
  std::atomic<uint64_t> last_request_id_{0};
  const v1::Welcome welcome_;
  const absl::Duration timeout_;
  const std::string runtime_dir_;
  // Of the monotonic clock: when ReportActivity next makes a call.
  std::atomic<int64_t> report_after_ns_{0};
  LeaseBook book_;
  Reconnector reconnector_;

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<void>> kept_ ABSL_GUARDED_BY(mutex_);
  // Events whose end the daemon must still be told.
  std::vector<uint64_t> pending_events_ ABSL_GUARDED_BY(mutex_);
  // The daemon did not answer the last time. Until then it is not asked to release.
  absl::Time flush_after_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  ReleaseQueue releases_;
  Flusher flusher_{this};
};

template <typename Request, typename Response>
absl::StatusOr<Response> Session::Ask(Method<Request, Response> method, const Request& request,
                                      absl::Time deadline) {
  while (true) {
    const absl::StatusOr<ConnectionPtr> connection = Prepare(deadline);
    if (!connection.ok()) return connection.status();
    absl::StatusOr<Response> response = Call(**connection, method, request, deadline);
    if (!HasEnded(**connection, response.status())) return response;
  }
}

template <typename Request, typename Response>
absl::StatusOr<Response> Session::Call(Connection& connection, Method<Request, Response> method,
                                       const Request& request, absl::Time deadline) {
  Response response;
  const grpc::Status status = connection.Call(method, request, &response, deadline);
  if (!status.ok()) return Explain(connection, status, deadline);
  return response;
}

}  // namespace gpumem::internal
