// SPDX-License-Identifier: Apache-2.0
// A session's connection to one daemon: the session socket, the gRPC channel, and the descriptors
// that they delivered. It ends with that daemon and is never repaired: the session continues over
// another Connection to the next daemon.
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
#include "client/session/lane/lane.h"
#include "client/session/memory/view.h"
#include "client/session/pools.h"
#include "common/trace/span.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumem::internal {

class Connection {
 public:
  template <typename Request, typename Response>
  using Method = grpc::Status (v1::Broker::Stub::*)(grpc::ClientContext*, const Request&,
                                                    Response*);

  // `session`: the session socket, past Welcome. `api`: the socket that came with Welcome. `token`:
  // the session's.
  Connection(UniqueFd session, UniqueFd api, std::string token);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  v1::Broker::Stub& stub() { return *stub_; }
  Deliveries& deliveries() { return deliveries_; }
  Lane& lane() { return lane_; }
  Pools& pools() { return pools_; }
  MemoryView& memory() { return memory_; }

  // Sets what every call carries. The call has no deadline if `deadline` is infinite.
  void SetUp(grpc::ClientContext& context, absl::Time deadline) const;
  template <typename Request, typename Response>
  grpc::Status Call(Method<Request, Response> method, const Request& request, Response* response,
                    absl::Time deadline) {
    const trace::Span span("call");
    grpc::ClientContext context;
    SetUp(context, deadline);
    return (stub_.get()->*method)(&context, request, response);
  }

  // Returns OK while the connection lives. Else UNAVAILABLE: the session socket has ended, with the
  // daemon's reason, or GiveUp() was called. All earlier messages of the daemon have been read by
  // then.
  absl::Status End();
  bool ended() { return !End().ok(); }
  // True if it has not ended, as far as was seen within the last millisecond. Costs no system call
  // until then.
  bool SeemsAlive();
  // Requires that gRPC serves no call on it any more. The session may continue over another
  // Connection, also to the same daemon.
  void GiveUp() { given_up_ = true; }
  // The result of a call without arguments.
  //   kBroken  gRPC's connection has ended; the daemon may still live
  enum class Heartbeat { kAnswers, kSilent, kBroken };
  Heartbeat Check(absl::Time deadline);

  // The number of the statement (LeaseBook) sent by its Reconcile; 0: there was none. Set before
  // the Connection is shared.
  uint64_t statement() const { return statement_; }
  void set_statement(uint64_t number) { statement_ = number; }

 private:
  const std::string token_;
  const UniqueFd api_;  // a duplicate of gRPC's socket, to detect its end
  std::atomic<bool> given_up_ = false;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Broker::Stub> stub_;
  Deliveries deliveries_;
  Lane lane_;
  Pools pools_;
  MemoryView memory_;
  std::atomic<uint64_t> alive_until_ns_ = 0;  // of the node's clock
  uint64_t statement_ = 0;
};

// True if the peer has closed the socket, or both directions are shut down; unread data does not
// matter.
bool IsClosed(int socket);

}  // namespace gpumem::internal
