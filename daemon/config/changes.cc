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
  const auto compare = [&](const char* key, const auto& one, const auto& other) {
    if (one != other) keys.emplace_back(key);
  };
  compare("limit", a.limit, b.limit);
  compare("guarantee", a.guarantee, b.guarantee);
  compare("device", std::tie(a.device_limits, a.device_guarantees),
          std::tie(b.device_limits, b.device_guarantees));
  compare("total_limit", a.total_limit_bytes, b.total_limit_bytes);
  compare("pinned_limit", a.pinned_limit, b.pinned_limit);
  compare("max_segments", a.max_segments, b.max_segments);
  compare("max_sessions", a.max_sessions, b.max_sessions);
  compare("max_in_flight", a.max_in_flight, b.max_in_flight);
  compare("max_waiting", a.max_waiting, b.max_waiting);
  compare("max_publications", a.max_publications, b.max_publications);
  compare("max_retained", a.max_retained, b.max_retained);
  compare("priority", a.priority, b.priority);
  compare("kind", a.kind, b.kind);
  compare("scrub", a.scrub, b.scrub);
  compare("revocable", a.revocable, b.revocable);
  compare("parent", a.parent, b.parent);
  compare("release", a.release, b.release);
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
        absl::StrCat("rules: changed (", to.rules.size(), " now); sessions stay what they are"));
  }
  if (from.privacy != to.privacy) changes.emplace_back("privacy: changed holders");
  if (from.log_level != to.log_level) changes.emplace_back("log_level: changed");
  return changes;
}

}  // namespace gpumemd
