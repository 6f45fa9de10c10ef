// SPDX-License-Identifier: Apache-2.0
// The tenants that the pods of this node should have, by their claims. Pure.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/kubernetes/api/claims.h"

namespace gpumem::kubernetes {

using BytesByUuid = std::map<std::string, uint64_t>;

// What a tenant has of each GPU. It gets nothing of GPUs that are not named.
struct TenantQuota {
  BytesByUuid limits;
  BytesByUuid guarantees;
  bool operator==(const TenantQuota&) const = default;
};

// A pod that the kubelet has, with the claims whose devices are prepared for it.
struct KubeletPod {
  std::string name_space;
  std::string name;
  std::set<std::string> claims;  // by name, in the pod's namespace
  bool operator==(const KubeletPod&) const = default;
};

// What the pod of a tenant is called. The kubelet lists pods without their uid.
struct Origin {
  std::string name_space;
  std::string pod;
  std::set<std::string> claims;
};

struct Desired {
  std::map<std::string, TenantQuota> tenants;  // by name
  // Tenants that stay as they are if they exist: their pods have a claim, and not all of it is
  // known.
  std::set<std::string> kept;
  std::map<std::string, Origin> origins;  // of `tenants` and `kept`
  std::vector<std::string> problems;      // sentences, 64 at most
};

// Returns the name of a pod's tenant: that of the rule `tenant = "pod-{pod}"`. Empty if the uid is
// no UUID.
std::string TenantOf(absl::string_view pod_uid);

// True if the claim is reserved for the pod of this tenant.
bool IsReservedFor(const Claim& claim, absl::string_view tenant);

// Returns a tenant for each pod that has a share of a GPU. Limit and guarantee are the sum of the
// pod's shares there.
// - A claim that several pods use is divided among them equally.
// - A GPU that the pod has alone has its memory as limit, without a guarantee.
// - A pod without a share has no tenant.
// - Claims of other nodes have devices in pools that are not in `gpus`. So have those of this node
//   while the driver does not publish its slices: their tenants are kept.
Desired DesiredTenants(absl::Span<const Claim> claims, const std::map<DeviceName, Gpu>& gpus);

// Adds to `desired->kept` the tenants of pods that have no claim any more in the API server and
// that the kubelet has not stopped: of pods that were deleted by force. `known` are the origins of
// earlier rounds. If a later pod of that name has the claim, the kubelet's entry is taken to be
// that pod.
void KeepRunning(const std::map<std::string, Origin>& known,
                 absl::Span<const KubeletPod> kubelet_pods, Desired* desired);

}  // namespace gpumem::kubernetes
