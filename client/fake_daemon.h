// A daemon for the client's tests: real sockets and real gRPC, with scripted answers.
// It keeps no quotas. Left alone it welcomes everybody, grants everything from host
// memory, and remembers which leases live.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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

  // What it does in another way than described above. Called from many threads.
  struct Script {
    // Meets who has just connected; closes the connection where it says false.
    std::function<bool(int socket, uint64_t session)> hello;
    std::function<grpc::Status(uint64_t session, const v1::AcquireRequest&, v1::AcquireResponse*)>
        acquire;
    std::function<grpc::Status(const v1::ReleaseRequest&)> release;
    std::function<grpc::Status()> usage;
  };

  explicit FakeDaemon(Script script = {});
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  const std::string& runtime_dir() const { return runtime_dir_; }

  // Parts that scripts are made of.
  grpc::Status Grant(uint64_t session, const v1::AcquireRequest& request,
                     v1::AcquireResponse* response);
  v1::Lease NewLease(uint64_t bytes);
  // A lease's memory, as long as the lease lives.
  int Memory(const v1::Lease& lease);
  uint64_t NewDeliveryId() { return next_delivery_++; }
  void Deliver(uint64_t session, uint64_t delivery_id, const std::vector<v1::Lease>& leases,
               absl::Span<const int> fds);
  static v1::Hello ReadHello(int socket);
  static v1::ServerMessage WelcomeTo(uint64_t session);
  static void Send(int socket, const v1::ServerMessage& message, absl::Span<const int> fds = {});

  void Goodbye(uint64_t session, const std::string& reason);
  // Closes a session's socket without a word.
  void Hangup(uint64_t session);
  // Ends everything so, as a crash does.
  void Crash();

  size_t live_leases();
  int release_calls() const { return release_calls_; }

 private:
  class Service;

  void Accept();
  int SocketOf(uint64_t session);

  const Script script_;
  std::string runtime_dir_;
  UniqueFd listener_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::thread acceptor_;
  std::atomic<uint64_t> next_delivery_{1};
  std::atomic<int> release_calls_{0};

  std::mutex mutex_;
  std::vector<UniqueFd> sockets_;        // of sessions 1, 2, …
  std::map<uint64_t, UniqueFd> memory_;  // by lease
  uint64_t next_lease_ = 1;
};

}  // namespace gpumem::internal
