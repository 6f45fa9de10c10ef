// SPDX-License-Identifier: Apache-2.0
// Billing rules: they map the kernel's facts about a peer, and those of its Kubernetes pod, to a
// tenant's name. Pure: reads nothing, so that every case can be tested with plain data.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/identity/cgroup.h"
#include "daemon/core/identity/pods.h"

namespace gpumemd {

inline constexpr size_t kMaxTenantName = 63;

// The kernel's facts about the process at the other end of a socket.
struct PeerIdentity {
  pid_t pid = 0;
  // When that process started, in clock ticks since boot (proc_pid_stat(5)). Together with the pid
  // it identifies one process for all time. 0: unknown.
  uint64_t start_time = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary
  Cgroup cgroup;              // as of the moment at which the daemon accepted it
};

// A condition on a cgroup fact.
struct FactCondition {
  CgroupFact fact = CgroupFact::kUnit;
  // fnmatch(3), without escapes, since units have backslashes in their names. For kSlice one
  // matching slice suffices. An absent fact matches no pattern, not even "*".
  std::string pattern;
};

// A condition on a fact of the peer's pod.
struct PodCondition {
  PodFact fact = PodFact::kNamespace;
  std::string label;  // its key, of kLabel
  // As of FactCondition. Of claims, one that matches suffices. "*" matches an empty label.
  std::string pattern;
};

// All conditions that are present must hold; a rule without conditions matches every peer.
struct Rule {
  // A tenant's name, or a template: kPlaceholders.
  std::string tenant;
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;           // primary or supplementary
  std::optional<std::string> cgroup;  // fnmatch(3) pattern; '*' matches '/' too
  std::vector<FactCondition> facts;
  std::vector<PodCondition> pod_facts;
  // It matches only while an operator has made a tenant of that name at run time.
  bool made = false;
  // The names by which the configuration gives uid and gid; empty if it gives numbers.
  std::string user, group;
  // For people: "rule 2 (user = alice)".
  std::string description;

  // A pod is known by the cgroup.
  bool AsksForCgroup() const { return cgroup.has_value() || !facts.empty() || !pod_facts.empty(); }
};

// A placeholder that a rule's tenant may have. One of `conditions` must be in the rule, so that
// there always is a value.
struct Placeholder {
  absl::string_view text;                     // "{pod}"
  std::vector<absl::string_view> conditions;  // {"pod", "qos"}; empty: there is always a value
};
const std::vector<Placeholder>& Placeholders();
// Stands for all conditions on labels in Placeholder::conditions.
inline constexpr char kAnyLabel[] = "label:KEY";

// Returns the keys in placeholders "{label:KEY}", which are beside those of Placeholders(). Each
// needs the condition "label:KEY".
std::vector<std::string> LabelsIn(absl::string_view tenant);
// Returns that placeholder.
std::string LabelPlaceholder(absl::string_view key);

// The tenant of users that no rule by uid bills.
inline constexpr char kTenantForEachUser[] = "user-{uid}";

// Returns `tenant` with the values of the peer and of its pod, if `rule` matches: a valid tenant's
// name. Characters of values that are not allowed in a tenant's name become '_'. A name longer than
// 63 is cut, and ends in a hash of the whole name. `pod`: null if the rule asks for none of its
// facts.
std::string TenantOf(const Rule& rule, const PeerIdentity& peer, const PodFacts* pod = nullptr);

// A rule that was evaluated and did not decide.
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
  std::shared_ptr<const PodFacts> pod;  // of the peer, as of now; null: it has none, or not told
};

// True if all conditions hold. Those on facts of pods do not.
bool Matches(const Rule& rule, const PeerIdentity& peer);

// Returns the tenant of `peer`: that of the first rule that matches. With `wished` not empty: of
// the first that matches and names that tenant.
//
// If a rule asks for an ambiguous cgroup fact and one of the answers would match, the rule is
// neither skipped nor applied: the uid's quota holds. From that point only rules count that name a
// tenant by uid (condition uid, or {uid} in the tenant) and ask nothing of the cgroup. If none
// matches, the tenant is the built-in "user-UID".
//
// If a rule asks for a fact of the peer's pod, no other condition of it fails, and the pod is not
// in `pods` yet, nothing is decided. A later rule could be more generous, and the uid, which pods
// choose, bounds nothing. The answer is right a moment later.
//   PERMISSION_DENIED  no rule matches, or no matching rule names `wished`
//   UNAVAILABLE        the pod has not been described yet
// `is_made`: true if an operator has made the tenant at run time (Rule::made).
absl::StatusOr<TenantMatch> MatchTenant(
    absl::Span<const Rule> rules, const PeerIdentity& peer, absl::string_view wished,
    absl::FunctionRef<bool(absl::string_view)> is_made = [](absl::string_view) { return false; },
    const KnownPods& pods = KnownPods());

}  // namespace gpumemd
