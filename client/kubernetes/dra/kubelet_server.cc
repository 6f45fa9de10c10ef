// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/kubelet_server.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/kubernetes/dra/dra_health_v1alpha1.grpc.pb.h"
#include "client/kubernetes/dra/dra_v1.grpc.pb.h"
#include "client/kubernetes/dra/dra_v1beta1.grpc.pb.h"
#include "client/kubernetes/dra/health.h"
#include "client/kubernetes/dra/pluginregistration.grpc.pb.h"
#include "common/grpc_status.h"

namespace gpumem::kubernetes {
namespace {

constexpr int kMostMessage = 1 << 20;
constexpr int kMostStreams = 16;  // of a connection
constexpr int kMostThreads = 16;

namespace api = ::k8s::io::kubelet::pkg::apis::dra;

struct V1 {
  using Service = api::v1::DRAPlugin::Service;
  using PrepareRequest = api::v1::NodePrepareResourcesRequest;
  using PrepareResponse = api::v1::NodePrepareResourcesResponse;
  using UnprepareRequest = api::v1::NodeUnprepareResourcesRequest;
  using UnprepareResponse = api::v1::NodeUnprepareResourcesResponse;
};

struct V1Beta1 {
  using Service = api::v1beta1::DRAPlugin::Service;
  using PrepareRequest = api::v1beta1::NodePrepareResourcesRequest;
  using PrepareResponse = api::v1beta1::NodePrepareResourcesResponse;
  using UnprepareRequest = api::v1beta1::NodeUnprepareResourcesRequest;
  using UnprepareResponse = api::v1beta1::NodeUnprepareResourcesResponse;
};

template <typename Request>
std::vector<ClaimName> NamesOf(const Request& request) {
  std::vector<ClaimName> names;
  for (const auto& claim : request.claims()) {
    names.push_back({claim.namespace_(), claim.name(), claim.uid()});
  }
  return names;
}

// A version of the service. Both say the same.
template <typename Api>
class PluginService final : public Api::Service {
 public:
  PluginService(Driver* driver, absl::Duration timeout, std::function<void(absl::string_view)> say)
      : driver_(driver), timeout_(timeout), say_(std::move(say)) {}

  grpc::Status NodePrepareResources(grpc::ServerContext* context,
                                    const typename Api::PrepareRequest* request,
                                    typename Api::PrepareResponse* response) override {
    const absl::Time deadline =
        std::min(absl::FromChrono(context->deadline()), absl::Now() + timeout_);
    const auto prepared = driver_->PrepareClaims(NamesOf(*request), deadline);
    if (!prepared.ok()) return Failed("prepare", prepared.status());
    for (const auto& [uid, devices] : *prepared) {
      auto& answer = (*response->mutable_claims())[uid];
      if (!devices.ok()) {
        answer.set_error(Failure("prepare", devices.status()));
        continue;
      }
      for (const PreparedDevice& made : *devices) {
        auto* const device = answer.add_devices();
        device->set_pool_name(made.device.first);
        device->set_device_name(made.device.second);
        for (const std::string& name : made.requests) device->add_request_names(name);
        for (const std::string& id : made.cdi_devices) device->add_cdi_device_ids(id);
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status NodeUnprepareResources(grpc::ServerContext*,
                                      const typename Api::UnprepareRequest* request,
                                      typename Api::UnprepareResponse* response) override {
    const auto removed = driver_->UnprepareClaims(NamesOf(*request));
    if (!removed.ok()) return Failed("unprepare", removed.status());
    for (const auto& [uid, status] : *removed) {
      auto& answer = (*response->mutable_claims())[uid];
      if (!status.ok()) answer.set_error(Failure("unprepare", status));
    }
    return grpc::Status::OK;
  }

 private:
  std::string Failure(absl::string_view what, const absl::Status& status) {
    say_(absl::StrCat(what, ": ", status.message()));
    return std::string(status.message());
  }
  grpc::Status Failed(absl::string_view what, const absl::Status& status) {
    return ToGrpcStatus(absl::Status(status.code(), Failure(what, status)));
  }

  Driver* const driver_;
  const absl::Duration timeout_;
  const std::function<void(absl::string_view)> say_;
};

// Each watch has a thread of the server.
constexpr int kMostWatches = 4;
// The kubelet takes a device without news for that long to be unknown. News come in each round, and
// this often without.
constexpr absl::Duration kHealthTimeout = absl::Seconds(90);
constexpr absl::Duration kHealthPause = absl::Seconds(1);

class HealthService final : public ::v1alpha1::DRAResourceHealth::Service {
 public:
  HealthService(const HealthFeed* feed, std::string pool) : feed_(feed), pool_(std::move(pool)) {}

  grpc::Status NodeWatchResources(
      grpc::ServerContext* context, const ::v1alpha1::NodeWatchResourcesRequest*,
      grpc::ServerWriter<::v1alpha1::NodeWatchResourcesResponse>* writer) override {
    const auto leave = absl::MakeCleanup([this] { --watches_; });
    if (++watches_ > kMostWatches) {
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "there are too many watches");
    }
    uint64_t seen = 0;
    while (!context->IsCancelled()) {
      // It does not tell of a peer that is gone.
      const HealthFeed::News news = feed_->Wait(seen, absl::Now() + kHealthPause);
      if (news.closed) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the driver ends");
      if (news.number == seen) continue;
      seen = news.number;
      if (!writer->Write(ResponseOf(news.devices))) break;
    }
    return grpc::Status::OK;
  }

 private:
  ::v1alpha1::NodeWatchResourcesResponse ResponseOf(const HealthByDevice& devices) const {
    ::v1alpha1::NodeWatchResourcesResponse response;
    for (const auto& [name, health] : devices) {
      auto* const device = response.add_devices();
      device->mutable_device()->set_pool_name(pool_);
      device->mutable_device()->set_device_name(name);
      device->set_health(health.health == Health::kHealthy     ? ::v1alpha1::HEALTHY
                         : health.health == Health::kUnhealthy ? ::v1alpha1::UNHEALTHY
                                                               : ::v1alpha1::UNKNOWN);
      device->set_last_updated_time(absl::ToUnixSeconds(absl::Now()));
      device->set_health_check_timeout_seconds(absl::ToInt64Seconds(kHealthTimeout));
      device->set_message(health.message);
    }
    return response;
  }

  const HealthFeed* const feed_;
  const std::string pool_;
  std::atomic<int> watches_ = 0;
};

class RegistrationService final : public ::pluginregistration::Registration::Service {
 public:
  RegistrationService(std::string endpoint, std::function<void(absl::string_view)> say)
      : endpoint_(std::move(endpoint)), say_(std::move(say)) {}

  grpc::Status GetInfo(grpc::ServerContext*, const ::pluginregistration::InfoRequest*,
                       ::pluginregistration::PluginInfo* info) override {
    info->set_type("DRAPlugin");
    info->set_name(kDriverName);
    info->set_endpoint(endpoint_);
    info->add_supported_versions("v1.DRAPlugin");
    info->add_supported_versions("v1beta1.DRAPlugin");
    return grpc::Status::OK;
  }

  grpc::Status NotifyRegistrationStatus(
      grpc::ServerContext*, const ::pluginregistration::RegistrationStatus* status,
      ::pluginregistration::RegistrationStatusResponse*) override {
    say_(status->plugin_registered()
             ? "the kubelet has registered the driver"
             : absl::StrCat("the kubelet does not register the driver: ", status->error()));
    return grpc::Status::OK;
  }

 private:
  const std::string endpoint_;
  const std::function<void(absl::string_view)> say_;
};

absl::StatusOr<std::unique_ptr<grpc::Server>> Serve(const std::string& socket,
                                                    const std::vector<grpc::Service*>& services) {
  if (socket.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(socket, " is too long for a socket"));
  }
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMostThreads);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMostMessage);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  // Replaces the socket that a killed driver has left.
  builder.AddListeningPort(absl::StrCat("unix:", socket), grpc::InsecureServerCredentials());
  for (grpc::Service* const service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat("the socket ", socket, " cannot be made"));
  }
  return server;
}

}  // namespace

std::string KubeletServer::RegistrationSocketOf(const KubeletServerOptions& options) {
  return absl::StrCat(options.registry, "/", kDriverName, "-reg.sock");
}

absl::StatusOr<std::unique_ptr<KubeletServer>> KubeletServer::Start(
    const KubeletServerOptions& options, Driver* driver,
    std::function<void(absl::string_view)> say) {
  // Only root may enter, so only root may ask.
  if (mkdir(options.folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, options.folder);
  }
  std::unique_ptr<KubeletServer> server(new KubeletServer(&driver->health()));
  const std::string driver_socket = absl::StrCat(options.folder, "/dra.sock");
  server->v1_ = std::make_unique<PluginService<V1>>(driver, options.timeout, say);
  server->v1beta1_ = std::make_unique<PluginService<V1Beta1>>(driver, options.timeout, say);
  server->health_service_ = std::make_unique<HealthService>(&driver->health(), driver->node());
  server->registration_ = std::make_unique<RegistrationService>(driver_socket, std::move(say));
  // The kubelet calls the driver as soon as it sees the other socket.
  auto served = Serve(driver_socket,
                      {server->v1_.get(), server->v1beta1_.get(), server->health_service_.get()});
  if (!served.ok()) return served.status();
  server->driver_server_ = *std::move(served);
  auto registered = Serve(RegistrationSocketOf(options), {server->registration_.get()});
  if (!registered.ok()) return registered.status();
  server->registration_server_ = *std::move(registered);
  return server;
}

KubeletServer::~KubeletServer() {
  health_->Close();
  for (const auto* const server : {&registration_server_, &driver_server_}) {
    if (*server != nullptr) (*server)->Shutdown(absl::ToChronoTime(absl::Now()));
  }
}

}  // namespace gpumem::kubernetes
