// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/connection.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/http2_refusal.h"
#include "common/unix_channel.h"

namespace gpumem::cli {
namespace {

// A daemon that refuses says why. One that shuts down may close a connection that it has just
// accepted.
constexpr int kMostHangUps = 3;
// A daemon that accepts a connection writes to it at once.
constexpr absl::Duration kHello = absl::Seconds(5);
constexpr absl::Duration kPause = absl::Milliseconds(50);

absl::Status AdminRefusal(const std::string& path) {
  return absl::PermissionDeniedError(
      absl::StrCat("permission denied for ", path,
                   ": use sudo, or join the group [daemon] admin_group of the configuration (to "
                   "see the state alone, view_group). The socket is for root, the daemon's user "
                   "and that group, outside containers or in the daemon's container"));
}

absl::StatusOr<UniqueFd> Connect(const std::string& runtime_dir, const char* socket,
                                 absl::Duration timeout) {
  absl::StatusOr<UniqueFd> fd =
      // With a name, so that the daemon's audit can name the command's user.
      ConnectUnix(SocketPath(runtime_dir, socket), SOCK_STREAM, absl::Now() + timeout,
                  /*named=*/true);
  if (absl::IsUnavailable(fd.status())) {
    return absl::UnavailableError(
        absl::StrCat("no daemon at ", runtime_dir, ": start one with gpumemd --runtime-dir ",
                     runtime_dir, ", or name its folder by --runtime-dir or GPUMEM_RUNTIME_DIR"));
  }
  return fd;
}

// Returns why the daemon does not serve this connection; nullopt if it does. UNAVAILABLE: it was
// closed without a reason. The daemon checks the peer's identity and, if it refuses it, sends the
// reason and closes (common/http2_refusal.h). A gRPC server that accepts a connection sends first
// (HTTP/2 SETTINGS).
std::optional<absl::Status> Refused(int fd, const std::string& path, absl::Duration timeout) {
  pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
  std::array<char, 1024> bytes;
  const absl::Duration wait = std::min(timeout, kHello);
  if (poll(&event, 1, static_cast<int>(absl::ToInt64Milliseconds(wait))) <= 0) return std::nullopt;
  const ssize_t size = recv(fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (size <= 0)
    return absl::UnavailableError(absl::StrCat("the daemon closed the connection to ", path));
  const std::optional<absl::Status> why =
      ParseHttp2Refusal({bytes.data(), static_cast<size_t>(size)});
  if (!why) return std::nullopt;
  if (absl::IsPermissionDenied(*why)) return AdminRefusal(path);
  return absl::Status(why->code(), absl::StrCat("the daemon refused the connection to ", path, ": ",
                                                why->message()));
}

std::shared_ptr<grpc::Channel> MakeChannel(UniqueFd fd) {
  fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // a list of 100,000 segments is more than gRPC's 4 MiB
  return grpc::CreateCustomInsecureChannelFromFd("gpumemd", fd.release(), arguments);
}

// Returns a connection that the daemon serves. Statuses as ConnectAdmin.
absl::StatusOr<UniqueFd> ConnectServed(const std::string& runtime_dir, const char* socket,
                                       absl::Duration timeout) {
  const std::string path = SocketPath(runtime_dir, socket);
  for (int hang_ups = 0; hang_ups < kMostHangUps; ++hang_ups) {
    if (hang_ups > 0) absl::SleepFor(kPause);
    absl::StatusOr<UniqueFd> fd = Connect(runtime_dir, socket, timeout);
    if (absl::IsPermissionDenied(fd.status())) return AdminRefusal(path);
    if (!fd.ok()) return fd;
    const std::optional<absl::Status> refused = Refused(fd->get(), path, timeout);
    if (!refused) return fd;
    if (!absl::IsUnavailable(*refused)) return *refused;
  }
  // Daemons of protocol version 1 refuse without a reason.
  return AdminRefusal(path);
}

std::unique_ptr<AdminConnection> ConnectionOf(UniqueFd fd, const std::string& runtime_dir,
                                              absl::Duration timeout,
                                              AdminConnection::Connector again) {
  return std::make_unique<AdminConnection>(runtime_dir, timeout, again,
                                           v1::Admin::NewStub(MakeChannel(std::move(fd))));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdminConnection>> ConnectAdmin(
    const std::string& runtime_dir, std::optional<absl::Duration> timeout) {
  const absl::Duration of_each_call = timeout.value_or(kCallTimeout);
  absl::StatusOr<UniqueFd> fd = ConnectServed(runtime_dir, kAdminSocket, of_each_call);
  if (absl::IsPermissionDenied(fd.status())) {
    absl::StatusOr<UniqueFd> view = ConnectServed(runtime_dir, kViewSocket, of_each_call);
    if (view.ok()) fd = std::move(view);
  }
  if (!fd.ok()) return fd.status();
  return ConnectionOf(*std::move(fd), runtime_dir, of_each_call, ConnectAdmin);
}

absl::StatusOr<std::unique_ptr<AdminConnection>> ConnectView(
    const std::string& runtime_dir, std::optional<absl::Duration> timeout) {
  const absl::Duration of_each_call = timeout.value_or(kCallTimeout);
  absl::StatusOr<UniqueFd> fd = ConnectServed(runtime_dir, kViewSocket, of_each_call);
  if (absl::IsUnavailable(fd.status())) {
    fd = ConnectServed(runtime_dir, kAdminSocket, of_each_call);
  }
  if (!fd.ok()) return fd.status();
  return ConnectionOf(*std::move(fd), runtime_dir, of_each_call, ConnectView);
}

absl::Status AdminConnection::Reconnect() {
  absl::SleepFor(kPause);
  absl::StatusOr<std::unique_ptr<AdminConnection>> next = again_(runtime_dir_, timeout_);
  if (next.ok()) stub_ = std::move((*next)->stub_);
  return next.status();
}

absl::Status MayBeDone(const absl::Status& end) {
  return absl::UnavailableError(
      absl::StrCat("the daemon ended during the call; the call may have taken effect: check, and "
                   "repeat it if not (",
                   end.message(), ")"));
}

absl::Status NoAnswer(absl::Duration timeout, bool changes) {
  return absl::DeadlineExceededError(absl::StrCat(
      "no answer of the daemon within ", absl::FormatDuration(timeout),
      changes ? "; the call may have taken effect, or take effect later: check before you repeat it"
              : "; --timeout sets a longer time"));
}

}  // namespace gpumem::cli
