// SPDX-License-Identifier: Apache-2.0
// A daemon for the client's tests: real sockets and real gRPC, with scripted answers. It keeps no
// quotas. By default it welcomes every client, grants requests of kinds vmm, pinned and host from
// host memory, and records the live leases and events. It can crash and come back, with or without
// that state.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {

// Open descriptors of this process.
size_t OpenFds();
// Those of them that are memory. gRPC closes sockets of earlier tests at any time.
size_t OpenMemoryFds();

// Describes the leases in a Delivery if this thread serves a Converse of a FakeDaemon.
void DescribeLeases(const std::vector<v1::Lease>& leases, v1::Delivery* delivery);

class FakeDaemon {
 public:
  static constexpr uint64_t kGranularity = 4096;
  static constexpr char kDevice[] = "HOST-0";
  static constexpr char kPinnedDevice[] = "PINNED-0";

  // Replacements of the default behaviour. Called from many threads.
  struct Script {
    // Handles a new connection; false closes it.
    std::function<bool(int socket, uint64_t session)> hello;
    // Handles a request to resume a session; false closes the connection.
    std::function<bool(int socket, const v1::Hello&)> resume;
    std::function<grpc::Status(const std::function<bool()>& is_cancelled,
                               const v1::ReconcileRequest&)>
        reconcile;
    std::function<grpc::Status(uint64_t session, const v1::AcquireRequest&, v1::AcquireResponse*)>
        acquire;
    // As above, with a check if the client still waits for the answer.
    std::function<grpc::Status(const std::function<bool()>& is_cancelled, uint64_t session,
                               const v1::AcquireRequest&, v1::AcquireResponse*)>
        acquire_waiting;
    std::function<grpc::Status(const v1::ShareRequest&)> share;
    std::function<grpc::Status(const v1::ReleaseRequest&)> release;
    std::function<grpc::Status()> usage;
    // These are called before the default behaviour; an error is the answer.
    std::function<grpc::Status(const v1::PrepareSuspendRequest&)> prepare_suspend;
    std::function<grpc::Status(const std::function<bool()>& is_cancelled,
                               const v1::SuspendRequest&)>
        suspend;
    std::function<grpc::Status(const std::function<bool()>& is_cancelled, const v1::ResumeRequest&)>
        resume_leases;
    std::function<grpc::Status(const std::function<bool()>& is_cancelled,
                               const v1::ExchangeLeasesRequest&)>
        exchange;
    // These three are called when it is done, before the answer.
    std::function<grpc::Status(const std::function<bool()>& is_cancelled)> suspended;
    std::function<grpc::Status(const std::function<bool()>& is_cancelled)> resumed;
    std::function<grpc::Status(const std::function<bool()>& is_cancelled)> exchanged;
    // Called once it is registered.
    std::function<grpc::Status(const std::function<bool()>& is_cancelled)> register_event;
    // An older daemon, which serves unary calls only.
    bool older;
    // Called with each message of a Converse before it is carried out; an error ends the stream.
    std::function<grpc::Status(const v1::SessionRequest&)> message;
    // Called before an answer is written, and may change it; an error ends the stream without it.
    std::function<grpc::Status(const std::function<bool()>& is_cancelled, v1::SessionResponse*)>
        answered;
    std::vector<v1::Device> devices;             // empty: kDevice and kPinnedDevice
    std::vector<v1::DeviceUsage> device_usages;  // empty: that of kDevice
  };

  explicit FakeDaemon(Script script = {});
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  const std::string& runtime_dir() const { return runtime_dir_; }

  // Building blocks of scripts.
  grpc::Status Grant(uint64_t session, const v1::AcquireRequest& request,
                     v1::AcquireResponse* response);
  // As Grant, without the Delivery.
  std::vector<v1::Lease> GrantSilently(uint64_t session, const v1::AcquireRequest& request,
                                       v1::AcquireResponse* response);
  v1::Lease NewLease(uint64_t bytes, v1::Kind kind = v1::KIND_VMM, bool revocable = false);
  // Returns a lease's memory, valid as long as the lease. For kinds vmm, pinned and host only.
  int Memory(const v1::Lease& lease);
  uint64_t NewDeliveryId() { return next_delivery_++; }
  // `fds`: of the leases of kinds vmm, pinned and host.
  void Deliver(uint64_t session, uint64_t delivery_id, const std::vector<v1::Lease>& leases,
               absl::Span<const int> fds);
  void Deliver(uint64_t session, const v1::Delivery& delivery, absl::Span<const int> fds);
  static v1::Hello ReadHello(int socket);
  static v1::ServerMessage WelcomeTo(uint64_t session);
  // A Welcome without `fds` gets a new connection to its gRPC server.
  static void Send(int socket, const v1::ServerMessage& message, absl::Span<const int> fds = {});

  // Changes how one lease is reported from now on, and the device of later leases.
  void SetTenant(uint64_t lease_id, const std::string& tenant);
  void SetKind(uint64_t lease_id, v1::Kind kind);
  void GrantOn(const std::string& device_uuid);

  // Sets the pid that ListDevices reports for all devices from now on.
  void SetContextPid(int32_t pid) { context_pid_ = pid; }

  // Replaces the handles of all events by these bytes.
  void ReplaceHandles(const std::string& bytes);

  // Sends the event to every Watch, also to later ones. SuspensionRequested goes only to those that
  // accept it.
  void Tell(const v1::Event& event);
  // Later Watches do not receive the events sent so far.
  void ForgetEvents();
  // Ends every Watch.
  void EndWatches(const grpc::Status& status);
  // Later Watches stay open again.
  void KeepWatches();
  // Blocks until there are that many Watches.
  void AwaitWatches(size_t count);

  // Announces the end of the session, or of the daemon.
  void Goodbye(uint64_t session, const std::string& reason, bool stopping = false);
  // Closes a session's socket without a message, and forgets the session.
  void Hangup(uint64_t session);
  // Closes everything, as a crash does: alternately the sessions' sockets first, and the calls
  // first. Waits for calls that are being served.
  void Crash();
  // Starts another daemon after a crash, with the leases and sessions of its predecessor, or none.
  void ComeBack(bool remembers = true);
  // Returns a live lease as it is now.
  v1::Lease LeaseOf(uint64_t lease_id);
  // Returns the suspended leases.
  std::set<uint64_t> suspended();
  // Returns how often clients have reported activity.
  int activity_reports() const { return activity_reports_; }
  // Returns the reservation of the last PrepareSuspend; 0 once it has ended.
  uint64_t reservation();
  // Takes a lease from the session, so that the next daemon does not know it.
  void LoseLease(uint64_t lease_id);

  // Returns the number of live leases. With `awaited`, first blocks until it is that many, as after
  // asynchronous releases; for 60 seconds at most.
  size_t live_leases(std::optional<size_t> awaited = std::nullopt);
  size_t live_events();
  int release_calls() const { return release_calls_; }
  // The number of messages of all Converses.
  int messages() const { return messages_; }
  // The number of calls of sessions that were not reconciled yet.
  int early_calls() const { return early_calls_; }
  int resumes() const { return resumes_; }
  // The number of all leases ever granted.
  uint64_t granted();

 private:
  // Connects to the gRPC server of the daemon that accepted this session socket; not valid() if
  // that daemon is gone.
  static UniqueFd ConnectGrpc(int session);

  class Service;
  struct Held {
    v1::Lease lease;
    UniqueFd memory;
    uint64_t session = 0;
    uint64_t request = 0;  // that it was granted for; 0: unknown
    bool suspended = false;
  };
  struct Known {
    // kAway: since a crash. kBack: resumed, but not reconciled yet.
    enum class State { kLive, kAway, kBack, kGone };
    UniqueFd socket;
    State state = State::kLive;
  };
  struct Registered {
    v1::RegisterIpcEventRequest request;
    v1::IpcEvent event;
    uint64_t segment_id = 0;  // the segment that it belongs to
    bool handed_out = false;
  };

  // Returns the session's token.
  static std::string TokenOf(uint64_t session);
  // True if the lease's memory is a descriptor.
  static bool HasFd(const v1::Lease& lease);

  std::vector<v1::Device> Devices() const;
  v1::ServerMessage Welcome(uint64_t session) const;
  std::unique_ptr<grpc::Service> MakeService();
  // Serves a Converse by the unary calls of `calls`.
  grpc::Status Converse(v1::Broker::Service& calls, grpc::ServerContext* context,
                        grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream);
  void Serve();
  void Accept();
  void Meet(UniqueFd socket);
  void Resume(UniqueFd socket, const v1::Hello& hello);
  int SocketOf(uint64_t session);
  // Returns the leases that the session was granted for the request, if any.
  std::vector<v1::Lease> GrantedFor(uint64_t session, uint64_t request);
  void SetOwner(const std::vector<v1::Lease>& leases, uint64_t session, uint64_t request);
  // Returns NOT_FOUND unless the session has all of these leases.
  grpc::Status CheckHeld(uint64_t session, absl::Span<const uint64_t> ids);
  void SuspendLeases(absl::Span<const uint64_t> ids);
  // Exchanges the segments of pairs of leases, all or none.
  grpc::Status Exchange(uint64_t session, const v1::ExchangeLeasesRequest& request);
  // Suspended leases get other segments, with the same bytes.
  void ResumeLeases(uint64_t session, absl::Span<const uint64_t> ids, v1::ResumeResponse* response);

  const Script script_;
  std::string runtime_dir_;
  UniqueFd listener_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::thread acceptor_;
  std::atomic<uint64_t> next_delivery_{1};
  std::atomic<int> release_calls_{0};
  std::atomic<int> early_calls_{0};
  std::atomic<int> messages_{0};
  std::atomic<int> resumes_{0};
  uint64_t generation_ = 0;
  std::atomic<int32_t> context_pid_{0};

  std::atomic<int> activity_reports_ = 0;
  std::mutex mutex_;
  std::vector<Known> sessions_;  // 1, 2, …
  std::map<uint64_t, Held> leases_;
  std::string grant_on_;  // empty: the device of the kind
  uint64_t next_lease_ = 1;
  uint64_t next_reservation_ = 1;
  uint64_t reservation_ = 0;
  std::map<uint64_t, Registered> events_;
  uint64_t next_event_ = 1;
  std::condition_variable leases_changed_;  // some have ended
  std::condition_variable watches_changed_;
  std::vector<v1::Event> told_;
  size_t watches_ = 0;
  std::optional<grpc::Status> watches_end_;
};

}  // namespace gpumem::internal
