// A client's session with the daemon, and with those that come after it where it dies. Knows the
// protocol; maps nothing.
//
// A call that finds the daemon gone brings the session back first (Reconnector), and one that the
// daemon dies under is asked again afterwards, unless said otherwise: until its deadline. Requests
// for leases have numbers by which nothing is granted twice, and LeaseBook knows what there is to
// be told.
//
// Thread-safe, without a thread of its own. In a child after fork() every call answers
// FAILED_PRECONDITION and the session is never destroyed, since neither gRPC's locks nor
// the socket are the child's to use.
//
// Every call ends by its deadline, and may answer the statuses that client.h names for
// all, besides what broker.proto says.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/session/connection.h"
#include "client/session/interrupt.h"
#include "client/session/lease_book.h"
#include "client/session/pools.h"
#include "client/session/reconnector.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {

class Session;

// Leases that were granted and are not mapped yet. Unless Keep() is called they are
// released at its end.
class Grant {
 public:
  // `connection`: that their Delivery came over.
  Grant(std::shared_ptr<Session> session, std::shared_ptr<Connection> connection,
        std::vector<v1::Lease> leases);
  ~Grant();
  Grant(Grant&&) noexcept = default;
  Grant& operator=(Grant&&) = delete;

  const std::vector<v1::Lease>& leases() const { return leases_; }
  // One descriptor for each lease, in order; not valid() where its kind has none.
  const std::vector<UniqueFd>& fds() const { return fds_; }
  void set_fds(std::vector<UniqueFd> fds) { fds_ = std::move(fds); }
  std::vector<UniqueFd> TakeFds() { return std::move(fds_); }

  // The memory pools that they may come from.
  Pools& pools() const { return connection_->pools(); }

  // From here on somebody else answers for the leases.
  void Keep() { session_.reset(); }

 private:
  std::shared_ptr<Session> session_;
  std::shared_ptr<Connection> connection_;
  std::vector<v1::Lease> leases_;
  std::vector<UniqueFd> fds_;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // See Client::Connect.
  static absl::StatusOr<std::shared_ptr<Session>> Connect(const ConnectOptions& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // What the daemon said at the start. Does not change.
  const v1::Welcome& welcome() const { return welcome_; }
  // The folder of the daemon's sockets.
  const std::string& runtime_dir() const { return runtime_dir_; }

  // When a call that begins now has to end.
  absl::Time Deadline(std::optional<absl::Duration> timeout) const;

  absl::StatusOr<Grant> Acquire(const v1::AcquireRequest& request, absl::Time deadline);
  // The same where the request waits, or can be cancelled. Meanwhile the session's other calls go
  // on, and what is owed is paid.
  //   CANCELLED  by the interrupt, or for want of interest; nothing was kept
  absl::StatusOr<Grant> AcquireWaiting(const v1::AcquireRequest& request, absl::Time deadline,
                                       const Disturbance& disturbance);
  absl::StatusOr<Grant> Open(const v1::OpenRequest& request, absl::Time deadline);

  absl::StatusOr<v1::PublishResponse> Publish(const v1::PublishRequest& request,
                                              absl::Time deadline);
  // The leases are not in the response, but in the Grant. As AcquireWaiting.
  struct Attached {
    Grant grant;
    v1::AttachResponse response;
  };
  absl::StatusOr<Attached> Attach(const v1::AttachRequest& request, absl::Time deadline,
                                  const Disturbance& disturbance);
  absl::StatusOr<v1::UnpublishResponse> Unpublish(const v1::UnpublishRequest& request,
                                                  absl::Time deadline);
  absl::StatusOr<v1::ListPublicationsResponse> ListPublications(
      const v1::ListPublicationsRequest& request, absl::Time deadline);
  // For requests that name one: never the same twice.
  uint64_t NewRequestId() { return ++last_request_id_; }
  absl::StatusOr<v1::ShareResponse> Share(const v1::ShareRequest& request, absl::Time deadline);
  absl::StatusOr<v1::GetUsageResponse> GetUsage(absl::Time deadline);
  absl::StatusOr<v1::WhoAmIResponse> WhoAmI(absl::Time deadline);
  absl::StatusOr<v1::ListDevicesResponse> ListDevices(absl::Time deadline);

  absl::StatusOr<v1::RegisterIpcEventResponse> RegisterIpcEvent(
      const v1::RegisterIpcEventRequest& request, absl::Time deadline);
  absl::StatusOr<v1::GetIpcEventsResponse> GetIpcEvents(const v1::GetIpcEventsRequest& request,
                                                        absl::Time deadline);
  // For destructors: soon over, and waits for no daemon that is not there. Where none answers it is
  // tried again later.
  absl::StatusOr<v1::UnregisterIpcEventResponse> UnregisterIpcEvent(uint64_t event_id);

  // What the daemon tells of by itself, until it or `context` ends. It is not begun again by
  // itself.
  struct EventStream {
    std::shared_ptr<Connection> connection;
    std::unique_ptr<grpc::ClientReader<v1::Event>> reader;
  };
  absl::StatusOr<EventStream> Watch(grpc::ClientContext* context, absl::Time deadline);
  // How a stream ended, in our words. OK is the end of the session.
  absl::Status Explain(const EventStream& stream, const grpc::Status& status);
  // Whether that was the daemon's end and not the session's: another may come.
  bool MayComeBack(const absl::Status& status) const;

  // Ends leases, all or none. Where the daemon does not answer it is tried again later. Those that
  // are lost have ended.
  absl::Status Release(std::vector<uint64_t> lease_ids, absl::Time deadline);

  // The same for destructors and rollbacks: silent, and soon over. Any process may
  // call it.
  void Forget(std::vector<uint64_t> lease_ids);

  // The leases that a daemon which came back did not know (SegmentsLost).
  std::set<uint64_t> LostLeases() const { return book_.lost(); }

  // To be called when a Segment has gone that had something of a memory pool.
  void DropDeadPools() { reconnector_.current()->pools().DropDead(); }
  // Keeps `object` as long as the session lives.
  void Keep(std::shared_ptr<void> object);

  // Whether this is a fork()ed child of the process that connected: FAILED_PRECONDITION in
  // CheckProcess() then.
  bool forked() const;
  absl::Status CheckProcess() const;

 private:
  using ConnectionPtr = std::shared_ptr<Connection>;

  Session(v1::Welcome welcome, const ConnectOptions& options, Greeting greeting,
          std::string runtime_dir, ConnectionPtr connection);
  ~Session() = default;

  template <typename Request, typename Response>
  using Method = Connection::Method<Request, Response>;

  // One call, again and again until a daemon has answered it.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(Method<Request, Response> method, const Request& request,
                               absl::Time deadline);
  // The same over one connection, once.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(Connection& connection, Method<Request, Response> method,
                                const Request& request, absl::Time deadline);
  // A call that is answered with leases and a Delivery; its request has a request_id.
  template <typename Request, typename Response>
  absl::StatusOr<Grant> CallForGrant(Method<Request, Response> method, Request request, int count,
                                     absl::Time deadline);
  template <typename Response>
  absl::StatusOr<Grant> TakeGrant(const ConnectionPtr& connection, Deliveries::Call& call,
                                  LeaseBook::Request& request,
                                  const absl::StatusOr<Response>& response, int count,
                                  absl::Time deadline);
  // A call in whose time others go on: `method` is one of the stub's that begin a call. `waits`:
  // it may take long; else it looks at the socket so often that the daemon need not wait for it.
  template <typename Request, typename Response>
  using AsyncMethod = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (
      v1::Broker::Stub::*)(grpc::ClientContext*, const Request&, grpc::CompletionQueue*);
  template <typename Request, typename Response>
  absl::StatusOr<Response> CallWaiting(Connection& connection,
                                       AsyncMethod<Request, Response> method,
                                       const Request& request, absl::Time deadline,
                                       const Disturbance& disturbance, bool waits);
  // Whoever cancelled a call may have been granted what it asked for just then: gives it back.
  void SettleCancelled(Connection& connection);

  // Whether a call that failed so over this connection may be asked again over another.
  bool HasEnded(Connection& connection, const absl::Status& status) const;
  absl::Status Explain(Connection& connection, const grpc::Status& status, absl::Time deadline);

  // What is to be done before each call: is there a connection, and is anything owed?
  absl::StatusOr<ConnectionPtr> Prepare(absl::Time deadline);
  // The same, which also ends where there is nothing to wait for any more: CANCELLED.
  absl::StatusOr<ConnectionPtr> PrepareUnless(const Disturbance& disturbance, absl::Time deadline);
  absl::Status Pay(Connection& connection, const LeaseBook::Debt& debt, absl::Time deadline);
  absl::Status ReleaseOnce(Connection& connection, const LeaseBook::Debt& debt,
                           absl::Time deadline);
  absl::StatusOr<v1::UnregisterIpcEventResponse> UnregisterOnce(Connection& connection,
                                                                uint64_t event_id,
                                                                absl::Time deadline);
  void PayOwed(Connection& connection, absl::Time deadline);

  const pid_t pid_;
  std::atomic<uint64_t> last_request_id_{0};
  const v1::Welcome welcome_;
  const absl::Duration timeout_;
  const std::string runtime_dir_;
  LeaseBook book_;
  Reconnector reconnector_;

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<void>> kept_ ABSL_GUARDED_BY(mutex_);
  // Events that the daemon is still to be told the end of.
  std::vector<uint64_t> owed_events_ ABSL_GUARDED_BY(mutex_);
  // The daemon did not answer the last time: until then it is not asked to release.
  absl::Time pay_after_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace gpumem::internal
