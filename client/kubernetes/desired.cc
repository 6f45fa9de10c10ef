// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/desired.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kubernetes/names.h"

namespace gpumem::kubernetes {
namespace {

constexpr char kPrefix[] = "pod-";
constexpr size_t kMostProblems = 64;

struct Resolved {
  TenantQuota quota;
  bool here = false;    // a device of it is one of this node
  std::string problem;  // why not all devices are known
};

// Finds the claim's devices among those of this node.
Resolved Resolve(const Claim& claim, const std::map<DeviceName, Gpu>& gpus) {
  Resolved resolved;
  resolved.problem = claim.problem;
  const auto find = [&](const DeviceName& device) -> const Gpu* {
    const auto gpu = gpus.find(device);
    if (gpu != gpus.end()) {
      resolved.here = true;
      return &gpu->second;
    }
    if (resolved.problem.empty()) {
      resolved.problem = absl::StrCat("no slice of this node has the device ", device.second,
                                      " of pool ", device.first);
    }
    return nullptr;
  };
  for (const auto& [device, bytes] : claim.shares) {
    const Gpu* const gpu = find(device);
    if (gpu == nullptr) continue;
    const uint64_t part = bytes / std::max<size_t>(claim.consumers.size(), 1);
    resolved.quota.limits[gpu->uuid] += part;
    resolved.quota.guarantees[gpu->uuid] += part;
  }
  for (const DeviceName& device : claim.whole) {
    const Gpu* const gpu = find(device);
    if (gpu != nullptr) resolved.quota.limits[gpu->uuid] += gpu->bytes;
  }
  return resolved;
}

void Add(const BytesByUuid& from, BytesByUuid* to) {
  for (const auto& [uuid, bytes] : from) (*to)[uuid] += bytes;
}

}  // namespace

std::string TenantOf(absl::string_view pod_uid) {
  return IsUid(pod_uid) ? absl::StrCat(kPrefix, pod_uid) : "";
}

bool IsReservedFor(const Claim& claim, absl::string_view tenant) {
  return std::any_of(claim.consumers.begin(), claim.consumers.end(),
                     [&](const Consumer& pod) { return TenantOf(pod.uid) == tenant; });
}

Desired DesiredTenants(absl::Span<const Claim> claims, const std::map<DeviceName, Gpu>& gpus) {
  Desired desired;
  const auto add_problem = [&](std::string problem) {
    if (desired.problems.size() < kMostProblems) desired.problems.push_back(std::move(problem));
  };
  std::set<std::string> here;
  for (const Claim& claim : claims) {
    const Resolved resolved = Resolve(claim, gpus);
    // Most claims with unknown devices are those of other nodes.
    if (!resolved.problem.empty() && (resolved.here || !claim.problem.empty())) {
      add_problem(
          absl::StrCat("claim ", claim.name_space, "/", claim.name, ": ", resolved.problem));
    }
    for (const Consumer& pod : claim.consumers) {
      const std::string tenant = TenantOf(pod.uid);
      if (tenant.empty()) {
        add_problem(absl::StrCat("pod ", claim.name_space, "/", pod.name, ": its uid is no UUID"));
        continue;
      }
      Origin& origin = desired.origins[tenant];
      origin.name_space = claim.name_space;
      origin.pod = pod.name;
      origin.claims.insert(claim.name);
      if (!resolved.problem.empty()) desired.kept.insert(tenant);
      if (resolved.here) here.insert(tenant);
      TenantQuota& quota = desired.tenants[tenant];
      Add(resolved.quota.limits, &quota.limits);
      Add(resolved.quota.guarantees, &quota.guarantees);
    }
  }
  for (auto tenant = desired.tenants.begin(); tenant != desired.tenants.end();) {
    const bool kept = desired.kept.contains(tenant->first);
    const bool has_share = !tenant->second.guarantees.empty();
    if (!kept && !has_share) desired.origins.erase(tenant->first);
    tenant = kept || !has_share ? desired.tenants.erase(tenant) : std::next(tenant);
  }
  return desired;
}

void KeepRunning(const std::map<std::string, Origin>& known,
                 absl::Span<const KubeletPod> kubelet_pods, Desired* desired) {
  using Use = std::tuple<std::string, std::string, std::string>;  // namespace, pod, claim
  std::set<Use> running;
  for (const KubeletPod& pod : kubelet_pods) {
    for (const std::string& claim : pod.claims) running.emplace(pod.name_space, pod.name, claim);
  }
  for (const auto& [tenant, origin] : desired->origins) {
    for (const std::string& claim : origin.claims) {
      running.erase(Use(origin.name_space, origin.pod, claim));
    }
  }
  for (const auto& [tenant, origin] : known) {
    if (desired->origins.contains(tenant)) continue;
    const bool runs = std::any_of(origin.claims.begin(), origin.claims.end(),
                                  [&, &from = origin](const std::string& claim) {
                                    return running.contains(Use(from.name_space, from.pod, claim));
                                  });
    if (!runs) continue;
    desired->kept.insert(tenant);
    desired->origins[tenant] = origin;
  }
}

}  // namespace gpumem::kubernetes
