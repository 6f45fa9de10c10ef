#include "daemon/core/rules.h"

#include <fnmatch.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace gpumemd {
namespace {

std::string Describe(const PeerIdentity& peer) {
  return absl::StrCat("process ", peer.pid, " (uid ", peer.uid, ", gid ", peer.gid, ", cgroup ",
                      peer.cgroup.empty() ? "unknown" : peer.cgroup, ")");
}

}  // namespace

bool Matches(const Rule& rule, const PeerIdentity& peer) {
  if (rule.uid && *rule.uid != peer.uid) return false;
  if (rule.gid && *rule.gid != peer.gid &&
      std::find(peer.groups.begin(), peer.groups.end(), *rule.gid) == peer.groups.end()) {
    return false;
  }
  // An unknown cgroup matches no pattern, not even "*": it must not open a door.
  if (rule.cgroup &&
      (peer.cgroup.empty() || fnmatch(rule.cgroup->c_str(), peer.cgroup.c_str(), 0) != 0)) {
    return false;
  }
  return true;
}

absl::StatusOr<TenantMatch> MatchTenant(absl::Span<const Rule> rules, const PeerIdentity& peer,
                                        absl::string_view wished) {
  std::vector<std::string> allowed;
  for (const Rule& rule : rules) {
    if (!Matches(rule, peer)) continue;
    std::string tenant = absl::StrReplaceAll(rule.tenant, {{"{uid}", absl::StrCat(peer.uid)}});
    if (wished.empty() || tenant == wished) return TenantMatch{tenant, rule.description};
    allowed.push_back(std::move(tenant));
  }
  if (allowed.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat("no rule of the daemon's configuration matches ", Describe(peer),
                     "; ask the operator for a [[rule]] that does"));
  }
  return absl::PermissionDeniedError(
      absl::StrCat("no rule lets ", Describe(peer), " be tenant \"", wished,
                   "\"; the rules allow it: ", absl::StrJoin(allowed, ", ")));
}

}  // namespace gpumemd
