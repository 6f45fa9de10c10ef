// SPDX-License-Identifier: Apache-2.0
// gpumemd of this node, as the plug-in calls it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/commands/connection.h"
#include "client/kubernetes/reconcile.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "proto/gpumem/v1/tenant.pb.h"

namespace gpumem::kubernetes {

struct NodeOptions {
  std::string runtime_dir;
  std::string owner;   // the mark of our tenants (OwnerOf)
  std::string parent;  // of tenants that are made; empty: that of [tenant_defaults]
  absl::Duration timeout = absl::Seconds(30);  // of each call
};

class Node {
 public:
  explicit Node(NodeOptions options) : options_(std::move(options)) {}

  //   UNAVAILABLE, DEADLINE_EXCEEDED  no daemon answers in time
  //   PERMISSION_DENIED               this user may not use it
  absl::StatusOr<v1::ListTenantsResponse> Tenants();
  // Statuses as Tenants.
  absl::StatusOr<v1::GetStatusResponse> Status();

  // Returns the lists of pods that the daemon was told of, without their facts. Statuses as
  // Tenants,
  //   UNIMPLEMENTED  the daemon is older
  absl::StatusOr<v1::ListPodsResponse> Pods();
  // Tells it of the node's pods. Statuses as Pods, and of the daemon.
  absl::Status SetPods(const v1::SetPodsRequest& request);

  // Carries out a step. It may be done already.
  //   FAILED_PRECONDITION  guarantees could not be kept; or the tenant has ended, and what it holds
  //   is
  //                        not back
  //   NOT_FOUND            gpumemd has no such GPU, or no such parent
  //   ALREADY_EXISTS       the name is another tenant's
  //   others as Tenants, and of the daemon
  absl::Status Carry(const Step& step);

 private:
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                        const Request&, Response*),
                                const Request& request);

  const NodeOptions options_;
  std::unique_ptr<cli::AdminConnection> admin_;
};

// True if no step can succeed before the daemon answers again.
bool IsAway(const absl::Status& status);

}  // namespace gpumem::kubernetes
