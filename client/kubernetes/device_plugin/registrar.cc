// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/kubernetes/device_plugin/device_plugin_server.h"
#include "client/kubernetes/device_plugin/deviceplugin.grpc.pb.h"
#include "common/grpc_status.h"

namespace gpumem::kubernetes {
namespace {

// The kubelet connects to the plug-in before it answers, and waits 10 s for that.
constexpr absl::Duration kTimeout = absl::Seconds(15);
constexpr absl::Duration kPause = absl::Seconds(1);  // between attempts
// How long a kubelet may take from the registration to its stream of units.
constexpr absl::Duration kUntilStream = absl::Seconds(10);

}  // namespace

Registrar::Registrar(DevicePluginOptions options, const UnitBoard* board, PrepareUnits prepare,
                     std::function<void(absl::string_view)> say)
    : options_(std::move(options)),
      board_(board),
      prepare_(std::move(prepare)),
      say_(std::move(say)) {}

Registrar::~Registrar() = default;

std::optional<Registrar::Identity> Registrar::IdentityOf(const std::string& path) {
  struct stat file = {};
  if (lstat(path.c_str(), &file) != 0 || !S_ISSOCK(file.st_mode)) return std::nullopt;
  return Identity{file.st_dev, file.st_ino, file.st_ctim.tv_sec, file.st_ctim.tv_nsec};
}

absl::Status Registrar::Register() const {
  grpc::ChannelArguments arguments;
  // Shares no connection with earlier channels: those pause after the kubelet was away.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel =
      grpc::CreateCustomChannel(absl::StrCat("unix:", options_.folder, "/kubelet.sock"),
                                grpc::InsecureChannelCredentials(), arguments);
  const auto stub = ::v1beta1::Registration::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
  ::v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(DevicePluginServer::SocketName());
  request.set_resource_name(options_.resource);
  request.mutable_options()->set_pre_start_required(true);
  request.mutable_options()->set_get_preferred_allocation_available(true);
  ::v1beta1::Empty response;
  return FromGrpcStatus(stub->Register(&context, request, &response));
}

absl::Status Registrar::Try() {
  const std::string socket = absl::StrCat(options_.folder, "/", DevicePluginServer::SocketName());
  const auto kubelet = IdentityOf(absl::StrCat(options_.folder, "/kubelet.sock"));
  if (!kubelet.has_value()) return absl::UnavailableError("the kubelet is not there");
  if (server_ == nullptr || !socket_.has_value() || IdentityOf(socket) != socket_) {
    registered_.reset();
    server_ = nullptr;  // it removes its socket
    auto server = DevicePluginServer::Start(options_, board_, prepare_, say_);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    socket_ = IdentityOf(socket);
  }
  const bool forgotten = server_->streams() == 0 && absl::Now() - looked_ >= kUntilStream;
  if (registered_ == kubelet && !forgotten) return absl::OkStatus();
  if (registered_ != kubelet && absl::Now() - looked_ < kPause) return absl::OkStatus();
  registered_.reset();
  looked_ = absl::Now();
  if (absl::Status status = Register(); !status.ok()) return status;
  registered_ = kubelet;
  say_(absl::StrCat("the kubelet has registered ", options_.resource));
  return absl::OkStatus();
}

void Registrar::Look() {
  if (!board_->Get().has_value()) return;
  const absl::Status tried = Try();
  const std::string line = tried.ok() ? "" : absl::StrCat("registration: ", tried.message());
  if (!line.empty() && line != said_) say_(line);
  // An attempt that is not due says nothing about the last one.
  if (!line.empty() || registered_.has_value()) said_ = line;
}

}  // namespace gpumem::kubernetes
