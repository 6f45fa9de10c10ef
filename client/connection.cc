#include "client/connection.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/channel_arguments.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"

namespace gpumem::internal {
namespace {

// A channel over one socket, which never connects by itself: to another daemon it would carry calls
// whose memory that one sends elsewhere.
std::shared_ptr<grpc::Channel> MakeChannel(UniqueFd socket) {
  grpc::ChannelArguments args;
  args.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  // Nothing that only matters on networks.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // The largest answers list 253 leases or all devices.
  args.SetMaxReceiveMessageSize(8 << 20);
  return grpc::CreateCustomInsecureChannelFromFd("gpumemd", socket.release(), args);
}

}  // namespace

Connection::Connection(UniqueFd session, UniqueFd api, std::string token)
    : token_(std::move(token)),
      channel_(MakeChannel(std::move(api))),
      stub_(v1::Broker::NewStub(channel_)),
      deliveries_(std::move(session)),
      pools_(&deliveries_) {}

void Connection::SetUp(grpc::ClientContext& context, absl::Time deadline) const {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  context.AddMetadata(kTokenMetadata, token_);
}

bool Connection::Answers(absl::Time deadline) {
  v1::ListDevicesResponse response;
  const grpc::Status status =
      Call(&v1::Broker::Stub::ListDevices, v1::ListDevicesRequest(), &response, deadline);
  // A server that is going away, or nobody.
  return status.error_code() != grpc::StatusCode::UNAVAILABLE &&
         status.error_code() != grpc::StatusCode::CANCELLED &&
         status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED;
}

bool IsClosed(int session) {
  pollfd poll_fd = {session, POLLRDHUP, 0};
  return ::poll(&poll_fd, 1, 0) > 0;
}

absl::StatusOr<UniqueFd> ConnectApi(const std::string& path, int session, absl::Time deadline) {
  constexpr absl::Duration kAgainAfter = absl::Milliseconds(2);
  constexpr absl::Duration kStep = absl::Milliseconds(50);  // the daemon may die meanwhile
  while (true) {
    absl::StatusOr<UniqueFd> socket =
        ConnectUnix(path, SOCK_STREAM, std::min(deadline, absl::Now() + kStep));
    if (socket.ok()) return socket;
    if (IsClosed(session)) {
      return absl::UnavailableError("the daemon has welcomed this process, and is gone");
    }
    if (absl::Now() + kAgainAfter >= deadline) {
      return absl::DeadlineExceededError(socket.status().message());
    }
    absl::SleepFor(kAgainAfter);  // a daemon that is just starting has its other socket first
  }
}

}  // namespace gpumem::internal
