// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/publication/versions.h"

#include <algorithm>

#include "daemon/core/ledger/records.h"

namespace gpumemd {
namespace {

// Names of a tenant whose last version is remembered once they are no longer published.
constexpr size_t kMaxEndedNames = 256;
// Forgotten tenants whose highest version is remembered.
constexpr size_t kMaxTenants = 4096;

}  // namespace

uint64_t Versions::TakeNext(records::Tenant& tenant, const std::string& name) {
  auto it = std::find_if(tenant.ended_names.begin(), tenant.ended_names.end(),
                         [&](const auto& ended) { return ended.first == name; });
  if (it == tenant.ended_names.end()) return std::max(tenant.forgotten_version, forgotten_) + 1;
  const uint64_t last = it->second;
  tenant.ended_names.erase(it);
  return last + 1;
}

void Versions::Ended(records::Tenant& tenant, const std::string& name, uint64_t version) {
  tenant.ended_names.emplace_back(name, version);
  highest_ = std::max(highest_, version);
  if (tenant.ended_names.size() <= kMaxEndedNames) return;
  Forget(tenant, tenant.ended_names.front().second);
  tenant.ended_names.erase(tenant.ended_names.begin());
}

void Versions::Keep(const records::Tenant& tenant) {
  uint64_t version = tenant.forgotten_version;
  for (const auto& [name, last] : tenant.ended_names) version = std::max(version, last);
  if (version == 0) return;
  places_[tenant.name] = next_place_;
  tenants_.emplace(next_place_++, std::pair(tenant.name, version));
  if (tenants_.size() <= kMaxTenants) return;
  const auto oldest = tenants_.begin();
  Forget(oldest->second.second);
  places_.erase(oldest->second.first);
  tenants_.erase(oldest);
}

void Versions::Recall(records::Tenant& tenant) {
  auto place = places_.find(tenant.name);
  if (place == places_.end()) return;
  const auto kept = tenants_.find(place->second);
  Forget(tenant, kept->second.second);
  tenants_.erase(kept);
  places_.erase(place);
}

void Versions::Forget(uint64_t version) {
  highest_ = std::max(highest_, version);
  forgotten_ = std::max(forgotten_, version);
}

void Versions::Forget(records::Tenant& tenant, uint64_t version) {
  highest_ = std::max(highest_, version);
  tenant.forgotten_version = std::max(tenant.forgotten_version, version);
}

}  // namespace gpumemd
