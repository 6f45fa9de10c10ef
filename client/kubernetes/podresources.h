// SPDX-License-Identifier: Apache-2.0
// The pods of this node with their claims or devices, as the kubelet lists them (podresources v1).
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/kubernetes/desired.h"

namespace gpumem::kubernetes {

inline constexpr char kKubeletSocket[] = "/var/lib/kubelet/pod-resources/kubelet.sock";

// Returns the pods that have devices of `driver` prepared, in order. Connects anew: the kubelet may
// have been restarted, and then has another socket of that name.
//   UNAVAILABLE         no kubelet serves the socket
//   DEADLINE_EXCEEDED   it does not answer in time
//   RESOURCE_EXHAUSTED  its answer is too large
//   others of the kubelet
absl::StatusOr<std::vector<KubeletPod>> ListKubeletPods(const std::string& socket,
                                                        absl::string_view driver,
                                                        absl::Duration timeout);

// Returns "NAMESPACE/NAME" of all pods, in order. Connects anew. Statuses as ListKubeletPods.
absl::StatusOr<std::vector<std::string>> ListPodNames(const std::string& socket,
                                                      absl::Duration timeout);

// A pod with devices of a device plug-in.
struct DevicePod {
  std::string name_space;
  std::string name;
  std::set<std::string> ids;  // of its containers. Those of init containers that end do not count
  bool operator==(const DevicePod&) const = default;
};

// Returns the pods that have devices of the resources for which `ours` returns true, in order.
// Connects anew. The kubelet has freed the devices of pods that have ended. Statuses as
// ListKubeletPods.
absl::StatusOr<std::vector<DevicePod>> ListDevicePods(
    const std::string& socket, const std::function<bool(absl::string_view)>& ours,
    absl::Duration timeout);

}  // namespace gpumem::kubernetes
