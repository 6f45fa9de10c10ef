// Who is billed: rules that map what the kernel says of a peer to a tenant's name.
// Pure: reads nothing, so that every case can be tested with plain data.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gpumemd {

// What the kernel attests of the process at the other end of a socket.
struct PeerIdentity {
  pid_t pid = 0;
  // When that process started, in clock ticks since boot (proc_pid_stat(5)): together with the
  // pid it names one process for good. 0: unknown.
  uint64_t start_time = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary
  std::string cgroup;         // path of its cgroup; empty where unknown
};

// Every condition that is present must hold; a rule without conditions matches all.
struct Rule {
  // A tenant's name, or a template in which "{uid}" stands for the peer's uid.
  std::string tenant;
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;           // primary or supplementary
  std::optional<std::string> cgroup;  // fnmatch(3) pattern; '*' matches '/' too
  // For people: "rule 2 (user = alice)".
  std::string description;
};

struct TenantMatch {
  std::string tenant;
  std::string rule;  // the description of the rule that decided
};

bool Matches(const Rule& rule, const PeerIdentity& peer);

// The tenant of `peer`: that of the first rule that matches or, where `wished` is not
// empty, of the first that matches and names that tenant.
//   PERMISSION_DENIED  no rule matches, or none that does names `wished`
absl::StatusOr<TenantMatch> MatchTenant(absl::Span<const Rule> rules, const PeerIdentity& peer,
                                        absl::string_view wished);

}  // namespace gpumemd
