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
#include "daemon/core/identity/cgroup.h"

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
  Cgroup cgroup;              // as of the moment at which it was accepted
};

// A condition on what the cgroup says.
struct FactCondition {
  CgroupFact fact = CgroupFact::kUnit;
  // fnmatch(3), without escapes, since units have backslashes in their names. Of kSlice any one
  // that matches will do. A fact that is not there matches no pattern, not even "*".
  std::string pattern;
};

// Every condition that is present must hold; a rule without conditions matches all.
struct Rule {
  // A tenant's name, or a template: kPlaceholders.
  std::string tenant;
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;           // primary or supplementary
  std::optional<std::string> cgroup;  // fnmatch(3) pattern; '*' matches '/' too
  std::vector<FactCondition> facts;
  // The names by which the configuration gives uid and gid; empty where it gives numbers.
  std::string user, group;
  // For people: "rule 2 (user = alice)".
  std::string description;

  bool AsksForCgroup() const { return cgroup.has_value() || !facts.empty(); }
};

// What may stand in a rule's tenant, and the conditions of which one must be in the rule so that
// there always is a value.
struct Placeholder {
  absl::string_view text;                     // "{pod}"
  std::vector<absl::string_view> conditions;  // {"pod", "qos"}; empty: there is always one
};
const std::vector<Placeholder>& Placeholders();

// What users of no rule by uid are billed as: "user-{uid}".
inline constexpr char kTenantForEachUser[] = "user-{uid}";

// `tenant` with the peer's values, where `rule` matches it: a valid tenant's name. Of the values,
// characters that no tenant's name has become '_'; what is longer than 63 is cut, and a hash of
// all of it put at the end.
std::string TenantOf(const Rule& rule, const PeerIdentity& peer);

// A rule that was looked at and did not decide.
struct PassedRule {
  size_t number = 0;      // from 1
  std::string condition;  // the first that did not hold; "tenant": it names the wrong one
  bool ambiguous = false;
};

struct TenantMatch {
  std::string tenant;
  std::string rule;        // the description of the rule that decided, and what was ambiguous
  size_t rule_number = 0;  // from 1; 0: the built-in one
  std::vector<PassedRule> passed;
};

bool Matches(const Rule& rule, const PeerIdentity& peer);

// The tenant of `peer`: that of the first rule that matches or, where `wished` is not
// empty, of the first that matches and names that tenant.
//
// A rule that asks for something ambiguous about the cgroup, and would match by one of the
// answers, is neither passed over nor taken: the uid's quota holds. From there on only rules count
// that name a tenant by uid (condition uid, or {uid} in the tenant) and ask nothing of the cgroup;
// where there is none, the tenant is the built-in "user-UID".
//   PERMISSION_DENIED  no rule matches, or none that does names `wished`
absl::StatusOr<TenantMatch> MatchTenant(absl::Span<const Rule> rules, const PeerIdentity& peer,
                                        absl::string_view wished);

}  // namespace gpumemd
