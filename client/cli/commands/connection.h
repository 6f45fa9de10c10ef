// SPDX-License-Identifier: Apache-2.0
// gpumemctl's connection to the daemon.
//
// Errors are messages for the user: the path of the socket, and a remedy.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/grpc_status.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"

namespace gpumem::cli {

// The maximum time of a call, including the wait for the next daemon, if the user names none.
inline constexpr absl::Duration kCallTimeout = absl::Seconds(30);

// A connection to the service for operators.
class AdminConnection {
 public:
  // Connects, as ConnectAdmin and ConnectView.
  using Connector = absl::StatusOr<std::unique_ptr<AdminConnection>> (*)(
      const std::string& runtime_dir, std::optional<absl::Duration> timeout);

  AdminConnection(std::string runtime_dir, absl::Duration timeout, Connector again,
                  std::unique_ptr<v1::Admin::Stub> stub)
      : runtime_dir_(std::move(runtime_dir)),
        timeout_(timeout),
        again_(again),
        stub_(std::move(stub)) {}

  v1::Admin::Stub& stub() { return *stub_; }
  // The maximum time of a call.
  absl::Duration timeout() const { return timeout_; }
  // Reconnects after a short pause, as at first. Statuses as ConnectAdmin.
  absl::Status Reconnect();

 private:
  const std::string runtime_dir_;
  const absl::Duration timeout_;
  const Connector again_;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

// Connects to the daemon in `runtime_dir`: to the admin socket, and to the view socket if the admin
// socket is not for this user. There the daemon refuses calls that change something. Waits for a
// daemon while its socket listens without one, as with systemd's socket units and gpumem-keeper.
// `timeout` is that of each call, and of the connection.
//   UNAVAILABLE        no daemon there
//   DEADLINE_EXCEEDED  it accepts no connection
//   PERMISSION_DENIED  this user may use neither socket
//   RESOURCE_EXHAUSTED  it has no room for another connection
absl::StatusOr<std::unique_ptr<AdminConnection>> ConnectAdmin(
    const std::string& runtime_dir, std::optional<absl::Duration> timeout = std::nullopt);

// As ConnectAdmin, but to the view socket; to the admin socket if there is none, as of older
// daemons. For programs that only look: they take no connection from operators.
absl::StatusOr<std::unique_ptr<AdminConnection>> ConnectView(
    const std::string& runtime_dir, std::optional<absl::Duration> timeout = std::nullopt);

// Returns the error of a call that changes state and whose daemon ended: UNAVAILABLE.
absl::Status MayBeDone(const absl::Status& end);

// Returns the error of a call without an answer in time: DEADLINE_EXCEEDED. `changes`: it is one
// that changes state.
absl::Status NoAnswer(absl::Duration timeout, bool changes);

// True if gRPC reports the end of the call's time. Messages of the daemon say more.
inline bool IsEndOfCall(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) && status.message() == "Deadline Exceeded";
}

// Makes one call: Call(*admin, &v1::Admin::Stub::GetStatus, request). If the daemon ends during it,
// repeats a read-only call (Get…, List…, Check…) with the next daemon. It cannot repeat other
// calls: gRPC does not say whether the daemon has carried them out.
template <typename Request, typename Response>
absl::StatusOr<Response> Call(AdminConnection& admin,
                              grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Response*),
                              const Request& request) {
  const std::string& name = Request::descriptor()->name();
  const bool repeatable = absl::StartsWith(name, "Get") || absl::StartsWith(name, "List") ||
                          absl::StartsWith(name, "Check");
  const absl::Time deadline = absl::Now() + admin.timeout();
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    Response response;
    const absl::Status status =
        FromGrpcStatus((admin.stub().*method)(&context, request, &response));
    if (status.ok()) return response;
    if (IsEndOfCall(status)) return NoAnswer(admin.timeout(), !repeatable);
    // A server that shuts down cancels the calls that it has not begun.
    if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) return status;
    if (!repeatable) return MayBeDone(status);
    if (absl::Now() >= deadline) return status;
    if (absl::Status again = admin.Reconnect(); !again.ok()) return again;
  }
}

}  // namespace gpumem::cli
