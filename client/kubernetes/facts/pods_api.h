// SPDX-License-Identifier: Apache-2.0
// The pods of this node, as the kubelet knows them (Pods API, v1alpha1).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/kubernetes/api/pods.h"

namespace gpumem::kubernetes {

inline constexpr char kPodsSocket[] = "/var/lib/kubelet/pods-api/pods-api.sock";

// Returns the kubelet's pods, static ones included, ordered by uid. Reads them one by one from the
// beginning of a watch: users make pods of 1 MiB and more, and a list would have them in one
// message. Connects anew, as ListKubeletPods.
//   UNAVAILABLE          no kubelet serves the socket
//   UNIMPLEMENTED        its feature PodInfoAPI is off, or it is older than 1.37
//   DEADLINE_EXCEEDED    it does not send all pods in time
//   RESOURCE_EXHAUSTED   it has too many pods, or a pod is too large
//   others of the kubelet
absl::StatusOr<PodList> ListPodsOfKubelet(const std::string& socket, absl::Duration timeout);

}  // namespace gpumem::kubernetes
