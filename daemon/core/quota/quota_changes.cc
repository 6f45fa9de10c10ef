// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/quota/quota_changes.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace gpumemd {
namespace {

constexpr char kNone[] = "none";

template <typename T>
std::string Shown(const std::optional<T>& value) {
  return value ? absl::StrCat(*value) : kNone;
}
std::string Shown(const std::optional<Kind>& value) {
  return value ? std::string(KindName(*value)) : kNone;
}
std::string Shown(const std::optional<PreloadMode>& value) {
  if (!value) return kNone;
  return *value == PreloadMode::kBroker ? "broker" : "account";
}
std::string Shown(const std::string& value) { return value.empty() ? kNone : value; }
std::string Shown(bool value) { return value ? "true" : "false"; }
std::string Shown(int32_t value) { return absl::StrCat(value); }
std::string Shown(absl::Duration value) { return absl::FormatDuration(value); }
std::string Shown(ReleasePolicy value) {
  return value == ReleasePolicy::kTrust ? "trust" : "on-exit";
}

class Changes {
 public:
  template <typename T>
  void Compare(absl::string_view field, const T& from, const T& to) {
    if (from == to) return;
    found.push_back(absl::StrCat(field, ": ", Shown(from), " -> ", Shown(to)));
  }
  void Compare(absl::string_view field, const std::map<std::string, uint64_t>& from,
               const std::map<std::string, uint64_t>& to) {
    std::set<std::string> devices;
    for (const auto* each : {&from, &to}) {
      for (const auto& [uuid, bytes] : *each) devices.insert(uuid);
    }
    const auto at = [](const std::map<std::string, uint64_t>& map, const std::string& uuid) {
      auto it = map.find(uuid);
      return it == map.end() ? std::nullopt : std::optional<uint64_t>(it->second);
    };
    for (const std::string& uuid : devices) {
      Compare(absl::StrCat(field, " ", uuid), at(from, uuid), at(to, uuid));
    }
  }

  std::vector<std::string> found;
};

}  // namespace

std::vector<std::string> QuotaChanges(const Quota& from, const Quota& to) {
  Changes changes;
  ForEachQuotaField([&](absl::string_view field, auto member) {
    changes.Compare(field, from.*member, to.*member);
  });
  return changes.found;
}

}  // namespace gpumemd
