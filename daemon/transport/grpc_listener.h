// Hands the connections of a unix socket to a gRPC server.
//
// gRPC could listen by itself, but then nobody would count: one user could take every
// descriptor of the daemon with idle connections. Here the kernel says who connects, and
// each user may have so many.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "common/unique_fd.h"
#include "daemon/core/rules.h"

namespace gpumemd {

struct GrpcListenerOptions {
  uint32_t max_connections = 8192;
  uint32_t max_connections_per_uid = 1024;
  // Who may connect; absent: whom the socket's mode lets.
  std::function<bool(const PeerIdentity&)> admits;
  // Told of who comes, by number, before gRPC gets the socket; of their end; and of those who are
  // not admitted. In this object's thread.
  std::function<void(uint64_t connection, int socket, const PeerIdentity&)> on_connected;
  std::function<void(uint64_t connection)> on_ended;
  std::function<void(const PeerIdentity&)> on_refused;
};

class GrpcListener {
 public:
  // Adds itself to the builder of a server that is built next. `listener` is a listening
  // STREAM socket.
  GrpcListener(gpumem::UniqueFd listener, grpc::ServerBuilder* builder,
               GrpcListenerOptions options = {});
  // Stops accepting. After that the server may be shut down, not before.
  ~GrpcListener();
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  // Once the server runs.
  void Start();

 private:
  struct Connection {
    gpumem::UniqueFd fd;  // a duplicate of gRPC's, to see its end
    uid_t uid = 0;
  };

  void Serve();
  void AcceptSome();
  void Accept(gpumem::UniqueFd fd);
  void Ended(uint64_t key);
  // Makes room where all connections are taken: of the user who has the most.
  void EndOneOfTheGreediest();

  const gpumem::UniqueFd listener_;
  const GrpcListenerOptions options_;
  const gpumem::UniqueFd epoll_;
  const gpumem::UniqueFd stop_;  // eventfd
  gpumem::UniqueFd spare_;       // given up for a moment when descriptors run out
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;

  // The serving thread's.
  uint64_t next_key_;
  absl::flat_hash_map<uint64_t, Connection> connections_;
  absl::flat_hash_map<uid_t, uint32_t> by_uid_;

  std::thread thread_;
};

}  // namespace gpumemd
