// A daemon for the client's tests: real sockets and real gRPC, with scripted answers.
// It keeps no quotas. Left alone it welcomes everybody, grants what it is asked for of kinds
// vmm and pinned from host memory, and remembers which leases and events live. It can crash and
// come back, with or without what it knew.
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

class FakeDaemon {
 public:
  static constexpr uint64_t kGranularity = 4096;
  static constexpr char kDevice[] = "HOST-0";
  static constexpr char kPinnedDevice[] = "PINNED-0";

  // What it does in another way than described above. Called from many threads.
  struct Script {
    // Meets who has just connected; closes the connection where it says false.
    std::function<bool(int socket, uint64_t session)> hello;
    // Meets who wants a session back; closes the connection where it says false.
    std::function<bool(int socket, const v1::Hello&)> resume;
    std::function<grpc::Status(const std::function<bool()>& is_cancelled,
                               const v1::ReconcileRequest&)>
        reconcile;
    std::function<grpc::Status(uint64_t session, const v1::AcquireRequest&, v1::AcquireResponse*)>
        acquire;
    // The same where it also wants to know whether the client still waits for the answer.
    std::function<grpc::Status(const std::function<bool()>& is_cancelled, uint64_t session,
                               const v1::AcquireRequest&, v1::AcquireResponse*)>
        acquire_waiting;
    std::function<grpc::Status(const v1::ShareRequest&)> share;
    std::function<grpc::Status(const v1::ReleaseRequest&)> release;
    std::function<grpc::Status()> usage;
    // Once it is registered.
    std::function<grpc::Status(const std::function<bool()>& is_cancelled)> register_event;
    std::vector<v1::Device> devices;  // empty: kDevice and kPinnedDevice
  };

  explicit FakeDaemon(Script script = {});
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  const std::string& runtime_dir() const { return runtime_dir_; }

  // Parts that scripts are made of.
  grpc::Status Grant(uint64_t session, const v1::AcquireRequest& request,
                     v1::AcquireResponse* response);
  // The same, but for its Delivery.
  std::vector<v1::Lease> GrantSilently(uint64_t session, const v1::AcquireRequest& request,
                                       v1::AcquireResponse* response);
  v1::Lease NewLease(uint64_t bytes, v1::Kind kind = v1::KIND_VMM, bool revocable = false);
  // A lease's memory, as long as the lease lives. Of no kind but vmm and pinned.
  int Memory(const v1::Lease& lease);
  uint64_t NewDeliveryId() { return next_delivery_++; }
  // `fds`: of the leases of kinds vmm and pinned.
  void Deliver(uint64_t session, uint64_t delivery_id, const std::vector<v1::Lease>& leases,
               absl::Span<const int> fds);
  void Deliver(uint64_t session, const v1::Delivery& delivery, absl::Span<const int> fds);
  static v1::Hello ReadHello(int socket);
  static v1::ServerMessage WelcomeTo(uint64_t session);
  // A Welcome without `fds` gets a new connection to its gRPC server.
  static void Send(int socket, const v1::ServerMessage& message, absl::Span<const int> fds = {});
  // A connection to the gRPC server of the daemon that this session socket was accepted from; not
  // valid() where that is gone.
  static UniqueFd ConnectGrpc(int session);

  // Changes what is said of leases: of one from now on, of all to come.
  void SetTenant(uint64_t lease_id, const std::string& tenant);
  void SetKind(uint64_t lease_id, v1::Kind kind);
  void GrantOn(const std::string& device_uuid);

  // What ListDevices says of all devices from now on.
  void SetContextPid(int32_t pid) { context_pid_ = pid; }

  // Makes the handles of all events such bytes.
  void ReplaceHandles(const std::string& bytes);

  // Tells every Watch, also those to come.
  void Tell(const v1::Event& event);
  // Watches to come are not told what was told until now.
  void ForgetEvents();
  // Ends every Watch.
  void EndWatches(const grpc::Status& status);
  // New ones stay again.
  void KeepWatches();
  // Waits until there are as many Watches.
  void AwaitWatches(size_t count);

  // The end of the session, or of the daemon.
  void Goodbye(uint64_t session, const std::string& reason, bool stopping = false);
  // Closes a session's socket without a word, and knows it no more.
  void Hangup(uint64_t session);
  // Ends everything so, as a crash does; alternately the sessions' sockets first, and the calls.
  // Waits for calls that are being served.
  void Crash();
  // After a crash: another daemon, which has the leases and sessions of the one before, or nothing.
  void ComeBack(bool remembers = true);
  // Takes a lease from the session, so that the next daemon does not know it.
  void LoseLease(uint64_t lease_id);

  size_t live_leases();
  size_t live_events();
  int release_calls() const { return release_calls_; }
  int reconcile_calls() const { return reconcile_calls_; }
  // Calls of a session that was not reconciled yet.
  int early_calls() const { return early_calls_; }
  int resumes() const { return resumes_; }
  // All leases that ever were.
  uint64_t granted();

 private:
  class Service;
  struct Held {
    v1::Lease lease;
    UniqueFd memory;
    uint64_t session = 0;
    uint64_t request = 0;  // that it was granted for; 0: it did not say
  };
  struct Known {
    // kAway: since a crash. kBack: and not reconciled yet.
    enum class State { kLive, kAway, kBack, kGone };
    UniqueFd socket;
    State state = State::kLive;
  };
  struct Registered {
    v1::RegisterIpcEventRequest request;
    v1::IpcEvent event;
    uint64_t segment_id = 0;  // beside which
    bool handed_out = false;
  };

  std::vector<v1::Device> Devices() const;
  v1::ServerMessage Welcome(uint64_t session) const;
  void Serve();
  void Accept();
  void Meet(UniqueFd socket);
  void Resume(UniqueFd socket, const v1::Hello& hello);
  int SocketOf(uint64_t session);
  // What the session was granted for the request, if it was.
  std::vector<v1::Lease> GrantedFor(uint64_t session, uint64_t request);
  void SetOwner(const std::vector<v1::Lease>& leases, uint64_t session, uint64_t request);

  const Script script_;
  std::string runtime_dir_;
  UniqueFd listener_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::thread acceptor_;
  std::atomic<uint64_t> next_delivery_{1};
  std::atomic<int> release_calls_{0};
  std::atomic<int> reconcile_calls_{0};
  std::atomic<int> early_calls_{0};
  std::atomic<int> resumes_{0};
  uint64_t generation_ = 0;
  std::atomic<int32_t> context_pid_{0};

  std::mutex mutex_;
  std::vector<Known> sessions_;  // 1, 2, …
  std::map<uint64_t, Held> leases_;
  std::string grant_on_;  // empty: the device of the kind
  uint64_t next_lease_ = 1;
  std::map<uint64_t, Registered> events_;
  uint64_t next_event_ = 1;
  std::condition_variable watches_changed_;
  std::vector<v1::Event> told_;
  size_t watches_ = 0;
  std::optional<grpc::Status> watches_end_;
};

}  // namespace gpumem::internal
