// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/identity/rules.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace gpumemd {
namespace {

constexpr char kUid[] = "{uid}";
constexpr char kLabelBegin[] = "{label:";

// The later one counts of two conditions of a rule.
enum class Decision { kMatches, kAmbiguous, kUndescribed, kFails };

// Whether a rule matches; if not, the first condition that does not hold.
struct Evaluation {
  Decision decision = Decision::kMatches;
  std::string condition;
  std::string why;  // for kAmbiguous: "the cgroup is ambiguous (…)"; for kUndescribed: the pod
};

bool AnyMatches(const std::vector<std::string>& values, const std::string& pattern, int flags) {
  return std::any_of(values.begin(), values.end(), [&](const std::string& value) {
    return fnmatch(pattern.c_str(), value.c_str(), flags) == 0;
  });
}

Evaluation EvaluateFact(const Cgroup& cgroup, CgroupFact fact, const std::string& pattern,
                        int flags) {
  const std::string condition(NameOf(fact));
  if (!cgroup.unknown().empty()) {
    return {Decision::kAmbiguous, condition,
            absl::StrCat("the cgroup is unknown (", cgroup.unknown(), ")")};
  }
  const std::vector<Cgroup::Answer>& answers = cgroup.Answers(fact);
  // The condition does not hold, whichever of the answers is right.
  if (std::none_of(answers.begin(), answers.end(), [&](const Cgroup::Answer& answer) {
        return AnyMatches(answer.values, pattern, flags);
      })) {
    return {Decision::kFails, condition, ""};
  }
  if (answers.size() > 1) {
    return {Decision::kAmbiguous, condition,
            absl::StrCat("the cgroup is ambiguous (", cgroup.Ambiguity(fact), ")")};
  }
  return {};
}

// Whether a condition holds for a pod.
bool Holds(const PodFacts& pod, const Rule& rule, const PodCondition& condition) {
  const std::vector<std::string> values = ValuesOf(pod, condition.fact, condition.label);
  // An empty label gives no tenant a name.
  if (condition.fact == PodFact::kLabel && values == std::vector<std::string>{""} &&
      absl::StrContains(rule.tenant, LabelPlaceholder(condition.label))) {
    return false;
  }
  return AnyMatches(values, condition.pattern, FNM_NOESCAPE);
}

Evaluation EvaluatePod(const Rule& rule, const PodCondition& condition, const Cgroup& cgroup,
                       const KnownPods& pods) {
  const std::string name(NameOf(condition.fact));
  if (!cgroup.unknown().empty()) {
    return {Decision::kAmbiguous, name,
            absl::StrCat("the cgroup is unknown (", cgroup.unknown(), ")")};
  }
  bool may_hold = false;
  std::string undescribed;
  const std::vector<Cgroup::Answer>& answers = cgroup.Answers(CgroupFact::kPod);
  for (const Cgroup::Answer& answer : answers) {
    for (const std::string& uid : answer.values) {
      const auto pod = pods.Find(uid);
      may_hold = may_hold || pod == nullptr || Holds(*pod, rule, condition);
      if (pod == nullptr) undescribed = uid;
    }
  }
  if (!may_hold) return {Decision::kFails, name, ""};
  if (answers.size() > 1) {
    return {Decision::kAmbiguous, name,
            absl::StrCat("the cgroup is ambiguous (", cgroup.Ambiguity(CgroupFact::kPod), ")")};
  }
  if (!undescribed.empty()) return {Decision::kUndescribed, name, undescribed};
  return {};
}

Evaluation Evaluate(const Rule& rule, const PeerIdentity& peer, const KnownPods& pods) {
  if (rule.uid && *rule.uid != peer.uid) return {Decision::kFails, "uid", ""};
  if (rule.gid && *rule.gid != peer.gid &&
      std::find(peer.groups.begin(), peer.groups.end(), *rule.gid) == peer.groups.end()) {
    return {Decision::kFails, "gid", ""};
  }
  Evaluation whole;
  // A condition that certainly fails goes before an undecided one: the rule does not match.
  const auto add = [&](Evaluation part) {
    if (part.decision > whole.decision) whole = std::move(part);
    return whole.decision == Decision::kFails;
  };
  if (rule.cgroup && add(EvaluateFact(peer.cgroup, CgroupFact::kPath, *rule.cgroup, 0))) {
    return whole;
  }
  for (const FactCondition& condition : rule.facts) {
    if (add(EvaluateFact(peer.cgroup, condition.fact, condition.pattern, FNM_NOESCAPE))) {
      return whole;
    }
  }
  for (const PodCondition& condition : rule.pod_facts) {
    if (add(EvaluatePod(rule, condition, peer.cgroup, pods))) return whole;
  }
  return whole;
}

bool BillsByUid(const Rule& rule) {
  return !rule.AsksForCgroup() && (rule.uid.has_value() || absl::StrContains(rule.tenant, kUid));
}

// FNV-1a: the same in every run of the daemon, as a tenant's name must be.
uint64_t HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string ValueOf(const Rule& rule, const PeerIdentity& peer, CgroupFact fact) {
  if (fact != CgroupFact::kSlice) return peer.cgroup.Value(fact);
  // The innermost of the slices that the rule asks for.
  const std::vector<std::string>& slices = peer.cgroup.Values(fact);
  for (auto slice = slices.rbegin(); slice != slices.rend(); ++slice) {
    const bool asked_for =
        std::any_of(rule.facts.begin(), rule.facts.end(), [&](const FactCondition& condition) {
          return condition.fact == fact && AnyMatches({*slice}, condition.pattern, FNM_NOESCAPE);
        });
    if (asked_for) return *slice;
  }
  return "";
}

// Returns the conditions that hold only in a pod that has been described, the first one in front.
std::vector<absl::string_view> OfAPod(absl::string_view first,
                                      std::vector<absl::string_view> others) {
  std::vector<absl::string_view> all = {first};
  all.insert(all.end(), others.begin(), others.end());
  for (const absl::string_view condition :
       {"namespace", "pod_name", "service_account", "claim", kAnyLabel}) {
    if (condition != first) all.push_back(condition);
  }
  return all;
}

std::string Describe(const PeerIdentity& peer) {
  std::string cgroup = peer.cgroup.Value(CgroupFact::kPath);
  if (cgroup.empty()) {
    cgroup = peer.cgroup.unknown().empty()
                 ? absl::StrCat("ambiguous: ", peer.cgroup.Ambiguity(CgroupFact::kPath))
                 : absl::StrCat("unknown: ", peer.cgroup.unknown());
  }
  return absl::StrCat("process ", peer.pid, " (uid ", peer.uid, ", gid ", peer.gid, ", cgroup ",
                      cgroup, ")");
}

}  // namespace

const std::vector<Placeholder>& Placeholders() {
  static const auto& all = *new std::vector<Placeholder>{
      {kUid, {}},
      {"{user}", {"user"}},
      {"{group}", {"group"}},
      {"{unit}", {"unit"}},
      {"{slice}", {"slice"}},
      {"{container}", {"container"}},
      {"{pod}", OfAPod("pod", {"qos"})},
      {"{qos}", OfAPod("qos", {"pod"})},
      {"{slurm_job}", {"slurm_job", "slurm_step"}},
      {"{slurm_step}", {"slurm_step"}},
      {"{namespace}", OfAPod("namespace", {})},
      {"{pod_name}", OfAPod("pod_name", {})},
      {"{service_account}", {"service_account"}},
  };
  return all;
}

std::vector<std::string> LabelsIn(absl::string_view tenant) {
  std::vector<std::string> keys;
  for (size_t at = tenant.find(kLabelBegin); at != absl::string_view::npos;
       at = tenant.find(kLabelBegin, at)) {
    at += strlen(kLabelBegin);
    const size_t end = tenant.find('}', at);
    if (end == absl::string_view::npos) break;
    std::string key(tenant.substr(at, end - at));
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
    at = end;
  }
  return keys;
}

std::string LabelPlaceholder(absl::string_view key) { return absl::StrCat(kLabelBegin, key, "}"); }

std::string TenantOf(const Rule& rule, const PeerIdentity& peer, const PodFacts* pod) {
  std::vector<std::pair<std::string, std::string>> values = {
      {kUid, absl::StrCat(peer.uid)}, {"{user}", rule.user}, {"{group}", rule.group}};
  for (CgroupFact fact :
       {CgroupFact::kUnit, CgroupFact::kSlice, CgroupFact::kContainer, CgroupFact::kPod,
        CgroupFact::kQos, CgroupFact::kSlurmJob, CgroupFact::kSlurmStep}) {
    values.emplace_back(absl::StrCat("{", NameOf(fact), "}"), ValueOf(rule, peer, fact));
  }
  if (pod != nullptr) {
    values.emplace_back("{namespace}", pod->name_space);
    values.emplace_back("{pod_name}", pod->name);
    values.emplace_back("{service_account}", pod->service_account);
    for (const std::string& key : LabelsIn(rule.tenant)) {
      const auto value = pod->labels.find(key);
      values.emplace_back(LabelPlaceholder(key), value == pod->labels.end() ? "" : value->second);
    }
  }
  const std::string whole = absl::StrReplaceAll(rule.tenant, values);
  for (auto& [placeholder, value] : values) {
    std::replace_if(
        value.begin(), value.end(),
        [](unsigned char c) { return !absl::ascii_isalnum(c) && c != '.' && c != '_' && c != '-'; },
        '_');
  }
  std::string name = absl::StrReplaceAll(rule.tenant, values);
  if (name.size() <= kMaxTenantName) return name;
  const std::string hash = absl::StrFormat("-%016x", HashOf(whole));
  return absl::StrCat(name.substr(0, kMaxTenantName - hash.size()), hash);
}

bool Matches(const Rule& rule, const PeerIdentity& peer) {
  return Evaluate(rule, peer, KnownPods()).decision == Decision::kMatches;
}

absl::StatusOr<TenantMatch> MatchTenant(absl::Span<const Rule> rules, const PeerIdentity& peer,
                                        absl::string_view wished,
                                        absl::FunctionRef<bool(absl::string_view)> is_made,
                                        const KnownPods& pods) {
  const std::shared_ptr<const PodFacts> pod = pods.Find(peer.cgroup.Value(CgroupFact::kPod));
  std::vector<std::string> allowed;
  std::vector<PassedRule> passed;
  std::string ambiguous;  // why only rules by uid count after it
  bool billed_by_uid = false;
  // Returns the match, unless another tenant is wished for.
  const auto decide = [&](std::string tenant, absl::string_view description, size_t number) {
    std::optional<TenantMatch> match;
    if (wished.empty() || tenant == wished) {
      match = TenantMatch{std::move(tenant), std::string(description), number, passed, pod};
      if (!ambiguous.empty()) absl::StrAppend(&match->rule, "; ", ambiguous, ": billed by uid");
    } else {
      allowed.push_back(std::move(tenant));
    }
    return match;
  };
  for (size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i];
    const Evaluation found = Evaluate(rule, peer, pods);
    if (found.decision == Decision::kUndescribed && ambiguous.empty()) {
      return absl::UnavailableError(absl::StrCat(
          "rule ", i + 1, " asks for a fact (", found.condition, ") of pod ", found.why,
          ", which Kubernetes' helper on this node has not told the daemon yet: try again"));
    }
    if (found.decision != Decision::kMatches) {
      passed.push_back({i + 1, found.condition, found.decision != Decision::kFails});
      if (ambiguous.empty()) ambiguous = found.why;
      continue;
    }
    if (rule.made && !is_made(TenantOf(rule, peer, pod.get()))) {
      passed.push_back({i + 1, "made", false});
      continue;
    }
    if (ambiguous.empty() || BillsByUid(rule)) {
      billed_by_uid = !ambiguous.empty();
      if (auto match = decide(TenantOf(rule, peer, pod.get()), rule.description, i + 1))
        return *match;
    }
    passed.push_back({i + 1, "tenant", !ambiguous.empty()});
  }
  if (!ambiguous.empty() && !billed_by_uid) {
    const Rule built_in{.tenant = kTenantForEachUser};
    if (auto match =
            decide(TenantOf(built_in, peer), "built-in rule (a tenant for each user)", 0)) {
      return *match;
    }
  }
  if (allowed.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat("no rule of the daemon's configuration matches ", Describe(peer),
                     "; ask the operator for a [[rule]] that does"));
  }
  return absl::PermissionDeniedError(
      absl::StrCat("no rule lets ", Describe(peer), " be tenant \"", wished, "\"",
                   ambiguous.empty() ? "" : absl::StrCat(", where ", ambiguous),
                   "; the rules allow it: ", absl::StrJoin(allowed, ", ")));
}

}  // namespace gpumemd
