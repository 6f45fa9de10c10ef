// SPDX-License-Identifier: Apache-2.0
// The plug-in's rounds: each makes gpumemd's tenants those of the node's pods.
//
// Nothing is stored. A round begins with what gpumemd and the kubelet say, and with the claims and
// slices that a view watches, so the plug-in may be killed at any moment. No tenant ends by what a
// watch says alone: the API server is asked before.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/kubernetes/api/api_server.h"
#include "client/kubernetes/api/cluster_view.h"
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

// Thread-safe: one round at a time.
class Plugin {
 public:
  // `view` is of the same driver and node, and outlives this object. `say` writes a line of the
  // log.
  Plugin(const PluginOptions& options, ClusterView* view,
         std::function<void(absl::string_view)> say);

  // Makes a round. Waits at most options.timeout for the API server.
  //   UNAVAILABLE, …       a peer does not answer: no tenant has ended; tenants of claims that are
  //                        known were made nevertheless
  //   FAILED_PRECONDITION  some steps have failed; they are tried again in later rounds
  absl::Status Round();

  // True if the kubelet has other pods with claims than in the last round. It prepares a claim's
  // devices before it starts the pod, so a round now makes the tenant in time. False if it does not
  // answer.
  bool PodsHaveChanged() const;

  // Waits until a claim or slice has changed since the last round began. True if one has.
  bool WaitForChange(absl::Time until) const;

 private:
  // Adds to `desired->kept` those of the present tenants that would end although the API server
  // still reserves a claim for their pods: a watch may lag behind. May replace `desired` by what it
  // lists.
  //   others than OK  as of ApiServer: it is not known which tenants may end
  absl::Status ConfirmEnds(const std::vector<PresentTenant>& present, const SliceList& slices,
                           Desired* desired) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Carry(const std::vector<Step>& steps) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PluginOptions options_;
  mutable absl::Mutex mutex_;
  Log log_ ABSL_GUARDED_BY(mutex_);
  ClusterView* const view_;
  ApiServer api_server_ ABSL_GUARDED_BY(mutex_);
  Node daemon_ ABSL_GUARDED_BY(mutex_);
  StepRunner steps_ ABSL_GUARDED_BY(mutex_){&daemon_, &log_};
  uint64_t seen_ ABSL_GUARDED_BY(mutex_) = 0;  // changes of the view, when the last round began
  std::map<std::string, Origin> origins_ ABSL_GUARDED_BY(mutex_);  // of our tenants
  std::vector<KubeletPod> running_ ABSL_GUARDED_BY(mutex_);        // as of the last round
};

}  // namespace gpumem::kubernetes
