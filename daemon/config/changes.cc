// SPDX-License-Identifier: Apache-2.0
// Describes the changes of a reload.
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/config.h"

namespace gpumemd {
namespace {

// The keys that differ, as the file names them.
std::vector<std::string> Differences(const QuotaConfig& a, const QuotaConfig& b) {
  std::vector<std::string> keys;
  ForEachQuotaKey([&](const char* key, auto member, auto) {
    const bool told = !keys.empty() && keys.back() == key;  // "device" is there twice
    if (a.*member != b.*member && !told) keys.emplace_back(key);
  });
  return keys;
}

// Of rules. Their descriptions tell all conditions, but users and groups by name.
using RuleKey = std::tuple<std::string, std::string, std::optional<uid_t>, std::optional<gid_t>>;

std::vector<RuleKey> Comparable(const std::vector<Rule>& rules) {
  std::vector<RuleKey> keys;
  for (const Rule& rule : rules) {
    keys.emplace_back(rule.tenant, rule.description, rule.uid, rule.gid);
  }
  return keys;
}

}  // namespace

std::vector<std::string> ConfigChanges(const Config& from, const Config& to) {
  std::vector<std::string> changes;
  const auto tell = [&](absl::string_view what, const std::vector<std::string>& keys) {
    if (!keys.empty()) {
      changes.push_back(absl::StrCat(what, ": changed ", absl::StrJoin(keys, ", ")));
    }
  };
  tell("tenant_defaults", Differences(from.tenant_defaults, to.tenant_defaults));
  std::map<std::string, const QuotaConfig*> before;
  for (const TenantConfig& tenant : from.tenants) before[tenant.name] = &tenant.quota;
  for (const TenantConfig& tenant : to.tenants) {
    const std::string name = absl::StrCat("tenant \"", tenant.name, "\"");
    auto known = before.find(tenant.name);
    if (known == before.end()) {
      changes.push_back(absl::StrCat(name, ": new"));
      continue;
    }
    tell(name, Differences(*known->second, tenant.quota));
    before.erase(known);
  }
  for (const auto& [name, quota] : before) {
    changes.push_back(absl::StrCat("tenant \"", name, "\": no longer configured"));
  }
  if (Comparable(from.rules) != Comparable(to.rules)) {
    changes.push_back(
        absl::StrCat("rules: changed (", to.rules.size(), " now); sessions keep their tenants"));
  }
  if (from.unbrokered != to.unbrokered) changes.emplace_back("unbrokered: changed");
  if (from.privacy != to.privacy) changes.emplace_back("privacy: changed holders");
  if (from.log_level != to.log_level) changes.emplace_back("log_level: changed");
  return changes;
}

}  // namespace gpumemd
