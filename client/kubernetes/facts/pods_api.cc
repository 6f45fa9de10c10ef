// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/facts/pods_api.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "client/kubernetes/facts/pods_api.grpc.pb.h"
#include "client/kubernetes/kubelet_channel.h"
#include "common/grpc_status.h"

namespace gpumem::kubernetes {
namespace {

constexpr int kMostEvent = 8 << 20;  // bytes; the API server takes no pod of this size
constexpr size_t kMostProblems = 16;

// Returns the facts of a pod, and why it makes no sense, or "".
std::pair<Pod, std::string> ReadPod(const std::string& bytes) {
  ::v1alpha1::Pod proto;
  Pod pod;
  if (!proto.ParseFromString(bytes)) return {pod, "it is no pod"};
  const auto& status = proto.status();
  pod.uid = proto.metadata().uid();
  pod.name_space = proto.metadata().namespace_();
  pod.name = proto.metadata().name();
  pod.service_account = proto.spec().service_account_name();
  pod.phase = status.phase();
  pod.labels = {proto.metadata().labels().begin(), proto.metadata().labels().end()};
  const auto add_claim = [&](const std::string& name) {
    if (!name.empty()) pod.claims.insert(name);
  };
  for (const auto& claim : proto.spec().resource_claims()) add_claim(claim.resource_claim_name());
  for (const auto& claim : status.resource_claim_statuses()) {
    add_claim(claim.resource_claim_name());
  }
  add_claim(status.extended_resource_claim_status().resource_claim_name());
  std::string problem = ProblemOf(pod);
  return {std::move(pod), std::move(problem)};
}

}  // namespace

absl::StatusOr<PodList> ListPodsOfKubelet(const std::string& socket, absl::Duration timeout) {
  const auto stub = ::v1alpha1::Pods::NewStub(ConnectKubelet(socket, kMostEvent));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  const auto stream = stub->WatchPods(&context, ::v1alpha1::WatchPodsRequest());
  // Ends the watch. It has no other end.
  const auto end = [&](absl::Status status) {
    context.TryCancel();
    (void)stream->Finish();
    return status;
  };

  std::map<std::string, Pod> pods;  // by uid
  PodList list;
  size_t events = 0;
  ::v1alpha1::WatchPodsEvent event;
  while (stream->Read(&event)) {
    if (event.type() == ::v1alpha1::INITIAL_SYNC_COMPLETE) {
      (void)end(absl::OkStatus());
      for (auto& [uid, pod] : pods) list.pods.push_back(std::move(pod));
      return list;
    }
    if (event.type() == ::v1alpha1::UNSPECIFIED) {
      return end(
          absl::UnimplementedError("the kubelet's Pods API is that of a Kubernetes before 1.37"));
    }
    if (++events > 2 * kMostPods) {
      return end(absl::ResourceExhaustedError("the kubelet has too many pods"));
    }
    auto [pod, problem] = ReadPod(event.pod());
    if (event.type() == ::v1alpha1::DELETED) {
      pods.erase(pod.uid);
    } else if (problem.empty()) {
      std::string uid = pod.uid;
      pods[std::move(uid)] = std::move(pod);
    } else if (list.problems.size() < kMostProblems) {
      list.problems.push_back(DescribeProblem(pod, problem));
    }
  }
  absl::Status status = FromGrpcStatus(stream->Finish());
  if (status.ok()) status = absl::UnavailableError("the kubelet has ended its list of pods");
  return status;
}

}  // namespace gpumem::kubernetes
