// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

v1::CgroupFact Fact(const std::string& name, const std::string& value) {
  v1::CgroupFact fact;
  fact.set_name(name);
  fact.add_values(value);
  return fact;
}

TEST(WhoAmIViewTest, ShowsAllThatIsKnown) {
  v1::WhoAmIResponse response;
  response.set_tenant("job-42");
  response.add_path("lab");
  response.add_path("job-42");
  response.set_rule("rule 3 (slurm_job = *)");
  v1::PassedRule& one = *response.add_passed();
  one.set_number(1);
  one.set_condition("gid");
  v1::PassedRule& two = *response.add_passed();
  two.set_number(2);
  two.set_condition("tenant");
  v1::Identity& identity = *response.mutable_identity();
  identity.set_pid(4711);
  identity.set_uid(1000);
  identity.set_gid(100);
  identity.add_groups(24);
  identity.add_groups(27);
  identity.set_cgroup("/system.slice/slurmstepd.scope/job_42/step_0");
  *identity.add_facts() = Fact("unit", "slurmstepd.scope");
  *identity.add_facts() = Fact("slice", "a.slice");
  identity.mutable_facts(1)->add_values("a-b\x1b.slice");
  *identity.add_facts() = Fact("slurm_job", "42");
  EXPECT_EQ(WhoAmIView(response, "gpumemd 1 at /run"),
            "tenant      job-42\n"
            "path        lab / job-42\n"
            "by          rule 3 (slurm_job = *)\n"
            "daemon      gpumemd 1 at /run\n"
            "\n"
            "pid         4711\n"
            "uid         1000\n"
            "gid         100\n"
            "groups      24, 27\n"
            "cgroup      /system.slice/slurmstepd.scope/job_42/step_0\n"
            "unit        slurmstepd.scope\n"
            "slice       a.slice / a-b?.slice\n"
            "user        -\n"
            "container   -\n"
            "pod         -\n"
            "qos         -\n"
            "slurm_job   42\n"
            "slurm_step  -\n"
            "\n"
            "rule 1      does not match (gid)\n"
            "rule 2      matches, but names another tenant\n");
}

TEST(WhoAmIViewTest, ShowsTheFactsOfItsPod) {
  v1::WhoAmIResponse response;
  v1::PodFacts& pod = *response.mutable_identity()->mutable_described_pod();
  pod.set_namespace_("team");
  pod.set_name("infer-0");
  pod.add_claims("own");
  pod.add_claims("shared");
  for (const char* key : {"app.kubernetes.io/name", "empty"}) pod.add_labels()->set_key(key);
  pod.mutable_labels(0)->set_value("infer");
  const std::string view = WhoAmIView(response, "d");
  EXPECT_NE(view.find("\nnamespace                     team\n"
                      "pod_name                      infer-0\n"
                      "service_account               -\n"
                      "claim                         own, shared\n"
                      "label:app.kubernetes.io/name  infer\n"
                      "label:empty                   -\n"),
            std::string::npos)
      << view;
}

TEST(WhoAmIViewTest, ShowsWhatIsAmbiguousOrUnknown) {
  v1::WhoAmIResponse response;
  response.add_path("t");
  v1::PassedRule& one = *response.add_passed();
  one.set_number(1);
  one.set_condition("slurm_job");
  one.set_ambiguous(true);
  v1::PassedRule& two = *response.add_passed();
  two.set_number(2);
  two.set_condition("tenant");
  two.set_ambiguous(true);
  v1::CgroupFact& job = *response.mutable_identity()->add_facts();
  job.set_name("slurm_job");
  job.set_ambiguity("v1 memory says 42, v1 pids says 43");
  std::string view = WhoAmIView(response, "d");
  EXPECT_NE(view.find("\nslurm_job   ambiguous: v1 memory says 42, v1 pids says 43\n"),
            std::string::npos);
  EXPECT_NE(view.find("\nrule 1      undecided: what it asks for (slurm_job) is ambiguous or "
                      "unknown\nrule 2      does not count where the cgroup is ambiguous: it is "
                      "not by uid\n"),
            std::string::npos);
  EXPECT_EQ(view.find("path"), std::string::npos);

  response.mutable_identity()->set_cgroup_unknown("its group is gone");
  view = WhoAmIView(response, "d");
  EXPECT_NE(view.find("\ncgroup      unknown: its group is gone\nunit        -\n"),
            std::string::npos);
}

}  // namespace
}  // namespace gpumem::cli
