// SPDX-License-Identifier: Apache-2.0
// Tells gpumemd of this node's pods, for rules that ask for their facts (Admin.SetPods).
//
// Nothing is stored. gpumemd says which list it has, so this may be killed at any moment, and so
// may gpumemd.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/kubernetes/api/api_server.h"
#include "client/kubernetes/api/pods.h"
#include "client/kubernetes/log.h"
#include "client/kubernetes/node.h"

namespace gpumem::kubernetes {

// From where the facts are.
enum class FactSource {
  kOff,      // gpumemd is not told
  kAuto,     // the kubelet; if it does not answer, the API server
  kKubelet,  // its Pods API
  kApiServer,
};

struct FactOptions {
  FactSource source = FactSource::kOff;
  std::string node;         // as Kubernetes calls it
  std::string pods_socket;  // of the kubelet's Pods API
  // The kubelet's pod-resources socket, where new pods are seen first; empty: not asked.
  std::string kubelet_socket;
  absl::Duration timeout = absl::Seconds(30);  // of each call
  ApiServerOptions api_server;
  NodeOptions daemon;
};

// Used by one thread at a time.
class FactTeller {
 public:
  // `say` writes a line of the log; from the thread that uses this.
  FactTeller(const FactOptions& options, std::function<void(absl::string_view)> say);

  // Tells gpumemd of the pods as they are now, unless it knows them. With kOff, ends the list of an
  // earlier run. After an error gpumemd has what it had.
  //   others than OK  as of the kubelet, the API server and gpumemd
  absl::Status Tell();

  // True if the kubelet has other pods than at the last Tell(), or if gpumemd has forgotten them.
  // False if they do not answer. Labels that change are not seen.
  bool HasChanged();

  // Tells again without end, after each change and after `pause` at the latest. With kOff, returns
  // once an earlier list has ended.
  void Run(absl::Duration pause);

 private:
  absl::StatusOr<PodList> Pods();
  absl::Status TellOnce();
  // True if the last revision of ours that gpumemd was told is this one; "": none.
  absl::StatusOr<bool> DaemonKnows(const std::string& revision);

  const FactOptions options_;
  Log log_;
  ApiServer api_server_;
  Node daemon_;
  std::vector<std::string> names_;  // of the kubelet's pods, as of the last Tell()
  // The revision that gpumemd should have by the last Tell(), "" for none; nullopt: it has failed.
  std::optional<std::string> told_;
};

}  // namespace gpumem::kubernetes
