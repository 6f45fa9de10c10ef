// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/holdings.h"

#include <algorithm>
#include <map>

namespace gpumem::cli {
namespace {

uint64_t Less(uint64_t from, uint64_t what) { return from - std::min(from, what); }

Holding Total(const v1::TenantInfo& tenant, absl::string_view uuid) {
  Holding holding{.tenant = tenant.usage().tenant()};
  for (const v1::DeviceUsage& usage : tenant.usage().devices()) {
    if (usage.device_uuid() != uuid) continue;
    holding.leased = usage.leased_bytes();
    holding.retained = usage.retained_bytes();
    holding.lingering = usage.lingering_bytes();
    holding.moving = Less(usage.charged_bytes(), holding.held());
  }
  return holding;
}

}  // namespace

DeviceHoldings HoldingsOn(const v1::Device& device, const v1::ListTenantsResponse& tenants) {
  // A tenant's usage includes that of the tenants under it.
  std::map<std::string, Holding> own;
  for (const v1::TenantInfo& tenant : tenants.tenants()) {
    own[tenant.usage().tenant()] = Total(tenant, device.device_uuid());
  }
  for (const v1::TenantInfo& tenant : tenants.tenants()) {
    const auto above = own.find(tenant.quota().parent());
    if (above == own.end()) continue;
    const Holding under = Total(tenant, device.device_uuid());
    above->second.leased = Less(above->second.leased, under.leased);
    above->second.retained = Less(above->second.retained, under.retained);
    above->second.lingering = Less(above->second.lingering, under.lingering);
    above->second.moving = Less(above->second.moving, under.moving);
  }
  DeviceHoldings result;
  for (auto& [name, holding] : own) {
    if (holding.held() == 0) continue;
    result.all.leased += holding.leased;
    result.all.retained += holding.retained;
    result.all.lingering += holding.lingering;
    result.all.moving += holding.moving;
    result.tenants.push_back(std::move(holding));
  }
  std::stable_sort(result.tenants.begin(), result.tenants.end(),
                   [](const Holding& a, const Holding& b) { return a.held() > b.held(); });
  const uint64_t room = Less(device.capacity_bytes(), result.all.held());
  if (device.driver_free_bytes() > 0) result.outside = Less(room, device.driver_free_bytes());
  result.free = Less(room, result.outside);
  return result;
}

}  // namespace gpumem::cli
