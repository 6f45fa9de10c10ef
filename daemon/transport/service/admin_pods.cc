// SPDX-License-Identifier: Apache-2.0
// The calls of gpumem.v1.Admin about Kubernetes' pods.
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/identity/pods.h"
#include "daemon/transport/peer/who_am_i.h"
#include "daemon/transport/service/admin_service.h"
#include "daemon/transport/service/unary_call.h"
#include "spdlog/spdlog.h"

namespace gpumemd {

namespace v1 = gpumem::v1;

grpc::Status AdminService::SetPods(grpc::ServerContext*, const v1::SetPodsRequest* request,
                                   v1::SetPodsResponse*) {
  std::vector<PodFacts> pods;
  pods.reserve(static_cast<size_t>(request->pods_size()));
  for (const v1::PodFacts& pod : request->pods()) {
    pods.push_back({.uid = pod.uid(),
                    .name_space = pod.namespace_(),
                    .name = pod.name(),
                    .service_account = pod.service_account(),
                    .claims = {pod.claims().begin(), pod.claims().end()}});
    for (const v1::PodLabel& label : pod.labels()) {
      if (pods.back().labels.emplace(label.key(), label.value()).second) continue;
      return ToAnswer(absl::InvalidArgumentError("a pod has two labels of one key"));
    }
  }
  const absl::Status set = hooks_.pods->Set(request->owner(), request->revision(), std::move(pods));
  if (!set.ok()) return ToAnswer(set);
  spdlog::debug("{} has described {} pods", request->owner(), request->pods_size());
  return grpc::Status::OK;
}

grpc::Status AdminService::ListPods(grpc::ServerContext*, const v1::ListPodsRequest* request,
                                    v1::ListPodsResponse* response) {
  for (const PodBook::List& list : hooks_.pods->lists()) {
    v1::PodFactsList& added = *response->add_lists();
    added.set_owner(list.owner);
    added.set_revision(list.revision);
    added.set_pod_count(static_cast<uint32_t>(list.pods.size()));
    if (!request->facts()) continue;
    for (const auto& pod : list.pods) *added.add_pods() = ToProto(*pod);
  }
  return grpc::Status::OK;
}

}  // namespace gpumemd
