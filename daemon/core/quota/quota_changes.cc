#include "daemon/core/quota/quota_changes.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"

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
std::string Shown(const std::string& value) { return value.empty() ? kNone : value; }
std::string Shown(bool value) { return value ? "true" : "false"; }
std::string Shown(int32_t value) { return absl::StrCat(value); }
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
  changes.Compare("limit_bytes", from.limit_bytes, to.limit_bytes);
  changes.Compare("devices", from.device_limits, to.device_limits);
  changes.Compare("total_limit_bytes", from.total_limit_bytes, to.total_limit_bytes);
  changes.Compare("pinned_limit_bytes", from.pinned_limit_bytes, to.pinned_limit_bytes);
  changes.Compare("max_segments", from.max_segments, to.max_segments);
  changes.Compare("max_sessions", from.max_sessions, to.max_sessions);
  changes.Compare("max_in_flight", from.max_in_flight, to.max_in_flight);
  changes.Compare("max_waiting", from.max_waiting, to.max_waiting);
  changes.Compare("max_publications", from.max_publications, to.max_publications);
  changes.Compare("max_retained_bytes", from.max_retained_bytes, to.max_retained_bytes);
  changes.Compare("max_retained_bytes", from.device_max_retained, to.device_max_retained);
  changes.Compare("guarantee_bytes", from.guarantee_bytes, to.guarantee_bytes);
  changes.Compare("guarantees", from.device_guarantees, to.device_guarantees);
  changes.Compare("priority", from.priority, to.priority);
  changes.Compare("kind", from.kind, to.kind);
  changes.Compare("scrub", from.scrub, to.scrub);
  changes.Compare("revocable", from.revocable, to.revocable);
  changes.Compare("release", from.release, to.release);
  changes.Compare("parent", from.parent, to.parent);
  return changes.found;
}

}  // namespace gpumemd
