// Hands the connections of the admin socket to a gRPC server.
//
// gRPC could listen by itself, but would not count: one user could take every descriptor of the
// daemon with idle connections. Here the kernel says who connects, and each user has a limit.
//
// The server is there while it has connections, and for options.linger after that: gRPC's threads
// wake several times a second, whether there is anything to do or not. One is made in some 2 ms.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/core/identity/rules.h"
#include "daemon/transport/api_line.h"

namespace gpumemd {

struct GrpcListenerOptions {
  // A connection counts until gRPC has closed its descriptor.
  uint32_t max_connections = 8192;
  uint32_t max_connections_per_uid = 1024;
  // Who may connect, or why not; absent: whom the socket's mode lets.
  std::function<absl::Status(int socket, const PeerIdentity&)> admits;
  // How long the server stays when nobody is connected.
  absl::Duration linger = absl::Seconds(30);
  // Told of who comes, by number, before gRPC gets the socket; of their end; and of those who are
  // not admitted. In this object's thread.
  std::function<void(uint64_t connection, int socket, const PeerIdentity&)> on_connected;
  std::function<void(uint64_t connection)> on_ended;
  std::function<void(const PeerIdentity&, const absl::Status& why)> on_refused;
};

class GrpcListener {
 public:
  // Sets a builder up for the server that is wanted, but for how it listens. Whenever one is made,
  // in this object's thread. Services are to be such as can be registered again and again: with
  // methods of the synchronous and the callback interfaces.
  using Prepare = std::function<void(grpc::ServerBuilder&)>;
  // What is to be done with a server that has just been started.
  using Started = std::function<void(grpc::Server&)>;

  // `listener` is a listening STREAM socket.
  GrpcListener(gpumem::UniqueFd listener, Prepare prepare, Started started,
               GrpcListenerOptions options = {});
  // As StopAccepting and Shutdown with no time left.
  ~GrpcListener();
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  // Accepts from here on. Once.
  void Start();
  // Accepts nobody any more; who is connected stays. Then Shutdown may be called.
  void StopAccepting();
  // Ends the server, if there is one: calls in flight have until `deadline`.
  void Shutdown(absl::Time deadline);

 private:
  struct Connection {
    std::shared_ptr<ApiLine> line;
    uid_t uid = 0;
  };

  void Serve();
  void AcceptSome();
  void Accept(gpumem::UniqueFd fd);
  // Its peer has closed it, if only in one direction: cuts it.
  void Ended(uint64_t key);
  void CountClosed();
  // Tells the peer of `fd`, which has just connected, why it is not served.
  void Refuse(const gpumem::UniqueFd& fd, const PeerIdentity* peer, const absl::Status& why);
  // Whether there is a server, now.
  bool HaveServer();
  // Makes room where all connections are taken: of the user who has the most.
  void EndOneOfTheGreediest();

  gpumem::UniqueFd listener_;
  const GrpcListenerOptions options_;
  const gpumem::UniqueFd epoll_;
  const gpumem::UniqueFd stop_;  // eventfd
  gpumem::UniqueFd spare_;       // given up for a moment when descriptors run out
  const Prepare prepare_;
  const Started started_;

  // The serving thread's, as long as there is one.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;  // of server_
  std::unique_ptr<grpc::Server> server_;
  uint64_t next_key_;
  absl::flat_hash_map<uint64_t, Connection> connections_;
  absl::flat_hash_map<uid_t, uint32_t> by_uid_;
  std::vector<uint64_t> closing_;  // cut, and gRPC has yet to close them

  std::thread thread_;
};

}  // namespace gpumemd
