// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/identity/rules.h"

#include <fnmatch.h>

#include <algorithm>
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

enum class Decision { kMatches, kFails, kAmbiguous };

// Whether a rule matches; if not, the first condition that does not hold.
struct Evaluation {
  Decision decision = Decision::kMatches;
  std::string condition;
  std::string why;  // for kAmbiguous: "the cgroup is ambiguous (…)"
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

Evaluation Evaluate(const Rule& rule, const PeerIdentity& peer) {
  if (rule.uid && *rule.uid != peer.uid) return {Decision::kFails, "uid", ""};
  if (rule.gid && *rule.gid != peer.gid &&
      std::find(peer.groups.begin(), peer.groups.end(), *rule.gid) == peer.groups.end()) {
    return {Decision::kFails, "gid", ""};
  }
  Evaluation whole;
  // A condition that certainly fails goes before an ambiguous one: the rule does not match.
  const auto add = [&](Evaluation part) {
    if (part.decision == Decision::kFails || whole.decision == Decision::kMatches) {
      whole = std::move(part);
    }
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
      {"{pod}", {"pod", "qos"}},
      {"{qos}", {"qos", "pod"}},
      {"{slurm_job}", {"slurm_job", "slurm_step"}},
      {"{slurm_step}", {"slurm_step"}},
  };
  return all;
}

std::string TenantOf(const Rule& rule, const PeerIdentity& peer) {
  std::vector<std::pair<std::string, std::string>> values = {
      {kUid, absl::StrCat(peer.uid)}, {"{user}", rule.user}, {"{group}", rule.group}};
  for (CgroupFact fact :
       {CgroupFact::kUnit, CgroupFact::kSlice, CgroupFact::kContainer, CgroupFact::kPod,
        CgroupFact::kQos, CgroupFact::kSlurmJob, CgroupFact::kSlurmStep}) {
    values.emplace_back(absl::StrCat("{", NameOf(fact), "}"), ValueOf(rule, peer, fact));
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
  return Evaluate(rule, peer).decision == Decision::kMatches;
}

absl::StatusOr<TenantMatch> MatchTenant(absl::Span<const Rule> rules, const PeerIdentity& peer,
                                        absl::string_view wished,
                                        absl::FunctionRef<bool(absl::string_view)> is_made) {
  std::vector<std::string> allowed;
  std::vector<PassedRule> passed;
  std::string ambiguous;  // why only rules by uid count after it
  bool billed_by_uid = false;
  // Returns the match, unless another tenant is wished for.
  const auto decide = [&](std::string tenant, absl::string_view description, size_t number) {
    std::optional<TenantMatch> match;
    if (wished.empty() || tenant == wished) {
      match = TenantMatch{std::move(tenant), std::string(description), number, passed};
      if (!ambiguous.empty()) absl::StrAppend(&match->rule, "; ", ambiguous, ": billed by uid");
    } else {
      allowed.push_back(std::move(tenant));
    }
    return match;
  };
  for (size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i];
    const Evaluation found = Evaluate(rule, peer);
    if (found.decision != Decision::kMatches) {
      passed.push_back({i + 1, found.condition, found.decision == Decision::kAmbiguous});
      if (ambiguous.empty()) ambiguous = found.why;
      continue;
    }
    if (rule.made && !is_made(TenantOf(rule, peer))) {
      passed.push_back({i + 1, "made", false});
      continue;
    }
    if (ambiguous.empty() || BillsByUid(rule)) {
      billed_by_uid = !ambiguous.empty();
      if (auto match = decide(TenantOf(rule, peer), rule.description, i + 1)) return *match;
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
