// SPDX-License-Identifier: Apache-2.0
// Resolves the configuration for the present devices.
#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/config/config.h"

namespace gpumemd {
namespace {

// Sets the member of a Quota as far as it does not depend on the devices.
template <typename T>
void Resolve(const T& value, T* out) {
  *out = value;
}
void Resolve(const std::optional<SizeLimit>& size, std::optional<uint64_t>* out) {
  if (size && !size->percent) *out = size->bytes;
}
void Resolve(const std::map<std::string, SizeLimit>&, std::map<std::string, uint64_t>*) {}

}  // namespace

uint64_t SizeLimit::Of(uint64_t whole_bytes) const {
  if (!percent) return bytes;
  return static_cast<uint64_t>(static_cast<long double>(whole_bytes) * *percent / 100);
}

Quota ResolveQuota(const QuotaConfig& config, absl::Span<const DeviceInfo> devices) {
  Quota quota;
  ForEachQuotaKey([&](const char*, auto member, auto quota_member) {
    Resolve(config.*member, &(quota.*quota_member));
  });
  for (const DeviceInfo& device : devices) {
    if (config.max_retained && config.max_retained->percent) {
      quota.device_max_retained[device.uuid] = config.max_retained->Of(device.capacity_bytes);
    }
    if (IsHostMemory(device)) {
      const bool tier = IsHostTier(device);
      if (const std::optional<SizeLimit>& limit = tier ? config.tier_limit : config.pinned_limit) {
        (tier ? quota.tier_limit_bytes : quota.pinned_limit_bytes) =
            limit->Of(device.capacity_bytes);
      }
      continue;
    }
    auto own = config.device_limits.find(device.uuid);
    if (own != config.device_limits.end()) {
      quota.device_limits[device.uuid] = own->second.Of(device.capacity_bytes);
    } else if (config.limit && config.limit->percent) {
      quota.device_limits[device.uuid] = config.limit->Of(device.capacity_bytes);
    }
    auto guarantee = config.device_guarantees.find(device.uuid);
    if (guarantee != config.device_guarantees.end()) {
      quota.device_guarantees[device.uuid] = guarantee->second.Of(device.capacity_bytes);
    } else if (config.guarantee && config.guarantee->percent) {
      quota.device_guarantees[device.uuid] = config.guarantee->Of(device.capacity_bytes);
    }
  }
  return quota;
}

const QuotaConfig& QuotaOf(const Config& config, absl::string_view tenant) {
  for (const TenantConfig& configured : config.tenants) {
    if (configured.name == tenant) return configured.quota;
  }
  return config.tenant_defaults;
}

std::vector<std::string> DeviceNotices(const Config& config, absl::Span<const DeviceInfo> devices) {
  std::set<std::string> named;
  for (const auto& [uuid, limit] : config.tenant_defaults.device_limits) named.insert(uuid);
  for (const TenantConfig& tenant : config.tenants) {
    for (const auto& [uuid, limit] : tenant.quota.device_limits) named.insert(uuid);
    for (const auto& [uuid, guarantee] : tenant.quota.device_guarantees) named.insert(uuid);
  }
  for (const DeviceInfo& device : devices) named.erase(device.uuid);
  std::vector<std::string> notices;
  for (const std::string& uuid : named) {
    notices.push_back(
        absl::StrCat("the configuration names device ", uuid, ", which this daemon does not have"));
  }
  return notices;
}

}  // namespace gpumemd
