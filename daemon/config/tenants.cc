// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/tenants.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {
namespace {

constexpr size_t kMaxDepth = 8;
// All of a device, if only percentages are compared: exact for seven decimals.
constexpr uint64_t kWhole = 1'000'000'000;

struct Found {
  uint64_t line = 0;
  std::string key;
  std::string message;
};

const TenantConfig* Find(const Config& config, absl::string_view name) {
  for (const TenantConfig& tenant : config.tenants) {
    if (tenant.name == name) return &tenant;
  }
  return nullptr;
}

// Points at the line of `tenant`'s guarantee on the device; at the tenant's line if only its
// members have one.
void PointAtGuarantee(const TenantConfig& tenant, const std::string& device, Found* found) {
  auto own = tenant.lines.device_guarantees.find(device);
  if (own != tenant.lines.device_guarantees.end()) {
    found->line = own->second;
    found->key = "tenant.device.guarantee";
  } else {
    found->line = tenant.lines.guarantee != 0 ? tenant.lines.guarantee : tenant.lines.name;
    found->key = "tenant.guarantee";
  }
}

// Returns the tenant at which the sum becomes too large: the first such one in the file.
const TenantConfig* Straw(const Config& config, const GuaranteeProblem& problem) {
  uint64_t sum = 0;
  const TenantConfig* last = nullptr;
  for (const TenantConfig& tenant : config.tenants) {
    for (const auto& [name, need] : problem.parts) {
      if (name != tenant.name) continue;
      last = &tenant;
      sum += need;
    }
    if (sum > problem.limit) break;
  }
  return last;
}

// Finds a tenant whose limit exceeds its parent's.
std::optional<Found> FindLimitAboveParents(const Config& config,
                                           const std::map<std::string, Quota>& quotas,
                                           absl::Span<const DeviceInfo> devices,
                                           const std::function<std::string(uint64_t)>& show) {
  for (const TenantConfig& tenant : config.tenants) {
    auto parent = quotas.find(tenant.quota.parent);
    if (parent == quotas.end()) continue;
    for (const DeviceInfo& device : devices) {
      if (IsHostMemory(device)) continue;
      auto own = tenant.lines.device_limits.find(device.uuid);
      const bool of_device = own != tenant.lines.device_limits.end();
      const uint64_t line = of_device ? own->second : tenant.lines.limit;
      const uint64_t limit = LimitOn(quotas.at(tenant.name), device);
      const uint64_t above = LimitOn(parent->second, device);
      // No limit, or an inherited one, claims nothing.
      if (line == 0 || limit == std::numeric_limits<uint64_t>::max() || limit <= above) continue;
      return Found{
          line, of_device ? "tenant.device.limit" : "tenant.limit",
          absl::StrCat("the limit of tenant \"", tenant.name, "\"",
                       device.uuid.empty() ? "" : absl::StrCat(" on ", device.uuid), ", ",
                       show(limit), ", is above that of the parent, \"", tenant.quota.parent,
                       "\", ", show(above), "; lower it, or leave it out")};
    }
  }
  return std::nullopt;
}

std::optional<Found> FindMistake(const Config& config, const std::map<std::string, Quota>& quotas,
                                 absl::Span<const DeviceInfo> devices,
                                 const std::function<std::string(uint64_t)>& show) {
  if (auto found = FindLimitAboveParents(config, quotas, devices, show)) return found;
  std::optional<GuaranteeProblem> problem = FindGuaranteeProblem(quotas, devices);
  if (!problem) return std::nullopt;
  Found found{.message = Tell(*problem, show)};
  const TenantConfig* where =
      problem->parts.empty() ? Find(config, problem->tenant) : Straw(config, *problem);
  if (where != nullptr) PointAtGuarantee(*where, problem->device, &found);
  return found;
}

// Returns the values that the tenants state in one unit. Values in the other unit are unknown: such
// a guarantee may be nothing, such a limit no limit.
Quota InUnit(const QuotaConfig& config, absl::Span<const DeviceInfo> devices, bool percent) {
  Quota quota{.parent = config.parent};
  for (const DeviceInfo& device : devices) {
    const auto put = [&](const std::map<std::string, SizeLimit>& own,
                         const std::optional<SizeLimit>& general,
                         std::map<std::string, uint64_t>* out) {
      auto it = own.find(device.uuid);
      const std::optional<SizeLimit> said = it != own.end() ? it->second : general;
      if (said && said->percent.has_value() == percent) {
        (*out)[device.uuid] = said->Of(device.capacity_bytes);
      }
    };
    put(config.device_limits, config.limit, &quota.device_limits);
    put(config.device_guarantees, config.guarantee, &quota.device_guarantees);
  }
  return quota;
}

std::string ShowPercent(uint64_t share) {
  return absl::StrCat(static_cast<double>(share) * 100 / static_cast<double>(kWhole), "%");
}

std::string ShowBytes(uint64_t bytes) { return gpumem::FormatBytes(bytes); }

}  // namespace

void SettleParents(Mistakes* mistakes, Config* config) {
  std::set<std::string> names;
  std::map<std::string, TenantConfig*> tenants;
  for (TenantConfig& tenant : config->tenants) {
    if (tenant.name.empty()) continue;  // a mistake that is known already
    names.insert(tenant.name);
    tenants[tenant.name] = &tenant;
  }
  const auto check_known = [&](uint64_t line, absl::string_view key, const std::string& parent) {
    if (parent.empty() || names.contains(parent)) return;
    const std::string nearest = Nearest(parent, names);
    mistakes->AddAt(line, key,
                    absl::StrCat("no [[tenant]] is named \"", parent, "\" (",
                                 nearest.empty() ? std::string("add one, or remove the line")
                                                 : absl::StrCat("did you mean \"", nearest, "\"?"),
                                 ")"));
  };
  const std::string inherited = config->tenant_defaults.parent;
  check_known(config->defaults_parent_line, "tenant_defaults.parent", inherited);

  // The inherited parent must not be this tenant, nor one of the parent's ancestors.
  std::set<std::string> above;
  for (std::string name = inherited; !name.empty() && above.insert(name).second;) {
    auto it = tenants.find(name);
    name = it == tenants.end() || it->second->lines.parent == 0 ? "" : it->second->quota.parent;
  }
  for (TenantConfig& tenant : config->tenants) {
    if (tenant.lines.parent != 0) {
      check_known(tenant.lines.parent, "tenant.parent", tenant.quota.parent);
    } else if (above.contains(tenant.name)) {
      tenant.quota.parent.clear();
    }
  }

  // Returns the tenant and its ancestors; ends with a repeated one if they form a circle.
  const auto chain_of = [&](const std::string& start) {
    std::vector<std::string> chain;
    for (std::string name = start; tenants.contains(name);) {
      const bool again = std::find(chain.begin(), chain.end(), name) != chain.end();
      chain.push_back(name);
      if (again) break;
      name = tenants[name]->quota.parent;
    }
    return chain;
  };
  const std::string too_deep = absl::StrCat(" (expected at most ", kMaxDepth, ")");
  for (const TenantConfig& tenant : config->tenants) {
    const std::vector<std::string> chain = chain_of(tenant.name);
    if (chain.size() > 1 && chain.back() == tenant.name) {
      mistakes->AddAt(tenant.lines.parent, "tenant.parent",
                      absl::StrCat("tenant \"", tenant.name, "\" is an ancestor of itself (",
                                   absl::StrJoin(chain, " under "), ")"));
    } else if (chain.size() > kMaxDepth && tenant.lines.parent != 0) {
      mistakes->AddAt(
          tenant.lines.parent, "tenant.parent",
          absl::StrCat("tenant \"", tenant.name, "\" is on level ", chain.size(), too_deep));
    }
  }
  const size_t depth = chain_of(inherited).size() + 1;
  if (depth > kMaxDepth && !inherited.empty()) {
    mistakes->AddAt(config->defaults_parent_line, "tenant_defaults.parent",
                    absl::StrCat("each user's tenant would be on level ", depth, too_deep));
  }
}

void CheckGuaranteesWritten(const Config& config, Mistakes* mistakes) {
  // The devices that are named stand for themselves, one without a name for all the others.
  std::set<std::string> uuids = {""};
  for (const TenantConfig& tenant : config.tenants) {
    for (const auto& [uuid, limit] : tenant.quota.device_limits) uuids.insert(uuid);
    for (const auto& [uuid, guarantee] : tenant.quota.device_guarantees) uuids.insert(uuid);
  }
  for (const bool percent : {true, false}) {
    std::vector<DeviceInfo> devices;
    for (const std::string& uuid : uuids) {
      devices.push_back(
          {.uuid = uuid,
           .capacity_bytes = percent ? kWhole : std::numeric_limits<uint64_t>::max()});
    }
    std::map<std::string, Quota> quotas;
    for (const TenantConfig& tenant : config.tenants) {
      quotas[tenant.name] = InUnit(tenant.quota, devices, percent);
    }
    const auto found = FindMistake(config, quotas, devices, percent ? ShowPercent : ShowBytes);
    if (found) mistakes->AddAt(found->line, found->key, found->message);
  }
}

absl::Status CheckGuarantees(const Config& config, absl::Span<const DeviceInfo> devices) {
  std::map<std::string, Quota> quotas;
  for (const TenantConfig& tenant : config.tenants) {
    quotas[tenant.name] = ResolveQuota(tenant.quota, devices);
  }
  const auto found = FindMistake(config, quotas, devices, ShowBytes);
  if (!found) return absl::OkStatus();
  Mistakes mistakes(config.file);
  mistakes.AddAt(found->line, found->key, found->message);
  return mistakes.status();
}

}  // namespace gpumemd
