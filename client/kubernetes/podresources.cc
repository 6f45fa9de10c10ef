// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/podresources.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/kubernetes/kubelet_channel.h"
#include "client/kubernetes/podresources.grpc.pb.h"
#include "common/grpc_status.h"

namespace gpumem::kubernetes {
namespace {

constexpr int kMostAnswer = 16 << 20;  // bytes; the kubelet's own limit

absl::StatusOr<::v1::ListPodResourcesResponse> List(const std::string& socket,
                                                    absl::Duration timeout) {
  const auto stub = ::v1::PodResourcesLister::NewStub(ConnectKubelet(socket, kMostAnswer));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  ::v1::ListPodResourcesResponse response;
  const absl::Status listed =
      FromGrpcStatus(stub->List(&context, ::v1::ListPodResourcesRequest(), &response));
  if (!listed.ok()) return listed;
  return response;
}

}  // namespace

absl::StatusOr<std::vector<KubeletPod>> ListKubeletPods(const std::string& socket,
                                                        absl::string_view driver,
                                                        absl::Duration timeout) {
  const auto listed = List(socket, timeout);
  if (!listed.ok()) return listed.status();
  std::vector<KubeletPod> pods;
  for (const ::v1::PodResources& entry : listed->pod_resources()) {
    KubeletPod pod{.name_space = entry.namespace_(), .name = entry.name()};
    for (const ::v1::ContainerResources& container : entry.containers()) {
      for (const ::v1::DynamicResource& claim : container.dynamic_resources()) {
        const auto& resources = claim.claim_resources();
        const bool ours = std::any_of(
            resources.begin(), resources.end(),
            [&](const ::v1::ClaimResource& resource) { return resource.driver_name() == driver; });
        if (ours && claim.claim_namespace() == pod.name_space)
          pod.claims.insert(claim.claim_name());
      }
    }
    if (!pod.claims.empty()) pods.push_back(std::move(pod));
  }
  std::sort(pods.begin(), pods.end(), [](const KubeletPod& a, const KubeletPod& b) {
    return std::tie(a.name_space, a.name, a.claims) < std::tie(b.name_space, b.name, b.claims);
  });
  return pods;
}

absl::StatusOr<std::vector<std::string>> ListPodNames(const std::string& socket,
                                                      absl::Duration timeout) {
  const auto listed = List(socket, timeout);
  if (!listed.ok()) return listed.status();
  std::vector<std::string> names;
  for (const ::v1::PodResources& pod : listed->pod_resources()) {
    names.push_back(absl::StrCat(pod.namespace_(), "/", pod.name()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<DevicePod>> ListDevicePods(
    const std::string& socket, const std::function<bool(absl::string_view)>& ours,
    absl::Duration timeout) {
  const auto listed = List(socket, timeout);
  if (!listed.ok()) return listed.status();
  std::vector<DevicePod> pods;
  for (const ::v1::PodResources& entry : listed->pod_resources()) {
    DevicePod pod{.name_space = entry.namespace_(), .name = entry.name()};
    for (const ::v1::ContainerResources& container : entry.containers()) {
      for (const ::v1::ContainerDevices& devices : container.devices()) {
        if (!ours(devices.resource_name())) continue;
        pod.ids.insert(devices.device_ids().begin(), devices.device_ids().end());
      }
    }
    if (!pod.ids.empty()) pods.push_back(std::move(pod));
  }
  std::sort(pods.begin(), pods.end(), [](const DevicePod& a, const DevicePod& b) {
    return std::tie(a.name_space, a.name, a.ids) < std::tie(b.name_space, b.name, b.ids);
  });
  return pods;
}

}  // namespace gpumem::kubernetes
