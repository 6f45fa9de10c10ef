// SPDX-License-Identifier: Apache-2.0
#include "client/session/connection.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/channel_arguments.h>
#include <poll.h>

#include <utility>

#include "common/endpoints.h"
#include "common/node_clock.h"

namespace gpumem::internal {
namespace {

// Makes a channel over one socket, which never reconnects: another daemon would answer its calls
// but send the memory elsewhere.
std::shared_ptr<grpc::Channel> MakeChannel(UniqueFd socket) {
  grpc::ChannelArguments args;
  args.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  // Disables features that matter only on networks.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // The largest answers list 1024 leases or all devices.
  args.SetMaxReceiveMessageSize(8 << 20);
  return grpc::CreateCustomInsecureChannelFromFd("gpumemd", socket.release(), args);
}

}  // namespace

Connection::Connection(UniqueFd session, UniqueFd api, std::string token)
    : token_(std::move(token)),
      api_(fcntl(api.get(), F_DUPFD_CLOEXEC, 0)),
      channel_(MakeChannel(std::move(api))),
      stub_(v1::Broker::NewStub(channel_)),
      deliveries_(std::move(session)),
      lane_(stub_.get(), token_, api_.get(), &deliveries_),
      pools_(&deliveries_) {}

void Connection::SetUp(grpc::ClientContext& context, absl::Time deadline) const {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  context.AddMetadata(kTokenMetadata, token_);
}

absl::Status Connection::End() {
  if (absl::Status end = deliveries_.Poll(); !end.ok()) return end;
  if (!given_up_) return absl::OkStatus();
  return absl::UnavailableError("the connection to the daemon has ended");
}

bool Connection::SeemsAlive() {
  constexpr uint64_t kLooksEachNs = 1'000'000;
  const uint64_t now = NodeClockNs();
  if (now < alive_until_ns_.load(std::memory_order_relaxed)) return !given_up_;
  if (ended()) return false;
  alive_until_ns_.store(now + kLooksEachNs, std::memory_order_relaxed);
  return true;
}

Connection::Heartbeat Connection::Check(absl::Time deadline) {
  v1::ListDevicesResponse response;
  const grpc::Status status =
      Call(&v1::Broker::Stub::ListDevices, v1::ListDevicesRequest(), &response, deadline);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return api_.valid() && IsClosed(api_.get()) ? Heartbeat::kBroken : Heartbeat::kSilent;
  }
  // The server is going away, or the connection is gone.
  const bool broken = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                      status.error_code() == grpc::StatusCode::CANCELLED;
  return broken ? Heartbeat::kBroken : Heartbeat::kAnswers;
}

bool IsClosed(int socket) {
  pollfd poll_fd = {socket, POLLRDHUP, 0};
  return ::poll(&poll_fd, 1, 0) > 0;
}

}  // namespace gpumem::internal
