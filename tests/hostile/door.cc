// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/door.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::hostile {
namespace {

constexpr char kApiSocket[] = "api.sock";

}  // namespace

bool HasApiSocket(const std::string& runtime_dir) {
  return access(SocketPath(runtime_dir, kApiSocket).c_str(), F_OK) == 0;
}

absl::StatusOr<UniqueFd> Dial(const std::string& runtime_dir, absl::string_view name) {
  return ConnectUnix(SocketPath(runtime_dir, name),
                     name == kSessionSocket ? SOCK_SEQPACKET : SOCK_STREAM, absl::Now() + kTimeout);
}

absl::StatusOr<Seat> TakeSeat(const std::string& runtime_dir, absl::string_view resume_token,
                              const std::string& tenant) {
  const absl::Time deadline = absl::Now() + kTimeout;
  absl::StatusOr<UniqueFd> session = Dial(runtime_dir, kSessionSocket);
  if (!session.ok()) return session.status();
  v1::Hello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_client_name("hostile");
  hello.set_resume_token(std::string(resume_token));
  hello.set_tenant(tenant);
  absl::Status sent = SendMessage(session->get(), hello.SerializeAsString(), {}, deadline);
  if (!sent.ok()) return sent;
  absl::StatusOr<UnixMessage> packet = ReceiveMessage(session->get(), deadline);
  if (!packet.ok()) return absl::UnavailableError(packet.status().message());
  v1::ServerMessage answer;
  if (!answer.ParseFromString(packet->bytes)) return absl::UnavailableError("no ServerMessage");
  if (answer.has_refusal()) {
    return absl::Status(static_cast<absl::StatusCode>(answer.refusal().code()),
                        answer.refusal().message());
  }
  if (!answer.has_welcome()) return absl::UnavailableError("no Welcome");
  Seat seat = {.session = *std::move(session), .token = answer.welcome().token()};
  if (!packet->fds.empty()) {
    seat.stream = std::move(packet->fds[0]);
    return seat;
  }
  absl::StatusOr<UniqueFd> stream = Dial(runtime_dir, kApiSocket);
  if (!stream.ok()) return stream.status();
  seat.stream = *std::move(stream);
  return seat;
}

absl::StatusOr<Seat> Knock(const std::string& runtime_dir) {
  if (!HasApiSocket(runtime_dir)) return TakeSeat(runtime_dir);
  absl::StatusOr<UniqueFd> stream = Dial(runtime_dir, kApiSocket);
  if (!stream.ok()) return stream.status();
  return Seat{.stream = *std::move(stream)};
}

}  // namespace gpumem::hostile
