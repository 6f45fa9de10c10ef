// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/free.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "client/kubernetes/api/cache.h"
#include "client/kubernetes/api/json_reader.h"

namespace gpumem::kubernetes {
namespace {

constexpr uint64_t kNotable = uint64_t{1} << 30;
constexpr uint64_t kNotablePart = 64;  // of a device

uint64_t Sum(uint64_t a, uint64_t b) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  return a > most - b ? most : a + b;
}

struct Tenant {
  std::string parent;
  std::map<std::string, uint64_t> guarantees;  // by UUID
};

// What the tenants without a parent need of a device.
class Needs {
 public:
  explicit Needs(const v1::ListTenantsResponse& tenants) {
    for (const v1::TenantInfo& info : tenants.tenants()) {
      Tenant& member = members_[info.usage().tenant()];
      member.parent = info.has_made() ? info.made().parent() : info.quota().parent();
      for (const v1::DeviceUsage& device : info.usage().devices()) {
        member.guarantees[device.device_uuid()] = device.guarantee_bytes();
      }
    }
    for (const auto& [name, member] : members_) children_[member.parent].push_back(name);
  }

  uint64_t On(const std::string& uuid) const {
    uint64_t sum = 0;
    for (const auto& [name, member] : members_) {
      std::set<std::string> seen;
      if (!members_.contains(member.parent)) sum = Sum(sum, Of(name, uuid, &seen));
    }
    return sum;
  }

 private:
  // `seen` ends circles, which gpumemd has not.
  uint64_t Of(const std::string& name, const std::string& uuid, std::set<std::string>* seen) const {
    if (!seen->insert(name).second) return 0;
    uint64_t below = 0;
    const auto children = children_.find(name);
    if (children != children_.end()) {
      for (const std::string& child : children->second) below = Sum(below, Of(child, uuid, seen));
    }
    const Tenant& member = members_.at(name);
    const auto own = member.guarantees.find(uuid);
    return std::max(below, own == member.guarantees.end() ? 0 : own->second);
  }

  std::map<std::string, Tenant> members_;
  std::map<std::string, std::vector<std::string>> children_;
};

}  // namespace

void SetFree(const v1::ListTenantsResponse& tenants, NodeDevices* devices) {
  const Needs needs(tenants);
  for (auto& [name, device] : *devices) {
    const uint64_t free = device.bytes - std::min(device.bytes, needs.On(device.uuid));
    device.free = free - free % kMemoryStep;
  }
}

std::map<std::string, uint64_t> FreeIn(absl::string_view published) {
  std::map<std::string, uint64_t> free;
  const auto slice = ParseJson(published, kMostText, kMostDepth);
  if (!slice.ok()) return free;
  for (const Json& device : Array(Object(*slice, "spec"), "devices")) {
    const Json& stated = Member(Object(Object(device, "attributes"), "free"), "int");
    if (stated.is_number_unsigned()) {
      free[Text(device, "name", kMostName)] = stated.get<uint64_t>();
    }
  }
  return free;
}

void KeepFree(const std::map<std::string, uint64_t>& published, bool may_change,
              NodeDevices* devices) {
  const auto is_notable = [&](const NodeDevices::value_type& device) {
    const auto old = published.find(device.first);
    if (old == published.end()) return false;
    const uint64_t now = device.second.free;
    const uint64_t change = std::max(now, old->second) - std::min(now, old->second);
    const uint64_t notable = std::min(kNotable, device.second.bytes / kNotablePart);
    return change > 0 && change >= notable;
  };
  if (may_change && std::any_of(devices->begin(), devices->end(), is_notable)) return;
  for (auto& [name, device] : *devices) {
    const auto old = published.find(name);
    if (old != published.end()) device.free = old->second;
  }
}

}  // namespace gpumem::kubernetes
