// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/device_plugin/holders.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gpumem::kubernetes {
namespace {

constexpr size_t kMostProblems = 64;

// Adds up the bytes of a pod's units. `count`: how many pods list each unit.
absl::Status AddUnits(const std::set<std::string>& ids,
                      const std::map<absl::string_view, int>& count, const UnitList& units,
                      BytesByUuid* bytes) {
  for (const std::string& id : ids) {
    const auto unit = ParseId(id);
    if (!unit.ok()) return unit.status();
    const auto gpu = units.gpus.find(unit->uuid);
    if (gpu == units.gpus.end() || !gpu->second.healthy) {
      return absl::FailedPreconditionError(
          absl::StrCat("gpumemd has no GPU ", unit->uuid, " that it has units of"));
    }
    if (count.at(id) > 1) {
      return absl::FailedPreconditionError(absl::StrCat("another pod has the unit ", id, ", too"));
    }
    (*bytes)[unit->uuid] += unit->step;
  }
  return absl::OkStatus();
}

// Finds the pod that the kubelet means. UNAVAILABLE: it is not known yet.
absl::Status Identify(const PodName& name, const HolderFacts& facts, std::string* uid,
                      bool* read_again) {
  const auto before = facts.before->find(name), after = facts.after->find(name);
  if (after == facts.after->end()) {
    return absl::UnavailableError("the API server has no such pod of this node, or it is static");
  }
  if (!after->second.acknowledged) {
    return absl::UnavailableError("the API server does not know yet that the kubelet has the pod");
  }
  if (before == facts.before->end() || before->second.uid != after->second.uid ||
      !before->second.acknowledged) {
    *read_again = true;
    return absl::UnavailableError("it is not known yet which pod of that name has its units");
  }
  if (TenantOf(after->second.uid).empty()) {
    return absl::InvalidArgumentError("the API server's uid of the pod is no UUID");
  }
  *uid = after->second.uid;
  return absl::OkStatus();
}

}  // namespace

PodNames NamesOf(absl::Span<const Pod> pods) {
  PodNames names;
  for (const Pod& pod : pods) {
    if (pod.mirror) continue;
    names[{pod.name_space, pod.name}] = {
        .uid = pod.uid,
        .acknowledged = pod.acknowledged,
        .alive = pod.phase != "Succeeded" && pod.phase != "Failed"};
  }
  return names;
}

Holders HoldersOf(const HolderFacts& facts) {
  Holders holders;
  std::map<absl::string_view, int> count;
  std::map<PodName, int> entries;
  for (const DevicePod& pod : facts.listed) {
    ++entries[{pod.name_space, pod.name}];
    for (const std::string& id : pod.ids) ++count[id];
  }
  Desired& desired = holders.desired;
  std::set<PodName> unknown;  // names with units of a pod that is not known yet
  for (const DevicePod& pod : facts.listed) {
    Holder& holder = holders.pods.emplace_back();
    holder.name = {pod.name_space, pod.name};
    holder.ids = pod.ids;
    std::string uid;
    holder.status = Identify(holder.name, facts, &uid, &holders.read_again);
    if (holder.status.ok() && entries[holder.name] > 1) {
      holder.status = absl::UnavailableError("the kubelet lists two pods of that name");
    }
    if (!holder.status.ok()) {
      unknown.insert(holder.name);
    } else {
      holder.tenant = TenantOf(uid);
      desired.origins[holder.tenant] = {pod.name_space, pod.name, {}};
      BytesByUuid bytes;
      holder.status = AddUnits(pod.ids, count, *facts.units, &bytes);
      if (holder.status.ok()) desired.tenants[holder.tenant] = {bytes, bytes};
      if (!holder.status.ok()) desired.kept.insert(holder.tenant);
    }
    if (!holder.status.ok() && desired.problems.size() < kMostProblems) {
      desired.problems.push_back(
          absl::StrCat(pod.name_space, "/", pod.name, ": ", holder.status.message()));
    }
  }

  std::map<std::string, PodNames::const_iterator> named;
  for (auto pod = facts.after->begin(); pod != facts.after->end(); ++pod) {
    const std::string tenant = TenantOf(pod->second.uid);
    if (!tenant.empty()) named[tenant] = pod;
  }
  for (const std::string& tenant : facts.tenants) {
    if (desired.tenants.contains(tenant)) continue;
    const auto pod = named.find(tenant);
    const auto known = facts.known.find(tenant);
    const PodName* const name = pod != named.end()           ? &pod->second->first
                                : known != facts.known.end() ? &known->second
                                                             : nullptr;
    const bool alive = pod != named.end() && pod->second->second.alive;
    if (!alive && (name == nullptr || !unknown.contains(*name))) continue;
    desired.kept.insert(tenant);
    desired.origins[tenant] = {name->first, name->second, {}};
  }
  return holders;
}

std::vector<Holder> WithoutNames(absl::Span<const DevicePod> listed,
                                 absl::Span<const PresentTenant> present,
                                 const std::map<std::string, PodName>& known,
                                 const absl::Status& away) {
  std::set<PodName> with_tenant;
  bool unknown = false;  // a tenant of an unknown pod, since the plug-in was restarted meanwhile
  for (const PresentTenant& tenant : present) {
    if (tenant.ending) continue;  // its pod is gone, or gets nothing by it
    const auto name = known.find(tenant.name);
    if (name == known.end()) unknown = true;
    if (name != known.end()) with_tenant.insert(name->second);
  }
  std::vector<Holder> holders;
  for (const DevicePod& pod : listed) {
    Holder& holder = holders.emplace_back();
    holder.name = {pod.name_space, pod.name};
    holder.ids = pod.ids;
    if (!unknown && !with_tenant.contains(holder.name)) holder.status = away;
  }
  return holders;
}

const Holder* HolderOf(absl::Span<const Holder> pods, absl::Span<const std::string> ids) {
  for (const Holder& pod : pods) {
    const bool has = std::any_of(ids.begin(), ids.end(),
                                 [&](const std::string& id) { return pod.ids.contains(id); });
    if (has) return &pod;
  }
  return nullptr;
}

}  // namespace gpumem::kubernetes
