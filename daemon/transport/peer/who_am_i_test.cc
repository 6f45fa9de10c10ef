// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/who_am_i.h"

#include <gtest/gtest.h>

#include <string>

namespace gpumemd {
namespace {

TEST(WhoAmI, TellsAllOfTheCallerAndOfOtherRulesTheKindAlone) {
  const PeerIdentity peer{
      .pid = 7,
      .uid = 1000,
      .gid = 100,
      .groups = {24, 27},
      .cgroup = Cgroup::Parse("4:memory:/slurm/uid_1/job_42/step_0\n"
                              "3:pids:/slurm/uid_1/job_42/step_1\n2:cpu:/\n"
                              "1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n")};
  const TenantMatch match{.tenant = "job-42",
                          .rule = "rule 3 (slurm_job = *)",
                          .rule_number = 3,
                          .passed = {{1, "gid"}, {2, "slurm_step", true}}};
  EXPECT_EQ(ToProto(peer, match).ShortDebugString(),
            "tenant: \"job-42\" rule: \"rule 3 (slurm_job = *)\" rule_number: 3 "
            "passed { number: 1 condition: \"gid\" } "
            "passed { number: 2 condition: \"slurm_step\" ambiguous: true } "
            "identity { pid: 7 uid: 1000 gid: 100 groups: 24 groups: 27 "
            "facts { name: \"cgroup\" ambiguity: \"v1 memory says /slurm/uid_1/job_42/step_0, "
            "v1 pids says /slurm/uid_1/job_42/step_1, "
            "v1 name=systemd says /user.slice/user-1000.slice/session-3.scope\" } "
            "facts { name: \"unit\" values: \"session-3.scope\" } "
            "facts { name: \"slice\" values: \"user.slice\" values: \"user-1000.slice\" } "
            "facts { name: \"user\" values: \"1000\" } "
            "facts { name: \"slurm_job\" values: \"42\" } "
            "facts { name: \"slurm_step\" "
            "ambiguity: \"v1 memory says 42/0, v1 pids says 42/1\" } }");
}

TEST(WhoAmI, AStrangePathIsStillAText) {
  const PeerIdentity peer{.cgroup = Cgroup::Parse("0::/a\xff\x1b.slice/b\xfe.service\n")};
  const gpumem::v1::WhoAmIResponse answer = ToProto(peer, {});
  EXPECT_EQ(answer.identity().cgroup(), "/a??.slice/b?.service");
  EXPECT_EQ(answer.identity().facts(0).values(0), "b?.service");
  EXPECT_EQ(ToProto({}, {}).identity().cgroup_unknown(), "it has not been read");
}

}  // namespace
}  // namespace gpumemd
