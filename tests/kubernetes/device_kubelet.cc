// SPDX-License-Identifier: Apache-2.0
#include "tests/kubernetes/device_kubelet.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"

namespace gpumem::testing {
namespace {

namespace api = ::v1beta1;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kDial = absl::Seconds(10);

std::unique_ptr<api::DevicePlugin::Stub> Dial(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = grpc::CreateCustomChannel(absl::StrCat("unix:", socket),
                                                 grpc::InsecureChannelCredentials(), arguments);
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kDial))) return nullptr;
  return api::DevicePlugin::NewStub(channel);
}

std::unique_ptr<grpc::ClientContext> Within(absl::Duration timeout) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  return context;
}

}  // namespace

class DeviceKubelet::Registration final : public api::Registration::Service {
 public:
  explicit Registration(DeviceKubelet* kubelet) : kubelet_(kubelet) {}
  grpc::Status Register(grpc::ServerContext*, const api::RegisterRequest* request,
                        api::Empty*) override {
    return kubelet_->Register(*request);
  }

 private:
  DeviceKubelet* const kubelet_;
};

DeviceKubelet::DeviceKubelet(std::string folder, std::string pod_resources)
    : folder_(std::move(folder)), pod_resources_(std::move(pod_resources)) {
  std::filesystem::create_directories(folder_);
  Start();
}

DeviceKubelet::~DeviceKubelet() { Stop(); }

void DeviceKubelet::Start() {
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.is_socket()) std::filesystem::remove(entry.path());
  }
  lister_ = std::make_unique<kubernetes::FakeKubelet>(pod_resources_);
  ListPods();
  service_ = std::make_unique<Registration>(this);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("unix:", folder_, "/kubelet.sock"),
                           grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
}

void DeviceKubelet::Stop() {
  if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
  server_ = nullptr;
  lister_ = nullptr;
  std::vector<std::shared_ptr<Endpoint>> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended = std::move(ended_);
    ended_.clear();
    if (endpoint_ != nullptr) ended.push_back(std::move(endpoint_));
    endpoint_ = nullptr;
    healthy_.clear();
    unhealthy_.clear();
    resource_.clear();
  }
  for (const auto& endpoint : ended) End(endpoint);
}

void DeviceKubelet::End(const std::shared_ptr<Endpoint>& endpoint) {
  endpoint->stream.TryCancel();
  endpoint->reader.join();
}

grpc::Status DeviceKubelet::Register(const api::RegisterRequest& request) {
  if (request.version() != "v1beta1") return {grpc::StatusCode::INTERNAL, "another version"};
  auto endpoint = std::make_shared<Endpoint>();
  endpoint->stub = Dial(absl::StrCat(folder_, "/", request.endpoint()));
  if (endpoint->stub == nullptr) return {grpc::StatusCode::INTERNAL, "cannot dial the plug-in"};
  api::DevicePluginOptions options;
  const auto context = Within(kDial);
  grpc::Status asked = endpoint->stub->GetDevicePluginOptions(context.get(), {}, &options);
  if (!asked.ok()) return asked;
  if (!options.pre_start_required() || !options.get_preferred_allocation_available()) {
    return {grpc::StatusCode::INTERNAL, options.ShortDebugString()};
  }
  absl::MutexLock lock(&mutex_);
  if (endpoint_ != nullptr) ended_.push_back(endpoint_);
  endpoint_ = endpoint;
  resource_ = request.resource_name();
  ++registrations_;
  endpoint->reader = std::thread([this, to = endpoint.get()] { Follow(to); });
  return grpc::Status::OK;
}

void DeviceKubelet::Follow(Endpoint* endpoint) {
  const auto stream = endpoint->stub->ListAndWatch(&endpoint->stream, {});
  api::ListAndWatchResponse list;
  while (stream->Read(&list)) {
    absl::MutexLock lock(&mutex_);
    if (endpoint_.get() != endpoint) continue;
    healthy_.clear();
    unhealthy_.clear();
    for (const api::Device& device : list.devices()) {
      (device.health() == "Healthy" ? healthy_ : unhealthy_).insert(device.id());
    }
  }
  (void)stream->Finish();
  absl::MutexLock lock(&mutex_);
  if (endpoint_.get() != endpoint) return;
  ended_.push_back(std::move(endpoint_));
  endpoint_ = nullptr;
  resource_.clear();
  unhealthy_.merge(healthy_);
  healthy_.clear();
}

void DeviceKubelet::EndList() {
  absl::MutexLock lock(&mutex_);
  if (endpoint_ != nullptr) endpoint_->stream.TryCancel();
}

std::string DeviceKubelet::resource() const {
  absl::MutexLock lock(&mutex_);
  return resource_;
}
int DeviceKubelet::registrations() const {
  absl::MutexLock lock(&mutex_);
  return registrations_;
}
size_t DeviceKubelet::healthy() const {
  absl::MutexLock lock(&mutex_);
  return healthy_.size();
}
size_t DeviceKubelet::unhealthy() const {
  absl::MutexLock lock(&mutex_);
  return unhealthy_.size();
}
size_t DeviceKubelet::free() const {
  absl::MutexLock lock(&mutex_);
  size_t used = 0;
  for (const auto& [uid, pod] : pods_) used += pod.ids.size();
  return healthy_.size() - std::min(used, healthy_.size());
}
std::map<std::string, KubeletPodEntry> DeviceKubelet::pods() const {
  absl::MutexLock lock(&mutex_);
  return pods_;
}

absl::StatusOr<std::shared_ptr<DeviceKubelet::Endpoint>> DeviceKubelet::Connected() const {
  absl::MutexLock lock(&mutex_);
  if (endpoint_ == nullptr) return absl::UnavailableError("no plug-in is registered");
  return endpoint_;
}

absl::StatusOr<api::ContainerAllocateResponse> DeviceKubelet::Admit(const std::string& uid,
                                                                    const std::string& name_space,
                                                                    const std::string& name,
                                                                    int units) {
  std::set<std::string> available;
  {
    absl::MutexLock lock(&mutex_);
    available = healthy_;
    for (const auto& [other, pod] : pods_) {
      for (const std::string& id : pod.ids) available.erase(id);
    }
  }
  if (available.size() < static_cast<size_t>(units)) {
    return absl::ResourceExhaustedError("the requested number of devices is unavailable");
  }
  api::PreferredAllocationRequest wish;
  auto* const container = wish.add_container_requests();
  for (const std::string& id : available) container->add_available_deviceids(id);
  container->set_allocation_size(units);
  const auto preferred = Prefer(wish);
  if (!preferred.ok()) return preferred.status();
  std::set<std::string> chosen;
  for (const std::string& id : preferred->container_responses(0).deviceids()) {
    if (available.contains(id)) chosen.insert(id);
  }
  if (chosen.size() != static_cast<size_t>(units)) {
    return absl::InternalError(absl::StrCat("it prefers ", chosen.size(), " of ", units, " units"));
  }
  api::AllocateRequest request;
  auto* const ids = request.add_container_requests();
  for (const std::string& id : chosen) ids->add_devices_ids(id);
  const auto allocated = Allocate(request);
  if (!allocated.ok()) return allocated.status();
  if (allocated->container_responses_size() != 1) return absl::InternalError("not one answer");
  {
    absl::MutexLock lock(&mutex_);
    pods_[uid] = {name_space, name, chosen};
  }
  ListPods();
  return allocated->container_responses(0);
}

absl::Status DeviceKubelet::StartContainer(const std::string& uid, absl::Duration timeout) {
  const auto pod = pods().at(uid);
  return PreStart({pod.ids.begin(), pod.ids.end()}, timeout);
}

void DeviceKubelet::Forget(const std::string& uid) {
  {
    absl::MutexLock lock(&mutex_);
    pods_.erase(uid);
  }
  ListPods();
}

void DeviceKubelet::ListPods() {
  if (lister_ == nullptr) return;
  ::v1::ListPodResourcesResponse answer;
  for (const auto& [uid, pod] : pods()) {
    ::v1::PodResources* const entry = answer.add_pod_resources();
    entry->set_name(pod.name);
    entry->set_namespace_(pod.name_space);
    ::v1::ContainerResources* const container = entry->add_containers();
    container->set_name("worker");
    for (const std::string& id : pod.ids) {
      ::v1::ContainerDevices* const devices = container->add_devices();
      devices->set_resource_name("gpumem.dev/memory-16MiB");
      devices->add_device_ids(id);
    }
  }
  answer.add_pod_resources()->set_name("without-units");
  lister_->Set(std::move(answer));
}

absl::StatusOr<api::AllocateResponse> DeviceKubelet::Allocate(const api::AllocateRequest& request) {
  const auto endpoint = Connected();
  if (!endpoint.ok()) return endpoint.status();
  api::AllocateResponse response;
  const auto context = Within(kTimeout);
  absl::Status called =
      FromGrpcStatus((*endpoint)->stub->Allocate(context.get(), request, &response));
  if (!called.ok()) return called;
  return response;
}

absl::StatusOr<api::PreferredAllocationResponse> DeviceKubelet::Prefer(
    const api::PreferredAllocationRequest& request) {
  const auto endpoint = Connected();
  if (!endpoint.ok()) return endpoint.status();
  api::PreferredAllocationResponse response;
  const auto context = Within(kTimeout);
  absl::Status called =
      FromGrpcStatus((*endpoint)->stub->GetPreferredAllocation(context.get(), request, &response));
  if (!called.ok()) return called;
  return response;
}

absl::Status DeviceKubelet::PreStart(const std::vector<std::string>& ids, absl::Duration timeout) {
  const auto endpoint = Connected();
  if (!endpoint.ok()) return endpoint.status();
  api::PreStartContainerRequest request;
  for (const std::string& id : ids) request.add_devices_ids(id);
  api::PreStartContainerResponse response;
  const auto context = Within(timeout);
  return FromGrpcStatus((*endpoint)->stub->PreStartContainer(context.get(), request, &response));
}

}  // namespace gpumem::testing
