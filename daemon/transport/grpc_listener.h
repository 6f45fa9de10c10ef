// SPDX-License-Identifier: Apache-2.0
// Hands the connections of the admin or the view socket to gRPC servers, one for each user.
//
// Their methods are synchronous: a call keeps a thread until its client has taken the answer. So a
// user who takes none keeps the threads of one server, and gets no more calls. Others have theirs.
//
// gRPC could listen by itself, but would not limit connections: one user could take every
// descriptor of the daemon with idle ones. Here the kernel identifies the peer, and each user has a
// limit of connections, and a budget of frames over all of them (connected_users.h). A flood ends
// all connections of its user. Connections that end while many calls are open are closed in turn.
//
// A server exists while its user has connections, and for options.linger after that: its threads
// take memory. Making one takes some 2 ms.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/core/identity/rules.h"
#include "daemon/transport/api_line.h"
#include "daemon/transport/connected_users.h"
#include "daemon/transport/meter/call_window.h"

namespace gpumemd {

struct GrpcListenerOptions {
  // A connection counts until gRPC has closed its descriptor. In all, as many again may have been
  // cut and not be closed yet.
  uint32_t max_connections = 8192;
  uint32_t max_connections_per_uid = 1024;
  ConnectedUsersOptions users;
  // With a server.
  size_t max_users = 64;
  // Returns whether the peer may connect. Absent: the socket's mode decides.
  std::function<absl::Status(int socket, const PeerIdentity&)> admits;
  // How long a server stays without connections.
  absl::Duration linger = absl::Seconds(30);
  // Callbacks, by connection number: a new peer, before gRPC gets the socket; its end; and peers
  // that are not admitted. They run in this object's thread.
  std::function<void(uint64_t connection, int socket, const PeerIdentity&)> on_connected;
  std::function<void(uint64_t connection)> on_ended;
  std::function<void(const PeerIdentity&, const absl::Status& why)> on_refused;
};

class GrpcListener {
 public:
  // Configures a builder for a server, except its listening ports. Called in this object's thread
  // for each new server. Several servers exist at a time, so services need methods of the
  // synchronous and the callback interfaces.
  using Prepare = std::function<void(grpc::ServerBuilder&)>;
  // Called with each server that has just started.
  using Started = std::function<void(grpc::Server&)>;

  // `listener` is a listening STREAM socket.
  GrpcListener(gpumem::UniqueFd listener, Prepare prepare, Started started,
               GrpcListenerOptions options = {});
  // As StopAccepting() and Shutdown() without a grace period.
  ~GrpcListener();
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;

  // Starts accepting. Call once.
  void Start();
  // Stops accepting; existing connections stay. Shutdown() may follow.
  void StopAccepting();
  // Ends all servers: calls in flight have until `deadline`.
  void Shutdown(absl::Time deadline);

 private:
  struct Connection {
    std::shared_ptr<ApiLine> line;
    uid_t uid = 0;
  };
  struct UserServer {
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;  // of `server`
    std::unique_ptr<grpc::Server> server;
    absl::Time idle_since = absl::InfiniteFuture();  // without connections
  };

  void Serve();
  void AcceptSome();
  void Accept(gpumem::UniqueFd fd);
  // Cuts a connection. It counts until gRPC has closed it.
  void Cut(uint64_t key);
  // Cuts all connections of a user that has exceeded the budget of frames.
  void CutFlood(uid_t uid);
  void CountClosed();
  // Lets gRPC close connections that had to wait for the ends of others of their user.
  void LetNextEnd();
  // Sends the peer of `fd`, which has just connected, the reason for the refusal.
  void Refuse(const gpumem::UniqueFd& fd, const PeerIdentity* peer, const absl::Status& why);
  // Returns the user's server; makes one if needed.
  //   RESOURCE_EXHAUSTED  there are options.max_users others with connections
  //   INTERNAL            gRPC could not start one
  absl::StatusOr<UserServer*> ServerOf(uid_t uid);
  // Ends the servers that have had no connections for options.linger, and gives their memory back
  // to the machine. Returns the time until the next one is to be ended; infinite: there is none.
  absl::Duration EndIdle(absl::Time now);
  // When all connections are taken, ends one of the user with the most.
  //   RESOURCE_EXHAUSTED  as many as may be open are being closed
  absl::Status MakeRoom();

  gpumem::UniqueFd listener_;
  const GrpcListenerOptions options_;
  const gpumem::UniqueFd epoll_;
  const gpumem::UniqueFd stop_;              // eventfd
  gpumem::UniqueFd spare_;                   // closed for a moment when descriptors run out
  const std::shared_ptr<CallWindow> calls_;  // of the meters of all connections
  const Prepare prepare_;
  const Started started_;

  // Used by the serving thread, while it runs.
  absl::flat_hash_map<uid_t, UserServer> servers_;
  uint64_t next_key_;
  absl::flat_hash_map<uint64_t, Connection> connections_;
  ConnectedUsers users_;
  std::vector<uint64_t> closing_;  // cut; gRPC has yet to close them

  std::thread thread_;
};

}  // namespace gpumemd
