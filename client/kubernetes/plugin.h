// SPDX-License-Identifier: Apache-2.0
// The plug-in's rounds: each makes gpumemd's tenants those of the node's pods.
//
// Nothing is stored. A round begins with what gpumemd, the API server and the kubelet say, so the
// plug-in may be killed at any moment.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/kubernetes/api_server.h"
#include "client/kubernetes/desired.h"
#include "client/kubernetes/log.h"
#include "client/kubernetes/node.h"
#include "client/kubernetes/reconcile.h"
#include "client/kubernetes/step_runner.h"

namespace gpumem::kubernetes {

struct PluginOptions {
  std::string node;                            // as Kubernetes calls it
  std::string driver;                          // of the GPUs
  std::string kubelet_socket;                  // empty: the kubelet is not asked
  absl::Duration timeout = absl::Seconds(30);  // of each call
  ApiServerOptions api_server;
  NodeOptions daemon;
};

class Plugin {
 public:
  // `say` writes a line of the log.
  Plugin(const PluginOptions& options, std::function<void(absl::string_view)> say);

  // Makes a round.
  //   UNAVAILABLE, …       a peer does not answer: all tenants are as they were, or some are
  //   FAILED_PRECONDITION  some steps have failed; they are tried again in later rounds
  absl::Status Round();

  // True if the kubelet has other pods with claims than in the last round. It prepares a claim's
  // devices before it starts the pod, so a round now makes the tenant in time. False if it does not
  // answer.
  bool PodsHaveChanged() const;

 private:
  absl::Status Carry(const std::vector<Step>& steps);

  const PluginOptions options_;
  Log log_;
  ApiServer api_server_;
  Node daemon_;
  StepRunner steps_{&daemon_, &log_};
  std::map<std::string, Origin> origins_;  // of our tenants
  std::vector<KubeletPod> running_;        // as of the last round
};

}  // namespace gpumem::kubernetes
