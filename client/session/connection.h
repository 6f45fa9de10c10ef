// A session's line to one daemon: the session socket, the gRPC channel beside it, and what came
// over them. It ends with that daemon and is never mended: a session whose daemon has died goes on
// with another Connection, to the next one.
//
// Thread-safe.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/deliveries.h"
#include "client/session/pools.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumem::internal {

class Connection {
 public:
  template <typename Request, typename Response>
  using Method = grpc::Status (v1::Broker::Stub::*)(grpc::ClientContext*, const Request&,
                                                    Response*);

  // `session`: past Welcome. `api`: that came with Welcome. `token`: the session's.
  Connection(UniqueFd session, UniqueFd api, std::string token);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  v1::Broker::Stub& stub() { return *stub_; }
  Deliveries& deliveries() { return deliveries_; }
  Pools& pools() { return pools_; }

  // What every call carries. Without an end where the deadline has none.
  void SetUp(grpc::ClientContext& context, absl::Time deadline) const;
  template <typename Request, typename Response>
  grpc::Status Call(Method<Request, Response> method, const Request& request, Response* response,
                    absl::Time deadline) {
    grpc::ClientContext context;
    SetUp(context, deadline);
    return (stub_.get()->*method)(&context, request, response);
  }

  // OK while it lives. Else UNAVAILABLE: the session socket has ended, with the daemon's reason, or
  // GiveUp() was called. What the daemon sent before is read by then.
  absl::Status End();
  bool ended() { return !End().ok(); }
  // Requires that gRPC serves no call on it any more. The session may go on with another
  // Connection, also to the same daemon.
  void GiveUp() { given_up_ = true; }
  // What became of a call that asks for nothing.
  //   kBroken  gRPC's connection has ended; the daemon may be there all the same
  enum class Pulse { kAnswers, kSilent, kBroken };
  Pulse Check(absl::Time deadline);

  // The statement (LeaseBook) that its Reconcile made; 0: it began without one. Set before others
  // have the Connection.
  uint64_t statement() const { return statement_; }
  void set_statement(uint64_t number) { statement_ = number; }

 private:
  const std::string token_;
  const UniqueFd api_;  // a duplicate of gRPC's, to see its end
  std::atomic<bool> given_up_ = false;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Broker::Stub> stub_;
  Deliveries deliveries_;
  Pools pools_;
  uint64_t statement_ = 0;
};

// Whether the other end of a socket is closed, or both ends are shut down, whatever has come
// before.
bool IsClosed(int socket);

}  // namespace gpumem::internal
