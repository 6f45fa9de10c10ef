// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/desired.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace gpumem::kubernetes {
namespace desired_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr char kUidA[] = "099b88fb-2a99-45ad-af94-d91eb81a87e9";
constexpr char kUidB[] = "199b88fb-2a99-45ad-af94-d91eb81a87e9";
constexpr char kTenantA[] = "pod-099b88fb-2a99-45ad-af94-d91eb81a87e9";
constexpr char kTenantB[] = "pod-199b88fb-2a99-45ad-af94-d91eb81a87e9";

const std::map<DeviceName, Gpu>& Gpus() {
  static const auto& gpus = *new std::map<DeviceName, Gpu>{{{"node-1", "gpu-0"}, {"GPU-a", 1000}},
                                                           {{"node-1", "gpu-1"}, {"GPU-b", 2000}}};
  return gpus;
}

Claim Share(const std::string& name, const std::string& device, uint64_t bytes,
            std::vector<Consumer> pods, const std::string& pool = "node-1") {
  Claim claim{.name_space = "team", .name = name, .uid = "u"};
  claim.shares[{pool, device}] = bytes;
  claim.consumers = std::move(pods);
  return claim;
}

TEST(DesiredTest, TenantsAreNamedAsTheRuleNamesThem) {
  EXPECT_EQ(TenantOf(kUidA), kTenantA);
  for (const char* uid :
       {"", "a", "5b1f0c4d9a8e7f6a5b4c3d2e1f0a9b8c", "099B88FB-2a99-45ad-af94-d91eb81a87e9",
        "099b88fb_2a99_45ad_af94_d91eb81a87e9", "099b88fb-2a99-45ad-af94-d91eb81a87e9x"}) {
    EXPECT_EQ(TenantOf(uid), "") << uid;
  }
}

TEST(DesiredTest, SharesOfAPodAreSummed) {
  const Desired desired = DesiredTenants(
      {Share("one", "gpu-0", 100, {{kUidA, "a"}}), Share("two", "gpu-0", 50, {{kUidA, "a"}}),
       Share("three", "gpu-1", 7, {{kUidA, "a"}}), Share("four", "gpu-1", 9, {{kUidB, "b"}})},
      Gpus());
  EXPECT_THAT(desired.problems, IsEmpty());
  EXPECT_THAT(desired.kept, IsEmpty());
  ASSERT_THAT(desired.tenants, SizeIs(2));
  const BytesByUuid of_a = {{"GPU-a", 150}, {"GPU-b", 7}}, of_b = {{"GPU-b", 9}};
  EXPECT_EQ(desired.tenants.at(kTenantA), (TenantQuota{of_a, of_a}));
  EXPECT_EQ(desired.tenants.at(kTenantB), (TenantQuota{of_b, of_b}));
  EXPECT_THAT(desired.origins.at(kTenantA).claims, ElementsAre("one", "three", "two"));
}

TEST(DesiredTest, AClaimOfSeveralPodsIsDivided) {
  const Desired desired =
      DesiredTenants({Share("one", "gpu-0", 101, {{kUidA, "a"}, {kUidB, "b"}})}, Gpus());
  EXPECT_THAT(desired.tenants.at(kTenantA).guarantees, ElementsAre(Pair("GPU-a", 50)));
  EXPECT_THAT(desired.tenants.at(kTenantB).limits, ElementsAre(Pair("GPU-a", 50)));
}

TEST(DesiredTest, WholeGpusHaveALimitAlone) {
  Claim claim = Share("one", "gpu-0", 100, {{kUidA, "a"}});
  claim.whole.emplace_back("node-1", "gpu-1");
  Desired desired = DesiredTenants({claim}, Gpus());
  EXPECT_THAT(desired.tenants.at(kTenantA).limits,
              ElementsAre(Pair("GPU-a", 100), Pair("GPU-b", 2000)));
  EXPECT_THAT(desired.tenants.at(kTenantA).guarantees, ElementsAre(Pair("GPU-a", 100)));
  claim.shares.clear();
  desired = DesiredTenants({claim}, Gpus());
  EXPECT_THAT(desired.tenants, IsEmpty()) << "no share";
  EXPECT_THAT(desired.origins, IsEmpty());
}

TEST(DesiredTest, OtherNodesHaveNoTenantHere) {
  const Desired desired =
      DesiredTenants({Share("one", "gpu-0", 100, {{kUidA, "a"}}, "node-2")}, Gpus());
  EXPECT_THAT(desired.tenants, IsEmpty());
  EXPECT_THAT(desired.problems, IsEmpty());
}

// The slices of a driver that is being replaced are gone for a while.
TEST(DesiredTest, WithoutSlicesTenantsAreKept) {
  const Desired desired = DesiredTenants({Share("one", "gpu-0", 100, {{kUidA, "a"}})}, {});
  EXPECT_THAT(desired.tenants, IsEmpty());
  EXPECT_THAT(desired.kept, ElementsAre(kTenantA));
}

TEST(DesiredTest, TenantsOfClaimsThatMakeNoSenseAreKept) {
  Claim bad = Share("two", "gpu-1", 1, {{kUidA, "a"}});
  bad.problem = "nonsense";
  Desired desired = DesiredTenants({Share("one", "gpu-0", 100, {{kUidA, "a"}}), bad}, Gpus());
  EXPECT_THAT(desired.tenants, IsEmpty());
  EXPECT_THAT(desired.kept, ElementsAre(kTenantA));
  EXPECT_THAT(desired.problems, ElementsAre("claim team/two: nonsense"));

  desired = DesiredTenants(
      {Share("one", "gpu-0", 100, {{kUidA, "a"}}), Share("two", "gpu-9", 100, {{kUidA, "a"}})},
      Gpus());
  EXPECT_THAT(desired.kept, ElementsAre(kTenantA)) << "a device too few";

  desired = DesiredTenants({Share("one", "gpu-0", 100, {{"x", "a"}})}, Gpus());
  EXPECT_THAT(desired.tenants, IsEmpty());
  EXPECT_THAT(desired.problems, ElementsAre(HasSubstr("no UUID")));
}

TEST(DesiredTest, PodsThatTheKubeletRunsAreKept) {
  const auto known = DesiredTenants({Share("one", "gpu-0", 100, {{kUidA, "a"}})}, Gpus()).origins;
  Desired desired;  // the pod was deleted by force
  KeepRunning(known, {{"team", "a", {"one"}}}, &desired);
  EXPECT_THAT(desired.kept, ElementsAre(kTenantA));
  EXPECT_EQ(desired.origins.size(), 1u) << "also in the next round";

  for (const KubeletPod& other : std::vector<KubeletPod>{{"other", "a", {"one"}},
                                                         {"team", "b", {"one"}},
                                                         {"team", "a", {"two"}},
                                                         {"team", "a", {}}}) {
    desired = Desired();
    KeepRunning(known, {other}, &desired);
    EXPECT_THAT(desired.kept, IsEmpty()) << other.name_space << "/" << other.name;
  }
}

TEST(DesiredTest, ALaterPodOfTheNameTakesTheKubeletsEntry) {
  const auto known = DesiredTenants({Share("one", "gpu-0", 100, {{kUidA, "a"}})}, Gpus()).origins;
  Desired desired = DesiredTenants({Share("one", "gpu-0", 100, {{kUidB, "a"}})}, Gpus());
  KeepRunning(known, {{"team", "a", {"one"}}}, &desired);
  EXPECT_THAT(desired.kept, IsEmpty());
  EXPECT_THAT(desired.tenants, ElementsAre(Pair(kTenantB, testing::_)));
}

}  // namespace desired_test
}  // namespace gpumem::kubernetes
