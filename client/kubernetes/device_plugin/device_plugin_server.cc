// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/device_plugin/device_plugin_server.h"

#include <grpcpp/grpcpp.h>
#include <sys/un.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/kubernetes/device_plugin/deviceplugin.grpc.pb.h"
#include "common/grpc_status.h"

namespace gpumem::kubernetes {
namespace {

namespace api = ::v1beta1;

// A request has at most all ids of a list, twice.
constexpr int kMostMessage = 2 * static_cast<int>(kMostUnitList);
constexpr int kMostContainers = 256;  // of a request; the kubelet sends one
constexpr int kMostThreads = 256;
constexpr int kMostStreams = 512;
// Starts of containers wait, and leave threads to calls that must not fail.
constexpr int kMostWaiting = 192;
constexpr int kMostLists = 8;
constexpr absl::Duration kTick = absl::Milliseconds(200);

template <typename Ids>
std::vector<std::string> ToVector(const Ids& ids) {
  return {ids.begin(), ids.end()};
}

void Fill(const UnitList& list, api::ListAndWatchResponse* response) {
  for (const auto& [uuid, units] : list.gpus) {
    for (uint32_t number = 0; number < units.count; ++number) {
      api::Device* const device = response->add_devices();
      device->set_id(IdOf({uuid, list.step, number}));
      device->set_health(units.healthy ? "Healthy" : "Unhealthy");
    }
  }
}

absl::Status CheckCount(int containers) {
  if (containers <= kMostContainers) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the request has ", containers, " containers; at most ", kMostContainers));
}

// Counts a call while it lasts.
class Count {
 public:
  explicit Count(std::atomic<int>* counter) : counter_(counter), value_(++*counter) {}
  ~Count() { --*counter_; }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;
  // How many there were at the beginning, this one included.
  int value() const { return value_; }

 private:
  std::atomic<int>* const counter_;
  const int value_;
};

class Service final : public api::DevicePlugin::Service {
 public:
  Service(const DevicePluginOptions& options, const UnitBoard* board, PrepareUnits prepare,
          std::function<void(absl::string_view)> say, std::atomic<int>* streams,
          const std::atomic<bool>* closing)
      : options_(options),
        board_(board),
        prepare_(std::move(prepare)),
        say_(std::move(say)),
        streams_(streams),
        closing_(closing) {}

  grpc::Status GetDevicePluginOptions(grpc::ServerContext*, const api::Empty*,
                                      api::DevicePluginOptions* response) override {
    response->set_pre_start_required(true);
    response->set_get_preferred_allocation_available(true);
    return grpc::Status::OK;
  }

  grpc::Status ListAndWatch(grpc::ServerContext* context, const api::Empty*,
                            grpc::ServerWriter<api::ListAndWatchResponse>* writer) override {
    const Count count(streams_);
    if (count.value() > kMostLists) {
      return Failed("list", absl::ResourceExhaustedError("there are too many lists already"));
    }
    uint64_t seen = 0;
    bool first = true;
    while (!context->IsCancelled() && !*closing_) {
      // The version first: a list of later is written twice, not missed.
      const uint64_t version = board_->Wait(seen, kTick);
      if (version == seen && !first) continue;
      seen = version;
      const std::optional<UnitList> list = board_->Get();
      if (!list.has_value()) continue;
      api::ListAndWatchResponse response;
      Fill(*list, &response);
      if (!writer->Write(response)) break;
      first = false;
    }
    return grpc::Status::OK;
  }

  grpc::Status GetPreferredAllocation(grpc::ServerContext*,
                                      const api::PreferredAllocationRequest* request,
                                      api::PreferredAllocationResponse* response) override {
    absl::Status checked = CheckCount(request->container_requests_size());
    if (!checked.ok()) return Failed("choose units", checked);
    for (const auto& container : request->container_requests()) {
      const auto chosen = PreferredUnits(
          ToVector(container.available_deviceids()), ToVector(container.must_include_deviceids()),
          static_cast<size_t>(std::max(0, container.allocation_size())));
      if (!chosen.ok()) return Failed("choose units", chosen.status());
      auto* const answer = response->add_container_responses();
      for (const std::string& id : *chosen) answer->add_deviceids(id);
    }
    return grpc::Status::OK;
  }

  grpc::Status Allocate(grpc::ServerContext*, const api::AllocateRequest* request,
                        api::AllocateResponse* response) override {
    absl::Status checked = CheckCount(request->container_requests_size());
    if (!checked.ok()) return Failed("allocate", checked);
    const std::optional<UnitList> units = board_->Get();
    for (const auto& container : request->container_requests()) {
      const auto grant =
          GrantOf(ToVector(container.devices_ids()), units.value_or(UnitList()), options_.grant);
      if (!grant.ok()) return Failed("allocate", grant.status());
      auto* const answer = response->add_container_responses();
      for (const auto& [name, value] : grant->environment) (*answer->mutable_envs())[name] = value;
      api::Mount* const mount = answer->add_mounts();
      mount->set_host_path(grant->host_path);
      mount->set_container_path(grant->container_path);
      mount->set_read_only(true);
      for (const std::string& name : grant->cdi_devices) answer->add_cdi_devices()->set_name(name);
    }
    return grpc::Status::OK;
  }

  grpc::Status PreStartContainer(grpc::ServerContext* context,
                                 const api::PreStartContainerRequest* request,
                                 api::PreStartContainerResponse*) override {
    const Count count(&waiting_);
    if (count.value() > kMostWaiting) {
      return Failed("start", absl::ResourceExhaustedError("too many containers wait already"));
    }
    const absl::Time deadline =
        std::min(absl::FromChrono(context->deadline()), absl::Now() + options_.patience);
    const auto cancelled = [&] { return context->IsCancelled() || *closing_; };
    const absl::Status prepared = prepare_(ToVector(request->devices_ids()), cancelled, deadline);
    return prepared.ok() ? grpc::Status::OK : Failed("start", prepared);
  }

 private:
  grpc::Status Failed(absl::string_view what, const absl::Status& status) const {
    say_(absl::StrCat(what, ": ", status.message()));
    return ToGrpcStatus(status);
  }

  const DevicePluginOptions options_;
  const UnitBoard* const board_;
  const PrepareUnits prepare_;
  const std::function<void(absl::string_view)> say_;
  std::atomic<int>* const streams_;
  const std::atomic<bool>* const closing_;
  std::atomic<int> waiting_ = 0;
};

}  // namespace

std::string DevicePluginServer::SocketName() { return "gpumem.dev-memory.sock"; }

absl::StatusOr<std::unique_ptr<DevicePluginServer>> DevicePluginServer::Start(
    const DevicePluginOptions& options, const UnitBoard* board, PrepareUnits prepare,
    std::function<void(absl::string_view)> say) {
  const std::string socket = absl::StrCat(options.folder, "/", SocketName());
  if (socket.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(socket, " is too long for a socket"));
  }
  std::unique_ptr<DevicePluginServer> server(new DevicePluginServer);
  server->service_ = std::make_unique<Service>(options, board, std::move(prepare), std::move(say),
                                               &server->streams_, &server->closing_);
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMostThreads);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMostMessage);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  // Replaces the socket that a killed plug-in has left.
  builder.AddListeningPort(absl::StrCat("unix:", socket), grpc::InsecureServerCredentials());
  builder.RegisterService(server->service_.get());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("the socket ", socket, " cannot be made"));
  }
  return server;
}

DevicePluginServer::~DevicePluginServer() {
  closing_ = true;
  if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
}

}  // namespace gpumem::kubernetes
