// SPDX-License-Identifier: Apache-2.0
// Prepares claims of the driver gpumem.dev on this node: their pods' tenants, and their CDI files.
//
// Nothing else is stored: a request of the kubelet is answered from what gpumemd and the API server
// say, so the driver may be killed at any moment. The claims that it names are read at that moment;
// other claims of their pods are those of a watch. Tenants end in the plug-in's rounds (plugin.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/kubernetes/api/api_server.h"
#include "client/kubernetes/api/cluster_view.h"
#include "client/kubernetes/dra/cdi.h"
#include "client/kubernetes/dra/health.h"
#include "client/kubernetes/dra/prepare.h"
#include "client/kubernetes/dra/slices.h"
#include "client/kubernetes/node.h"

namespace gpumem::kubernetes {

inline constexpr size_t kMostNamed = 256;  // claims of one request

struct DriverOptions {
  std::string node;  // as Kubernetes calls it
  std::string cdi_folder = kCdiFolder;
  std::string gpu_kind = "nvidia.com/gpu";  // of the GPUs' CDI devices; empty: none
  ApiServerOptions api_server;
  NodeOptions daemon;
  absl::Duration free_pause = absl::Minutes(1);
};

class Driver {
 public:
  // `view` is of this driver and node, and outlives this object. `round` makes a round of the
  // plug-in, in which tenants of pods that are gone end; calls are from several threads.
  Driver(DriverOptions options, ClusterView* view, std::function<absl::Status()> round);

  // Makes or updates the tenants of the claims' pods, writes the claims' CDI files and returns
  // their devices, by the claims' uids. Idempotent. Statuses as Prepare (prepare.h), and
  //   UNAVAILABLE, …       gpumemd or the API server does not answer: the whole call fails
  //   RESOURCE_EXHAUSTED   there are more than kMostNamed claims: the whole call fails
  //   FAILED_PRECONDITION  the claim was made anew: its uid is another one; a guarantee does not
  //                        fit yet; a former tenant of the name holds memory
  //   DEADLINE_EXCEEDED    earlier calls took the time until `deadline`
  using Devices = std::map<std::string, absl::StatusOr<std::vector<PreparedDevice>>>;
  absl::StatusOr<Devices> PrepareClaims(absl::Span<const ClaimName> named, absl::Time deadline);

  // Removes the claims' CDI files. Idempotent. Statuses by the claims' uids.
  //   INVALID_ARGUMENT    the uid is no UUID
  //   RESOURCE_EXHAUSTED  there are more than kMostNamed claims: the whole call fails
  absl::StatusOr<std::map<std::string, absl::Status>> UnprepareClaims(
      absl::Span<const ClaimName> named);

  // Removes CDI files of claims that the API server does not have any more. The kubelet unprepares
  // each claim, unless it has lost its checkpoints. Looks once in 10 minutes.
  //   UNAVAILABLE, …  the API server does not answer
  absl::Status RemoveStaleFiles();

  // Publishes this node's slice, unless it is published already: the view and the last call say so,
  // and every 10 minutes the API server is asked. The attribute `free` alone is written at most
  // once in options.free_pause.
  //   UNAVAILABLE, …  gpumemd or the API server does not answer
  //   ABORTED         it was changed meanwhile; call again
  absl::Status Publish(absl::Time deadline);

  // The health of the node's GPUs, as of the last Publish().
  HealthFeed& health() { return health_; }
  const std::string& node() const { return options_.node; }

 private:
  absl::StatusOr<std::map<DeviceName, Gpu>> Gpus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Carries out the steps to these tenants. Returns the errors of those that have failed.
  absl::StatusOr<std::map<std::string, absl::Status>> MakeTenants(
      const std::map<std::string, TenantQuota>& tenants) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct Attempt {
    std::map<std::string, absl::StatusOr<Prepared>> prepared;  // by the claims' uids
    std::map<std::string, absl::Status> failed;                // by tenant
  };
  // Makes the tenants of the claims' pods. Statuses as PrepareClaims.
  absl::StatusOr<Attempt> Try(absl::Span<const ClaimName> named, absl::Time deadline);

  // Returns the named claims as the API server has them now, and others of their pods as the view
  // has them. A claim that cannot be used is missing; `errors` says why, by its uid.
  absl::StatusOr<std::vector<Claim>> ClaimsFor(absl::Span<const ClaimName> named,
                                               absl::Time deadline,
                                               std::map<std::string, absl::Status>* errors);

  const DriverOptions options_;
  const CdiFolder cdi_;  // changed with files_mutex_
  ClusterView* const view_;
  const std::function<absl::Status()> round_;
  HealthFeed health_;
  ApiServer api_server_;
  absl::Mutex mutex_;  // one request makes tenants at a time
  Node daemon_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex publish_mutex_;
  Node publisher_daemon_ ABSL_GUARDED_BY(publish_mutex_);
  // Of the last call of Publish that has succeeded.
  NodeDevices published_ ABSL_GUARDED_BY(publish_mutex_);
  uint64_t seen_slices_ ABSL_GUARDED_BY(publish_mutex_) = 0;  // changes of the view's slices
  absl::Time look_again_ ABSL_GUARDED_BY(publish_mutex_) = absl::InfinitePast();  // for stale files
  absl::Time ask_again_ ABSL_GUARDED_BY(publish_mutex_) = absl::InfinitePast();
  absl::Time free_again_ ABSL_GUARDED_BY(publish_mutex_);  // when `free` may be written
  // No call waits for a peer with it: claims are unprepared in any case.
  absl::Mutex files_mutex_ ABSL_ACQUIRED_AFTER(publish_mutex_);
};

}  // namespace gpumem::kubernetes
