#include "client/cli/connection.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <poll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"

namespace gpumem::cli {
namespace {

absl::Status AdminRefusal(const std::string& path) {
  return absl::PermissionDeniedError(
      absl::StrCat("this user may not use ", path,
                   ": it is for root, the user that runs the daemon, and the members of the "
                   "daemon's admin group (sudo, or [daemon] admin_group in its configuration), and "
                   "for none of them in another container than the daemon's"));
}

absl::StatusOr<UniqueFd> Connect(const std::string& runtime_dir, const char* socket_name) {
  absl::StatusOr<UniqueFd> fd =
      // With a name, so that the daemon's audit can say whose command it was.
      ConnectUnix(SocketPath(runtime_dir, socket_name), SOCK_STREAM, absl::InfiniteFuture(),
                  /*named=*/true);
  if (absl::IsUnavailable(fd.status())) {
    return absl::UnavailableError(
        absl::StrCat("no daemon at ", runtime_dir, ": start one with gpumemd --runtime-dir ",
                     runtime_dir, ", or say where it is with --runtime-dir or GPUMEM_RUNTIME_DIR"));
  }
  return fd;
}

// True where the daemon has looked at who connects and hung up: a gRPC server that
// accepts a connection speaks first (HTTP/2 SETTINGS).
bool HungUp(int fd) {
  pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
  char byte;
  return poll(&event, 1, 5000) > 0 && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

std::shared_ptr<grpc::Channel> MakeChannel(UniqueFd fd) {
  fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // a list of 100,000 segments is more than gRPC's 4 MiB
  return grpc::CreateCustomInsecureChannelFromFd("gpumemd", fd.release(), arguments);
}

}  // namespace

absl::StatusOr<std::unique_ptr<v1::Admin::Stub>> ConnectAdmin(const std::string& runtime_dir) {
  absl::StatusOr<UniqueFd> fd = Connect(runtime_dir, kAdminSocket);
  if (absl::IsPermissionDenied(fd.status()) || (fd.ok() && HungUp(fd->get()))) {
    return AdminRefusal(SocketPath(runtime_dir, kAdminSocket));
  }
  if (!fd.ok()) return fd.status();
  return v1::Admin::NewStub(MakeChannel(*std::move(fd)));
}

absl::StatusOr<std::unique_ptr<v1::Broker::Stub>> ConnectBroker(const std::string& runtime_dir) {
  absl::StatusOr<UniqueFd> fd = Connect(runtime_dir, kApiSocket);
  if (!fd.ok()) return fd.status();
  return v1::Broker::NewStub(MakeChannel(*std::move(fd)));
}

}  // namespace gpumem::cli
