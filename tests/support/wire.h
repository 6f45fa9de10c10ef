// SPDX-License-Identifier: Apache-2.0
// The daemon's sockets spoken by hand, for tests that break the rules which
// libgpumem keeps.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/grpc_status.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"
#include "proto/gpumem/v1/session.pb.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {

// How long a test waits for an answer that the daemon owes.
inline constexpr absl::Duration kAnswerTime = absl::Seconds(20);

v1::Hello HelloOf(absl::string_view tenant, absl::string_view name = "wire");

// The session socket, before and after Hello.
class WireSession {
 public:
  // Connects, and sends nothing. Aborts if it cannot.
  explicit WireSession(const std::string& socket_path);
  // Takes a socket that is connected already.
  explicit WireSession(UniqueFd socket) : socket_(std::move(socket)) {}
  WireSession(WireSession&&) = default;
  WireSession& operator=(WireSession&&) = default;

  // One packet of these bytes, with these descriptors.
  absl::Status Send(absl::string_view bytes, absl::Span<const int> fds = {});

  // Returns the next packet of any type. `fds` gets its descriptors.
  absl::StatusOr<v1::ServerMessage> Receive(std::vector<UniqueFd>* fds = nullptr);

  // The daemon's answer as a status: OK for Welcome, which is kept, a Refusal's code and
  // words, CANCELLED with the reason for Goodbye, and UNAVAILABLE for a closed socket.
  absl::Status Answer();
  absl::Status Greet(const v1::Hello& hello);
  const v1::Welcome& welcome() const { return welcome_; }
  const std::string& token() const { return welcome_.token(); }
  // The session's gRPC connection, which came with Welcome: as bytes, or as a channel. One of the
  // two, once.
  UniqueFd TakeApi() { return std::move(api_); }
  std::shared_ptr<grpc::Channel> TakeChannel();
  std::unique_ptr<v1::Broker::Stub> TakeBroker() { return v1::Broker::NewStub(TakeChannel()); }

  // True if nothing follows: the daemon has closed the socket.
  bool Ended();

  int fd() const { return socket_.get(); }
  void Close() { socket_.reset(); }

 private:
  UniqueFd socket_;
  UniqueFd api_;
  v1::Welcome welcome_;
};

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& socket_path);
// Returns a channel over a connected stream socket.
std::shared_ptr<grpc::Channel> ChannelOver(UniqueFd socket);
// Returns the gRPC connection of a new session, which lives as long as the channel. Aborts if the
// daemon refuses the session.
std::shared_ptr<grpc::Channel> ChannelOfSession(const std::string& session_socket,
                                                absl::string_view tenant = {});

// A context with a deadline and, if any, a token.
std::unique_ptr<grpc::ClientContext> ContextWith(absl::string_view token = {},
                                                 absl::Duration timeout = kAnswerTime);

// A unary call of `method` ("/gpumem.v1.Broker/Acquire") with these bytes for a request.
absl::StatusOr<std::string> CallBytes(const std::shared_ptr<grpc::Channel>& channel,
                                      const std::string& method, const std::string& request,
                                      absl::string_view token = {});

// Returns the first answer on a bidirectional stream whose only request is `request`.
absl::StatusOr<std::string> StreamBytes(const std::shared_ptr<grpc::Channel>& channel,
                                        const std::string& method, const std::string& request);

// A typed unary call of the Broker:
//   CallBroker(stub, &v1::Broker::Stub::Acquire, request, token)
template <typename Request, typename Response>
absl::StatusOr<Response> CallBroker(v1::Broker::Stub& stub,
                                    grpc::Status (v1::Broker::Stub::*method)(grpc::ClientContext*,
                                                                             const Request&,
                                                                             Response*),
                                    const Request& request, absl::string_view token) {
  Response response;
  const grpc::Status status = (stub.*method)(ContextWith(token).get(), request, &response);
  if (status.ok()) return response;
  return FromGrpcStatus(status);
}

// A stream socket, connected; for bytes that are no gRPC.
UniqueFd ConnectStream(const std::string& socket_path);

// HTTP/2 by hand (RFC 9113).
namespace http2 {

// The preface and a SETTINGS frame that sets INITIAL_WINDOW_SIZE.
std::string Opening(uint32_t initial_window);
std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload);
// HEADERS of a gRPC call; `end` if no DATA follows.
std::string Headers(uint32_t stream, absl::string_view method, bool end = false);
// Returns DATA with one gRPC message, the last of its stream.
std::string Data(uint32_t stream, absl::string_view message);

}  // namespace http2
}  // namespace gpumem::testing
