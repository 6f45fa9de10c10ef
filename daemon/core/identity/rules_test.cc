// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/identity/rules.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace rules_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PeerIdentity Alice() {
  return {.pid = 4711,
          .uid = 1000,
          .gid = 100,
          .groups = {24, 27},
          .cgroup = Cgroup::Parse("0::/user.slice/user-1000.slice/session-3.scope\n")};
}

TEST(RulesTest, WithoutConditionsItMatchesAll) {
  EXPECT_TRUE(Matches({.tenant = "all"}, Alice()));
  EXPECT_TRUE(Matches({.tenant = "all"}, PeerIdentity{}));
}

TEST(RulesTest, Uid) {
  EXPECT_TRUE(Matches({.uid = 1000}, Alice()));
  EXPECT_FALSE(Matches({.uid = 1001}, Alice()));
  EXPECT_FALSE(Matches({.uid = 0}, Alice()));
}

TEST(RulesTest, GidIsThePrimaryOneOrASupplementaryOne) {
  EXPECT_TRUE(Matches({.gid = 100}, Alice()));
  EXPECT_TRUE(Matches({.gid = 24}, Alice()));
  EXPECT_TRUE(Matches({.gid = 27}, Alice()));
  EXPECT_FALSE(Matches({.gid = 25}, Alice()));
  EXPECT_FALSE(Matches({.gid = 1000}, Alice()));  // a uid is no gid
}

TEST(RulesTest, Cgroup) {
  EXPECT_TRUE(Matches({.cgroup = "/user.slice/user-1000.slice/session-3.scope"}, Alice()));
  EXPECT_TRUE(Matches({.cgroup = "/user.slice/*"}, Alice()));  // '*' matches '/' too
  EXPECT_TRUE(Matches({.cgroup = "*/session-[0-9].scope"}, Alice()));
  EXPECT_FALSE(Matches({.cgroup = "/user.slice"}, Alice()));  // the whole path, not a part
  EXPECT_FALSE(Matches({.cgroup = "user.slice/*"}, Alice()));
  EXPECT_FALSE(Matches({.cgroup = "/system.slice/*"}, Alice()));
}

TEST(RulesTest, AnUnknownCgroupMatchesNoPattern) {
  PeerIdentity peer = Alice();
  peer.cgroup = Cgroup();
  EXPECT_FALSE(Matches({.cgroup = "*"}, peer));
  EXPECT_FALSE(Matches({.cgroup = ""}, peer));
  EXPECT_TRUE(Matches({.uid = 1000}, peer));
}

TEST(RulesTest, EveryConditionHasToHold) {
  for (const bool uid : {true, false}) {
    for (const bool gid : {true, false}) {
      for (const bool cgroup : {true, false}) {
        const Rule rule{.uid = uid ? 1000 : 1,
                        .gid = gid ? 24 : 1,
                        .cgroup = cgroup ? "/user.slice/*" : "/system.slice/*"};
        EXPECT_EQ(Matches(rule, Alice()), uid && gid && cgroup);
      }
    }
  }
}

TEST(RulesTest, TheFirstThatMatchesDecides) {
  const std::vector<Rule> rules = {
      {.tenant = "root", .uid = 0, .description = "rule 1 (user = root)"},
      {.tenant = "staff", .gid = 27, .description = "rule 2 (group = staff)"},
      {.tenant = "alice", .uid = 1000, .description = "rule 3 (user = alice)"},
  };
  const auto match = MatchTenant(rules, Alice(), "");
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->tenant, "staff");
  EXPECT_EQ(match->rule, "rule 2 (group = staff)");
}

TEST(RulesTest, ATemplateStandsForThePeersUid) {
  const std::vector<Rule> rules = {{.tenant = "uid-{uid}/{uid}", .description = "default"}};
  EXPECT_EQ(MatchTenant(rules, Alice(), "")->tenant, "uid-1000/1000");
  EXPECT_EQ(MatchTenant(rules, Alice(), "uid-1000/1000")->tenant, "uid-1000/1000");
  EXPECT_TRUE(absl::IsPermissionDenied(MatchTenant(rules, Alice(), "uid-1001/1001").status()));
  // The template is no name.
  EXPECT_TRUE(absl::IsPermissionDenied(MatchTenant(rules, Alice(), "uid-{uid}/{uid}").status()));
}

TEST(RulesTest, AWishedTenantIsHadWhereAMatchingRuleNamesIt) {
  const std::vector<Rule> rules = {
      {.tenant = "staff", .gid = 27, .description = "rule 1"},
      {.tenant = "secret", .uid = 0, .description = "rule 2"},
      {.tenant = "alice", .uid = 1000, .description = "rule 3"},
  };
  const auto match = MatchTenant(rules, Alice(), "alice");
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->tenant, "alice");
  EXPECT_EQ(match->rule, "rule 3");

  const absl::Status refused = MatchTenant(rules, Alice(), "secret").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(refused.message(),
            "no rule lets process 4711 (uid 1000, gid 100, cgroup "
            "/user.slice/user-1000.slice/session-3.scope) be tenant \"secret\"; the rules allow "
            "it: staff, alice");
}

TEST(RulesTest, WhomNoRuleMatchesIsToldSo) {
  PeerIdentity peer = Alice();
  peer.cgroup = Cgroup();
  const std::vector<Rule> rules = {{.tenant = "root", .uid = 0}};
  for (const char* wished : {"", "root"}) {
    const absl::Status refused = MatchTenant(rules, peer, wished).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
    // The same whatever was wished: it tells no names of tenants.
    EXPECT_EQ(refused.message(),
              "no rule of the daemon's configuration matches process 4711 (uid 1000, gid 100, "
              "cgroup unknown: it has not been read); ask the operator for a [[rule]] that does");
  }
  EXPECT_TRUE(absl::IsPermissionDenied(MatchTenant({}, peer, "").status()));
}

// --- Cgroup facts ----------------------------------------------------------------------

constexpr char kId[] = "3f2a9c0d7b1e4f5a6c8d9e0f1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d";
constexpr char kPodUid[] = "099b88fb-2a99-45ad-af94-d91eb81a87e9";

PeerIdentity In(absl::string_view proc_pid_cgroup) {
  return {.pid = 4711, .uid = 1000, .gid = 100, .cgroup = Cgroup::Parse(proc_pid_cgroup)};
}

PeerIdentity InPod() {
  return In(absl::StrCat("0::/kubepods/burstable/pod", kPodUid, "/", kId, "\n"));
}

Rule WithFact(CgroupFact fact, std::string pattern, std::string tenant = "t") {
  return {.tenant = std::move(tenant), .facts = {{fact, std::move(pattern)}}};
}

TEST(RulesTest, FactsOfTheCgroup) {
  const PeerIdentity infer = In("0::/system.slice/system-infer.slice/infer@3.service\n");
  EXPECT_TRUE(Matches(WithFact(CgroupFact::kUnit, "infer@3.service"), infer));
  EXPECT_TRUE(Matches(WithFact(CgroupFact::kUnit, "infer@*"), infer));
  EXPECT_FALSE(Matches(WithFact(CgroupFact::kUnit, "infer@4.service"), infer));
  for (const char* slice : {"system.slice", "system-infer.slice", "*-infer.slice"}) {
    EXPECT_TRUE(Matches(WithFact(CgroupFact::kSlice, slice), infer)) << slice;
  }
  EXPECT_FALSE(Matches(WithFact(CgroupFact::kSlice, "user.slice"), infer));

  EXPECT_TRUE(Matches(WithFact(CgroupFact::kContainer, "3f2a*"), InPod()));
  EXPECT_TRUE(Matches(WithFact(CgroupFact::kPod, kPodUid), InPod()));
  EXPECT_TRUE(Matches(WithFact(CgroupFact::kQos, "burstable"), InPod()));
  EXPECT_FALSE(Matches(WithFact(CgroupFact::kQos, "guaranteed"), InPod()));

  const PeerIdentity job = In("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n");
  EXPECT_TRUE(Matches(WithFact(CgroupFact::kSlurmJob, "42"), job));
  EXPECT_FALSE(Matches(WithFact(CgroupFact::kSlurmJob, "4"), job));
  EXPECT_TRUE(Matches(WithFact(CgroupFact::kSlurmStep, "0"), job));
  EXPECT_FALSE(Matches(WithFact(CgroupFact::kSlurmStep, "batch"), job));
}

TEST(RulesTest, AFactThatIsNotThereMatchesNoPattern) {
  for (CgroupFact fact : {CgroupFact::kContainer, CgroupFact::kPod, CgroupFact::kQos,
                          CgroupFact::kSlurmJob, CgroupFact::kSlurmStep}) {
    EXPECT_FALSE(Matches(WithFact(fact, "*"), Alice())) << NameOf(fact);
  }
}

TEST(RulesTest, BackslashesOfUnitsStandForThemselves) {
  EXPECT_TRUE(Matches(WithFact(CgroupFact::kUnit, "mnt-a\\x2db.service"),
                      In("0::/system.slice/mnt-a\\x2db.service\n")));
}

TEST(RulesTest, TenantsMadeOfFacts) {
  const auto tenant = [](const char* text, CgroupFact fact, const PeerIdentity& peer) {
    return MatchTenant({WithFact(fact, "*", text)}, peer, "")->tenant;
  };
  EXPECT_EQ(tenant("pod-{pod}", CgroupFact::kPod, InPod()), absl::StrCat("pod-", kPodUid));
  EXPECT_EQ(tenant("{qos}-{uid}", CgroupFact::kPod, InPod()), "burstable-1000");
  const PeerIdentity job = In("4:memory:/slurm/uid_1000/job_42/step_batch\n");
  EXPECT_EQ(tenant("job-{slurm_job}", CgroupFact::kSlurmJob, job), "job-42");
  EXPECT_EQ(tenant("{slurm_job}.{slurm_step}", CgroupFact::kSlurmStep, job), "42.batch");
  // The innermost slice that the rule asks for.
  const PeerIdentity infer = In("0::/a.slice/a-b.slice/a-b-c.slice/infer@3.service\n");
  EXPECT_EQ(TenantOf(WithFact(CgroupFact::kSlice, "a*", "{slice}"), infer), "a-b-c.slice");
  EXPECT_EQ(TenantOf(WithFact(CgroupFact::kSlice, "a-?.slice", "{slice}"), infer), "a-b.slice");
  // Characters that are not allowed in a tenant's name.
  EXPECT_EQ(tenant("{unit}", CgroupFact::kUnit, infer), "infer_3.service");
  EXPECT_EQ(TenantOf({.tenant = "{user}-{group}", .user = "al ice", .group = "{uid}"}, infer),
            "al_ice-_uid_");
}

TEST(RulesTest, LongTenantsAreCutAndStayApart) {
  const std::string same(70, 'x');
  const auto unit = [&](const std::string& name) {
    return TenantOf(WithFact(CgroupFact::kUnit, "*", "{unit}"),
                    In(absl::StrCat("0::/system.slice/", name, ".service\n")));
  };
  const std::string one = unit(same + "1");
  EXPECT_EQ(one.size(), 63u);
  EXPECT_EQ(one, unit(same + "1"));
  EXPECT_NE(one, unit(same + "2"));
  // Also if only characters that become '_' differ.
  EXPECT_NE(unit(same + "@a"), unit(same + ":a"));
  EXPECT_EQ(one.find_first_not_of("x-0123456789abcdef"), std::string::npos) << one;
  // Later runs of the daemon need the same hash: changing it renames tenants.
  EXPECT_EQ(one, std::string(46, 'x') + "-4cc4e261d4355215");
  EXPECT_EQ(unit(std::string(55, 'y')).size(), 63u);
  EXPECT_EQ(unit(std::string(55, 'y')), std::string(55, 'y') + ".service");
}

// --- Ambiguous cgroups -----------------------------------------------------------------

const char kTwoJobs[] = "4:memory:/slurm/uid_1000/job_42\n3:pids:/slurm/uid_1000/job_43\n";

std::vector<Rule> JobsThenStaffThenAll() {
  return {
      {.tenant = "job-{slurm_job}",
       .facts = {{CgroupFact::kSlurmJob, "*"}},
       .description = "rule 1 (slurm_job = *)"},
      {.tenant = "rich", .gid = 100, .description = "rule 2 (group = rich)"},
      {.tenant = "unit", .facts = {{CgroupFact::kUnit, "*"}}, .description = "rule 3 (unit = *)"},
      {.tenant = "alice", .uid = 1000, .description = "rule 4 (user = alice)"},
      {.tenant = "all", .description = "rule 5 (default)"},
  };
}

TEST(RulesTest, WhatIsAmbiguousIsBilledByUid) {
  std::vector<Rule> rules = JobsThenStaffThenAll();
  // Not "rich", which a process in one job would not get either.
  const auto match = MatchTenant(rules, In(kTwoJobs), "");
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->tenant, "alice");
  EXPECT_EQ(match->rule,
            "rule 4 (user = alice); the cgroup is ambiguous (v1 memory says 42, v1 pids says 43): "
            "billed by uid");
  EXPECT_EQ(match->rule_number, 4u);
  // A template with the uid serves as well.
  rules[3] = {.tenant = "u{uid}", .description = "rule 4 (default)"};
  EXPECT_EQ(MatchTenant(rules, In(kTwoJobs), "")->tenant, "u1000");
  // Without either: the built-in tenant of each user.
  rules[3] = {.tenant = "bob", .uid = 1001, .description = "rule 4 (user = bob)"};
  const auto built_in = MatchTenant(rules, In(kTwoJobs), "");
  ASSERT_TRUE(built_in.ok()) << built_in.status();
  EXPECT_EQ(built_in->tenant, "user-1000");
  EXPECT_EQ(built_in->rule_number, 0u);
  EXPECT_EQ(built_in->rule,
            "built-in rule (a tenant for each user); the cgroup is ambiguous (v1 memory says 42, "
            "v1 pids says 43): billed by uid");
}

TEST(RulesTest, WhatIsUnknownIsBilledByUid) {
  PeerIdentity peer = In("0::/../../system.slice/a.service\n");
  EXPECT_EQ(MatchTenant(JobsThenStaffThenAll(), peer, "")->rule,
            "rule 4 (user = alice); the cgroup is unknown (its group is outside of the daemon's "
            "cgroup namespace): billed by uid");
  peer.cgroup = Cgroup::Unknown("/proc/4711/cgroup cannot be read");
  EXPECT_EQ(MatchTenant(JobsThenStaffThenAll(), peer, "")->tenant, "alice");
  EXPECT_EQ(MatchTenant({{.tenant = "x", .cgroup = "*"}, {.tenant = "all"}}, peer, "")->tenant,
            "user-1000");
}

TEST(RulesTest, AmbiguityCountsWhereARuleAsksForItAlone) {
  const std::vector<Rule> rules = JobsThenStaffThenAll();
  // An earlier rule decides.
  EXPECT_EQ(MatchTenant({{.tenant = "first", .gid = 100}, rules[0]}, In(kTwoJobs), "")->tenant,
            "first");
  // Its other conditions do not hold.
  Rule of_others = rules[0];
  of_others.uid = 1001;
  EXPECT_EQ(MatchTenant({of_others, rules[1]}, In(kTwoJobs), "")->tenant, "rich");
  Rule in_pods = rules[0];
  in_pods.facts.push_back({CgroupFact::kPod, "*"});
  EXPECT_EQ(MatchTenant({in_pods, rules[1]}, In(kTwoJobs), "")->tenant, "rich");
  // It names neither of the two jobs.
  Rule another_job = rules[0];
  another_job.facts[0].pattern = "44";
  EXPECT_EQ(MatchTenant({another_job, rules[1]}, In(kTwoJobs), "")->tenant, "rich");
  // It asks for an unambiguous fact: the jobs are of one unit.
  const PeerIdentity one_unit =
      In("4:memory:/system.slice/slurmstepd.scope/job_42\n3:pids:/system.slice/slurmstepd.scope/"
         "job_43\n");
  EXPECT_EQ(MatchTenant({rules[2]}, one_unit, "")->tenant, "unit");
  // But not after a rule that asked for an ambiguous fact.
  EXPECT_EQ(MatchTenant({rules[0], rules[2]}, one_unit, "")->tenant, "user-1000");
}

TEST(RulesTest, AWishOpensNoDoorWhereItIsAmbiguous) {
  const std::vector<Rule> rules = JobsThenStaffThenAll();
  EXPECT_EQ(MatchTenant(rules, In(kTwoJobs), "alice")->tenant, "alice");
  for (const char* wished : {"rich", "all", "unit", "job-42", "job-43", "job-", "user-1000"}) {
    const absl::Status refused = MatchTenant(rules, In(kTwoJobs), wished).status();
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << wished << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("where the cgroup is ambiguous (v1 memory says 42, v1 pids says 43); the "
                          "rules allow it: alice"));
  }
  EXPECT_EQ(MatchTenant({rules[0]}, In(kTwoJobs), "user-1000")->tenant, "user-1000");
  EXPECT_TRUE(absl::IsPermissionDenied(MatchTenant({rules[0]}, In(kTwoJobs), "rich").status()));
}

// One path is inside the other, so the path is clear, and the user is not.
TEST(RulesTest, AfterWhatIsAmbiguousAPathCountsForNothing) {
  const PeerIdentity peer =
      In("4:memory:/user.slice/user-1.slice\n3:pids:/user.slice/user-1.slice/user-2.slice\n");
  const std::vector<Rule> rules = {WithFact(CgroupFact::kUser, "*"),
                                   {.tenant = "rich", .uid = 1000, .cgroup = "/user.slice/*"}};
  EXPECT_EQ(MatchTenant({rules[1]}, peer, "")->tenant, "rich");
  EXPECT_EQ(MatchTenant(rules, peer, "")->tenant, "user-1000");
}

TEST(RulesTest, ARuleForMadeTenantsCountsWhileThereIsOne) {
  const std::vector<Rule> rules = {
      {.tenant = "job-{slurm_job}", .facts = {{CgroupFact::kSlurmJob, "*"}}, .made = true},
      {.tenant = "user-{uid}"}};
  const PeerIdentity peer = In("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n");
  const auto match = [&](absl::string_view wished, absl::string_view made) {
    return MatchTenant(rules, peer, wished,
                       [made](absl::string_view tenant) { return tenant == made; });
  };
  EXPECT_EQ(match("", "job-42")->tenant, "job-42");
  EXPECT_EQ(match("", "job-43")->tenant, "user-1000");
  EXPECT_EQ(match("user-1000", "job-42")->tenant, "user-1000");
  // Nothing is gained by asking for one that there is not, or for another's.
  EXPECT_TRUE(absl::IsPermissionDenied(match("job-42", "job-43").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(match("job-43", "job-43").status()));
  EXPECT_EQ(match("", "job-43")->passed.at(0).condition, "made");
  EXPECT_EQ(MatchTenant(rules, peer, "")->tenant, "user-1000") << "none is made";
}

TEST(RulesTest, TellsWhatItPassedOver) {
  const auto passed = [](const TenantMatch& match) {
    std::vector<std::string> all;
    for (const PassedRule& rule : match.passed) {
      all.push_back(absl::StrCat(rule.number, " ", rule.condition, rule.ambiguous ? "?" : ""));
    }
    return all;
  };
  std::vector<Rule> rules = JobsThenStaffThenAll();
  EXPECT_THAT(passed(*MatchTenant(rules, In(kTwoJobs), "")),
              ElementsAre("1 slurm_job?", "2 tenant?", "3 unit"));
  EXPECT_THAT(passed(*MatchTenant(rules, Alice(), "all")),
              ElementsAre("1 slurm_job", "2 tenant", "3 tenant", "4 tenant"));
  rules[1].gid = 5;
  rules[0].uid = 5;
  EXPECT_THAT(passed(*MatchTenant(rules, In("0::/\n"), "")),
              ElementsAre("1 uid", "2 gid", "3 unit"));
  EXPECT_THAT(passed(*MatchTenant({{.tenant = "x", .cgroup = "/x"}, {.tenant = "y"}}, Alice(), "")),
              ElementsAre("1 cgroup"));
}

}  // namespace rules_test
}  // namespace gpumemd
