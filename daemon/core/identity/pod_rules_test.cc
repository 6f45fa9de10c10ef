// SPDX-License-Identifier: Apache-2.0
// Rules that ask for facts of Kubernetes' pods.
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/core/identity/pods.h"
#include "daemon/core/identity/rules.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace pod_rules_test {

using ::testing::HasSubstr;

std::string UidOf(int number) {
  return absl::StrFormat("%08d-2a99-45ad-af94-d91eb81a87e9", number);
}

PeerIdentity In(absl::string_view proc_pid_cgroup) {
  return {.pid = 4711, .uid = 1000, .gid = 100, .cgroup = Cgroup::Parse(proc_pid_cgroup)};
}
PeerIdentity InPod(int number) {
  return In(
      absl::StrCat("0::/kubepods/burstable/pod", UidOf(number), "/", std::string(64, 'a'), "\n"));
}
// In two pods, by two hierarchies.
PeerIdentity InPods(int one, int other) {
  return In(absl::StrCat("4:memory:/kubepods/burstable/pod", UidOf(one),
                         "\n3:pids:/kubepods/burstable/pod", UidOf(other), "\n"));
}

PodFacts Infer(int number = 1) {
  return {.uid = UidOf(number),
          .name_space = "team-a",
          .name = "infer-5d4f8",
          .service_account = "runner",
          .labels = {{"app.kubernetes.io/name", "infer"}, {"tier", "Prod"}, {"empty", ""}},
          .claims = {"own", "shared"}};
}

std::shared_ptr<const KnownPods> Known(const std::vector<PodFacts>& pods) {
  PodBook book;
  EXPECT_TRUE(book.Set("test", "1", pods).ok());
  return book.known();
}

Rule By(PodFact fact, std::string pattern, std::string tenant = "t", std::string label = "") {
  return {.tenant = std::move(tenant),
          .pod_facts = {{.fact = fact, .label = std::move(label), .pattern = std::move(pattern)}},
          .description = "rule"};
}

bool NoneMade(absl::string_view) { return false; }

absl::StatusOr<TenantMatch> Match(const std::vector<Rule>& rules, const PeerIdentity& peer,
                                  const std::vector<PodFacts>& pods,
                                  absl::string_view wished = "") {
  return MatchTenant(rules, peer, wished, NoneMade, *Known(pods));
}

TEST(PodRulesTest, EachFactIsAskedFor) {
  const auto matches = [](const Rule& rule) {
    return Match({rule, {.tenant = "other"}}, InPod(1), {Infer()})->tenant == "t";
  };
  EXPECT_TRUE(matches(By(PodFact::kNamespace, "team-a")));
  EXPECT_TRUE(matches(By(PodFact::kNamespace, "team-*")));
  EXPECT_FALSE(matches(By(PodFact::kNamespace, "team")));
  EXPECT_TRUE(matches(By(PodFact::kName, "infer-*")));
  EXPECT_FALSE(matches(By(PodFact::kName, "train-*")));
  EXPECT_TRUE(matches(By(PodFact::kServiceAccount, "runner")));
  EXPECT_FALSE(matches(By(PodFact::kServiceAccount, "default")));
  EXPECT_TRUE(matches(By(PodFact::kClaim, "shared")));
  EXPECT_TRUE(matches(By(PodFact::kClaim, "o*")));
  EXPECT_FALSE(matches(By(PodFact::kClaim, "others")));
  EXPECT_TRUE(matches(By(PodFact::kLabel, "Prod", "t", "tier")));
  EXPECT_FALSE(matches(By(PodFact::kLabel, "prod", "t", "tier")));
  EXPECT_TRUE(matches(By(PodFact::kLabel, "*", "t", "empty")));
  EXPECT_FALSE(matches(By(PodFact::kLabel, "*", "t", "absent")));
}

TEST(PodRulesTest, ProcessesOutsideOfPodsAreNotAsked) {
  const std::vector<Rule> rules = {By(PodFact::kNamespace, "*"), {.tenant = "other"}};
  const PeerIdentity outside = In("0::/user.slice/user-1000.slice/session-3.scope\n");
  EXPECT_EQ(Match(rules, outside, {})->tenant, "other");
  EXPECT_EQ(Match(rules, outside, {Infer()})->passed.at(0).condition, "namespace");
}

TEST(PodRulesTest, TenantsMadeOfFacts) {
  const auto tenant = [](std::string text) {
    Rule rule = By(PodFact::kServiceAccount, "*", std::move(text));
    for (const char* label : {"tier", "app.kubernetes.io/name"}) {
      rule.pod_facts.push_back({.fact = PodFact::kLabel, .label = label, .pattern = "*"});
    }
    return Match({rule}, InPod(1), {Infer()})->tenant;
  };
  EXPECT_EQ(tenant("ns-{namespace}"), "ns-team-a");
  EXPECT_EQ(tenant("{namespace}.{service_account}"), "team-a.runner");
  EXPECT_EQ(tenant("{pod_name}-{uid}"), "infer-5d4f8-1000");
  EXPECT_EQ(tenant("{namespace}.{label:tier}"), "team-a.Prod");
  EXPECT_EQ(tenant("{label:app.kubernetes.io/name}_{label:tier}"), "infer_Prod");
  EXPECT_EQ(tenant("pod-{pod}"), absl::StrCat("pod-", UidOf(1)));
  // Values are not read for placeholders.
  EXPECT_EQ(LabelsIn("{label:a}-{label:b/c}{label:a}-{label:"),
            (std::vector<std::string>{"a", "b/c"}));
}

TEST(PodRulesTest, AnEmptyLabelNamesNoTenant) {
  const Rule rule = By(PodFact::kLabel, "*", "{label:empty}", "empty");
  EXPECT_EQ(Match({rule, {.tenant = "other"}}, InPod(1), {Infer()})->tenant, "other");
  const PodFacts pod = Infer();
  EXPECT_EQ(TenantOf({.tenant = "x{label:absent}"}, InPod(1), &pod), "x");
}

TEST(PodRulesTest, EveryPlaceholderHasAValueWhereItsConditionHolds) {
  const PeerIdentity peer =
      In(absl::StrCat("4:memory:/slurm/uid_1000/job_42/step_0\n3:pids:/kubepods/burstable/pod",
                      UidOf(1), "/", std::string(64, 'a'), "\n0::/a.slice/b.service\n"));
  const PodFacts pod = Infer();
  for (const Placeholder& placeholder : Placeholders()) {
    const Rule rule{.tenant = std::string(placeholder.text),
                    .facts = {{CgroupFact::kSlice, "*"}},
                    .user = "alice",
                    .group = "staff"};
    const std::string tenant = TenantOf(rule, peer, &pod);
    EXPECT_NE(tenant, "") << placeholder.text;
    EXPECT_EQ(tenant.find_first_of("{}_"), std::string::npos) << placeholder.text << ": " << tenant;
    // The condition of the same name is the first, and none is there twice.
    const std::set<absl::string_view> conditions(placeholder.conditions.begin(),
                                                 placeholder.conditions.end());
    EXPECT_EQ(conditions.size(), placeholder.conditions.size()) << placeholder.text;
    if (placeholder.text == "{uid}") continue;
    EXPECT_EQ(placeholder.text, absl::StrCat("{", placeholder.conditions.at(0), "}"));
  }
}

// --- Pods that have not been described yet ----------------------------------------------

TEST(PodRulesTest, NothingIsDecidedBeforeThePodIsDescribed) {
  const std::vector<Rule> rules = {
      {.tenant = "first", .gid = 5},
      By(PodFact::kLabel, "prod", "prod", "tier"),
      {.tenant = "rich", .gid = 100},
      {.tenant = "user-{uid}"},
  };
  for (const char* wished : {"", "rich", "user-1000", "prod"}) {
    const absl::Status status = Match(rules, InPod(1), {Infer(2)}, wished).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << wished << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(UidOf(1)));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rule 2 asks for a fact (label)"));
  }
  EXPECT_EQ(Match(rules, InPod(1), {Infer()})->tenant, "rich");
  // An earlier rule decides.
  EXPECT_EQ(Match({{.tenant = "first"}, rules[1]}, InPod(1), {})->tenant, "first");
  // Another condition of the rule certainly fails.
  Rule of_others = rules[1];
  of_others.uid = 1001;
  EXPECT_EQ(Match({of_others, rules[2]}, InPod(1), {})->tenant, "rich");
  Rule elsewhere = rules[1];
  elsewhere.facts.push_back({CgroupFact::kQos, "guaranteed"});
  EXPECT_EQ(Match({elsewhere, rules[2]}, InPod(1), {})->tenant, "rich");
}

TEST(PodRulesTest, AnAmbiguousPodIsBilledByUid) {
  const std::vector<Rule> rules = {
      By(PodFact::kNamespace, "team-a"), {.tenant = "rich", .gid = 100}, {.tenant = "user-{uid}"}};
  PodFacts other = Infer(2);
  for (const std::vector<PodFacts>& pods :
       std::vector<std::vector<PodFacts>>{{}, {Infer(1)}, {Infer(1), other}}) {
    EXPECT_EQ(Match(rules, InPods(1, 2), pods)->tenant, "user-1000");
  }
  // Neither of the two is of that namespace.
  PodFacts third = Infer(1);
  other.name_space = third.name_space = "team-b";
  EXPECT_EQ(Match(rules, InPods(1, 2), {other, third})->tenant, "rich");
  // After an ambiguous rule nothing waits for a description.
  const std::vector<Rule> after = {{.tenant = "x", .facts = {{CgroupFact::kPod, "*"}}},
                                   By(PodFact::kNamespace, "*"),
                                   {.tenant = "user-{uid}"}};
  EXPECT_EQ(Match(after, InPods(1, 2), {})->tenant, "user-1000");
}

// The pod is clear, and the job is not. A pod chooses its uids, so {uid} does not help.
TEST(PodRulesTest, AfterAnAmbiguousJobAPodCountsForNothing) {
  const PeerIdentity peer =
      In(absl::StrCat("4:memory:/slurm/uid_1/job_42\n3:pids:/slurm/uid_1/job_43\n"
                      "2:cpu:/kubepods/burstable/pod",
                      UidOf(1), "\n"));
  const std::vector<Rule> rules = {{.tenant = "job", .facts = {{CgroupFact::kSlurmJob, "*"}}},
                                   By(PodFact::kNamespace, "*", "ns-{uid}"),
                                   {.tenant = "user-{uid}"}};
  EXPECT_EQ(Match({rules[1]}, peer, {Infer()})->tenant, "ns-1000");
  EXPECT_EQ(Match(rules, peer, {Infer()})->tenant, "user-1000");
  EXPECT_EQ(Match(rules, peer, {})->tenant, "user-1000") << "no description is waited for";
}

TEST(PodRulesTest, AnUnknownCgroupIsBilledByUid) {
  PeerIdentity peer = InPod(1);
  peer.cgroup = Cgroup::Unknown("/proc/4711/cgroup cannot be read");
  EXPECT_EQ(Match({By(PodFact::kNamespace, "*"), {.tenant = "rich"}}, peer, {Infer()})->tenant,
            "user-1000");
}

TEST(PodRulesTest, TheFactsAreKeptWithTheMatch) {
  const auto match = Match({{.tenant = "all"}}, InPod(1), {Infer()});
  ASSERT_NE(match->pod, nullptr);
  EXPECT_EQ(*match->pod, Infer());
  EXPECT_EQ(Match({{.tenant = "all"}}, InPod(2), {Infer()})->pod, nullptr);
}

TEST(PodRulesTest, AMadeTenantOfAPod) {
  Rule rule = By(PodFact::kNamespace, "*", "ns-{namespace}");
  rule.made = true;
  const auto match = [&](absl::string_view made) {
    return MatchTenant(
               {rule, {.tenant = "other"}}, InPod(1), "",
               [made](absl::string_view tenant) { return tenant == made; }, *Known({Infer()}))
        ->tenant;
  };
  EXPECT_EQ(match("ns-team-a"), "ns-team-a");
  EXPECT_EQ(match("ns-team-b"), "other");
}

// --- Random rules and facts, against a model ---------------------------------------------

// A model of one rule: for each fact the value that it asks for, or "*".
struct Wanted {
  std::map<std::string, std::string> values;
};

// What a pod says; without the fact it has no such key.
using Said = std::map<std::string, std::string>;

bool HoldsInModel(const Wanted& rule, const Said& said) {
  for (const auto& [fact, value] : rule.values) {
    const auto found = said.find(fact);
    if (found == said.end() || (value != "*" && value != found->second)) return false;
  }
  return true;
}

TEST(PodRulesTest, RandomRulesAndFacts) {
  std::mt19937_64 random(23);
  const auto value = [&] { return std::string(1, static_cast<char>('a' + random() % 3)); };
  const std::vector<std::pair<std::string, PodCondition>> facts = {
      {"namespace", {.fact = PodFact::kNamespace}},
      {"pod_name", {.fact = PodFact::kName}},
      {"service_account", {.fact = PodFact::kServiceAccount}},
      {"claim", {.fact = PodFact::kClaim}},
      {"label:x", {.fact = PodFact::kLabel, .label = "x"}},
      {"label:y", {.fact = PodFact::kLabel, .label = "y"}}};
  int undecided = 0, decided = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<Wanted> model(1 + random() % 4);
    std::vector<Rule> rules;
    for (Wanted& wanted : model) {
      Rule rule = {.tenant = absl::StrCat("rule-", rules.size())};
      for (const auto& [name, condition] : facts) {
        if (random() % 3 != 0) continue;
        wanted.values[name] = random() % 4 == 0 ? "*" : value();
        rule.pod_facts.push_back(condition);
        rule.pod_facts.back().pattern = wanted.values[name];
      }
      rules.push_back(std::move(rule));
    }
    const bool in_pod = random() % 8 != 0;
    const bool described = random() % 4 != 0;
    Said said;
    for (const auto& [name, condition] : facts) {
      const bool always = name == "namespace" || name == "pod_name";
      if (always || random() % 2 == 0) said[name] = value();
    }
    PodFacts pod = {.uid = UidOf(1), .name_space = said["namespace"], .name = said["pod_name"]};
    if (said.count("service_account") > 0) pod.service_account = said["service_account"];
    if (said.count("claim") > 0) pod.claims = {said["claim"]};
    for (const char* label : {"x", "y"}) {
      const auto found = said.find(absl::StrCat("label:", label));
      if (found != said.end()) pod.labels[label] = found->second;
    }
    std::string wanted = "refused";
    for (size_t i = 0; i < model.size() && wanted == "refused"; ++i) {
      if (model[i].values.empty() || (in_pod && described && HoldsInModel(model[i], said))) {
        wanted = rules[i].tenant;
      } else if (in_pod && !described) {
        wanted = "undecided";
      }
    }
    const PeerIdentity peer = in_pod ? InPod(1) : In("0::/a.service\n");
    const auto match = Match(rules, peer, described ? std::vector{pod} : std::vector<PodFacts>());
    const std::string got = match.ok()                            ? match->tenant
                            : absl::IsUnavailable(match.status()) ? "undecided"
                                                                  : "refused";
    ASSERT_EQ(got, wanted);
    undecided += got == "undecided" ? 1 : 0;
    decided += match.ok() ? 1 : 0;
  }
  EXPECT_GT(undecided, 1000);
  EXPECT_GT(decided, 1000);
}

}  // namespace pod_rules_test
}  // namespace gpumemd
