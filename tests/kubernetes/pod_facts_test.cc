// SPDX-License-Identifier: Apache-2.0
// Rules by facts of pods: processes in the control group of a pod, as a kubelet makes it, get the
// tenant that the rules give by namespace, labels and others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/kubernetes/facts/testing/fake_pods_api.h"
#include "gpumem/client.h"
#include "tests/kubernetes/cluster.h"
#include "tests/support/child.h"
#include "tests/support/live_cgroup.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using kubernetes::FakePodsApi;
using testing::Child;
using testing::Cluster;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::Hear;
using testing::LiveCgroup;
using ::testing::StartsWith;

constexpr char kRules[] = R"(
[[rule]]
tenant = "prod"
namespace = "team-a"
"label:tier" = "prod"
[[rule]]
tenant = "claim-{pod_name}"
claim = "shared-*"
[[rule]]
tenant = "ns-{namespace}.{service_account}"
service_account = "*"
[[rule]]
tenant = "rich"
pod = "*"
[[tenant]]
name = "prod"
[[tenant]]
name = "rich"
)";

struct TestFacts {
  std::string name_space = "team-a";
  std::string name = "infer-0";
  std::string account = "runner";
  std::map<std::string, std::string> labels;
  std::string claim;
};

// Of no other test that runs.
std::string UidOf(int number) {
  return absl::StrFormat("%08d-%04d-45ad-af94-d91eb81a87e9", getpid(), number);
}

std::string TextOf(int number, const TestFacts& facts) {
  std::vector<std::string> labels;
  for (const auto& [key, value] : facts.labels) {
    labels.push_back(absl::StrCat("\"", key, "\": \"", value, "\""));
  }
  return absl::StrCat(R"({"metadata": {"name": ")", facts.name, R"(", "namespace": ")",
                      facts.name_space, R"(", "uid": ")", UidOf(number), R"(", "labels": {)",
                      absl::StrJoin(labels, ","), R"(}}, "spec": {"serviceAccountName": ")",
                      facts.account, R"(", "resourceClaims": [{"resourceClaimName": ")",
                      facts.claim, R"("}]}, "status": {"phase": "Running"}})");
}

::v1alpha1::Pod ProtoOf(int number, const TestFacts& facts) {
  ::v1alpha1::Pod pod;
  pod.mutable_metadata()->set_name(facts.name);
  pod.mutable_metadata()->set_namespace_(facts.name_space);
  pod.mutable_metadata()->set_uid(UidOf(number));
  for (const auto& [key, value] : facts.labels) {
    (*pod.mutable_metadata()->mutable_labels())[key] = value;
  }
  pod.mutable_spec()->set_service_account_name(facts.account);
  pod.mutable_spec()->add_resource_claims()->set_resource_claim_name(facts.claim);
  return pod;
}

class PodFactsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::InAUnit()) GTEST_SKIP() << "this test runs in a unit of systemd itself";
    for (int number = 0; number < 2; ++number) {
      auto group = LiveCgroup::Make("", GroupOf(number));
      if (!group.ok()) group = LiveCgroup::Make("pids", GroupOf(number));
      if (!group.ok()) GTEST_SKIP() << group.status().message();
      groups_.push_back(*std::move(group));
    }
    auto cluster = Cluster::Start(kRules);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  void TearDown() override {
    if (cluster_ != nullptr && HasFailure()) {
      std::fputs(cluster_->PluginLog().c_str(), stderr);
      std::fputs(cluster_->daemon().Log().c_str(), stderr);
    }
  }
  // The group of a container in the pod, with the kubelet's driver for systemd.
  static std::string GroupOf(int number) {
    return absl::StrCat("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod",
                        absl::StrReplaceAll(UidOf(number), {{"-", "_"}}), ".slice/cri-containerd-",
                        std::string(64, 'a'), ".scope");
  }
  // Runs this program in the pod's group. It says what it became.
  Child RunInPod(int number, const std::string& role) const {
    return Child::Self({"--role", role, groups_.at(static_cast<size_t>(number))->procs(),
                        cluster_->daemon().runtime_dir()});
  }
  // Returns the tenant of a process in the pod, or the daemon's refusal.
  std::string Ask(int number) const { return Hear(RunInPod(number, "ask").channel()); }
  int TellOnce(const std::string& source) {
    cluster_->SetPluginFlags(
        {"--pod-facts", source, "--pods-socket", cluster_->dir() + "/pods-api.sock"});
    return cluster_->RunPluginOnce();
  }

  std::vector<std::unique_ptr<LiveCgroup>> groups_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(PodFactsTest, TheApiServersFactsNameTheTenant) {
  cluster_->api_server().SetPods({TextOf(0, {.labels = {{"tier", "prod"}}}),
                                  TextOf(1, {.name_space = "team-b", .name = "train-1"})});
  // A later rule would give it more.
  EXPECT_THAT(Ask(0), StartsWith("UNAVAILABLE: rule 1 asks for a fact (namespace) of pod"));
  ASSERT_EQ(TellOnce("api-server"), 0);
  EXPECT_EQ(Ask(0), "prod");
  EXPECT_EQ(Ask(1), "ns-team-b.runner");
  // Facts are replaced as a whole.
  cluster_->api_server().SetPods(
      {TextOf(0, {.labels = {{"tier", "test"}}}), TextOf(1, {.claim = "shared-gpu"})});
  ASSERT_EQ(TellOnce("api-server"), 0);
  EXPECT_EQ(Ask(0), "ns-team-a.runner");
  EXPECT_EQ(Ask(1), "claim-infer-0");
  cluster_->api_server().SetPods({TextOf(1, {.claim = "shared-gpu"})});
  ASSERT_EQ(TellOnce("api-server"), 0);
  EXPECT_THAT(Ask(0), StartsWith("UNAVAILABLE: "));
  // The list of an earlier run ends.
  ASSERT_EQ(TellOnce("off"), 0);
  EXPECT_THAT(Ask(1), StartsWith("UNAVAILABLE: "));
}

TEST_F(PodFactsTest, TheKubeletsFactsNameTheTenant) {
  FakePodsApi kubelet(cluster_->dir() + "/pods-api.sock");
  kubelet.Set({ProtoOf(0, {.labels = {{"tier", "prod"}}}), ProtoOf(1, {.claim = "shared-gpu"})});
  ASSERT_EQ(TellOnce("kubelet"), 0);
  EXPECT_EQ(Ask(0), "prod");
  EXPECT_EQ(Ask(1), "claim-infer-0");
  // What a process may see of its pod.
  const std::string who = Hear(RunInPod(0, "whoami").channel());
  EXPECT_THAT(who, HasSubstr("namespace: \"team-a\""));
  EXPECT_THAT(who, HasSubstr("key: \"tier\""));
}

TEST_F(PodFactsTest, AutoAsksTheApiServerIfTheKubeletDoesNotAnswer) {
  EXPECT_EQ(TellOnce("auto"), 1);
  EXPECT_THAT(cluster_->PluginLog(), HasSubstr("pods is forbidden; the kubelet: "));
  EXPECT_EQ(TellOnce("kubelet"), 1);
  cluster_->api_server().SetPods({TextOf(0, {.labels = {{"tier", "prod"}}})});
  EXPECT_EQ(TellOnce("auto"), 0);
  EXPECT_EQ(Ask(0), "prod");
  FakePodsApi kubelet(cluster_->dir() + "/pods-api.sock");
  kubelet.Set({ProtoOf(0, {})});
  EXPECT_EQ(TellOnce("auto"), 0);
  EXPECT_EQ(Ask(0), "ns-team-a.runner");
}

// Users choose labels. Too many hide the pod that has them from the rules, and no other.
TEST_F(PodFactsTest, AFloodOfLabelsHidesOnePodAlone) {
  TestFacts flood;
  for (int i = 0; i < 300; ++i) flood.labels[absl::StrCat("l", i)] = "";
  const TestFacts plain = {.name = "plain", .labels = {{"tier", "prod"}}};
  cluster_->api_server().SetPods({TextOf(0, flood), TextOf(1, plain)});
  ASSERT_EQ(TellOnce("api-server"), 0);
  EXPECT_THAT(Ask(0), StartsWith("UNAVAILABLE: "));
  EXPECT_EQ(Ask(1), "prod");
  EXPECT_THAT(cluster_->PluginLog(),
              HasSubstr("pod \"infer-0\" of \"team-a\" is not described: it has too many labels"));
  // A list that makes no sense changes nothing.
  cluster_->api_server().SetPods({TextOf(0, plain), TextOf(1, flood), TextOf(0, plain)});
  EXPECT_EQ(TellOnce("api-server"), 1);
  EXPECT_EQ(Ask(1), "prod");
}

// A client that begins too early is admitted as soon as the pod is described; also after the daemon
// has been killed, and has forgotten all pods.
TEST_F(PodFactsTest, ClientsWaitUntilTheirPodIsDescribed) {
  Child early = RunInPod(0, "connect");
  ASSERT_EQ(Hear(early.channel()), "connects");
  FakePodsApi kubelet(cluster_->dir() + "/pods-api.sock");
  kubelet.Set({ProtoOf(0, {.labels = {{"tier", "prod"}}})});
  cluster_->SetPluginFlags(
      {"--pod-facts", "auto", "--pods-socket", cluster_->dir() + "/pods-api.sock"});
  cluster_->StartPlugin("1h");
  EXPECT_EQ(Hear(early.channel()), "prod");
  ASSERT_TRUE(cluster_->KillDaemon().ok());
  ASSERT_TRUE(cluster_->RunDaemon().ok());
  Child later = RunInPod(0, "connect");
  ASSERT_EQ(Hear(later.channel()), "connects");
  EXPECT_EQ(Hear(later.channel()), "prod");
  // A new pod is told of before the next round.
  Child newer = RunInPod(1, "connect");
  ASSERT_EQ(Hear(newer.channel()), "connects");
  kubelet.Set({ProtoOf(0, {.labels = {{"tier", "prod"}}}), ProtoOf(1, {.name = "new"})});
  cluster_->SetPodsOfKubelet({{1, {}}});
  EXPECT_EQ(Hear(newer.channel()), "ns-team-a.runner");
}

}  // namespace

// Joins the group, asks the daemon and says what it answers.
int RunRole(const std::string& role, const std::string& procs, const std::string& runtime_dir) {
  if (!testing::Join(procs)) return 1;
  if (role == "connect") {
    testing::Say(testing::kParentChannel, "connects");
    auto client = Client::Connect({.runtime_dir = runtime_dir, .timeout = absl::Seconds(50)});
    testing::Say(testing::kParentChannel,
                 client.ok() ? (*client)->tenant() : client.status().ToString());
    return 0;
  }
  testing::WireSession session(runtime_dir + "/session.sock");
  const absl::Status greeted = session.Greet(testing::HelloOf(""));
  std::string words = greeted.ok() ? session.welcome().tenant() : greeted.ToString();
  if (greeted.ok() && role == "whoami") {
    const auto broker = session.TakeBroker();
    const auto who = testing::CallBroker(*broker, &v1::Broker::Stub::WhoAmI, v1::WhoAmIRequest(),
                                         session.token());
    words = who.ok() ? who->identity().described_pod().DebugString() : who.status().ToString();
  }
  testing::Say(testing::kParentChannel, words);
  return 0;
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--role") {
    return gpumem::RunRole(argv[2], argv[3], argv[4]);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
