// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/kubernetes/dra/cdi.h"

namespace gpumem::kubernetes {
namespace prepare_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr char kPodA[] = "099b88fb-2a99-45ad-af94-d91eb81a87e9";
constexpr char kPodB[] = "199b88fb-2a99-45ad-af94-d91eb81a87e9";
constexpr char kTenantA[] = "pod-099b88fb-2a99-45ad-af94-d91eb81a87e9";
constexpr char kTenantB[] = "pod-199b88fb-2a99-45ad-af94-d91eb81a87e9";
constexpr char kUid1[] = "0b7a5d6c-2a99-45ad-af94-000000000001";
constexpr char kUid2[] = "0b7a5d6c-2a99-45ad-af94-000000000002";

const DeviceName& First() {
  static const auto& name = *new DeviceName("node-1", "gpu-a");
  return name;
}
const DeviceName& Second() {
  static const auto& name = *new DeviceName("node-1", "gpu-b");
  return name;
}
const std::map<DeviceName, Gpu>& Gpus() {
  static const auto& gpus =
      *new std::map<DeviceName, Gpu>{{First(), {"GPU-a", 1000}}, {Second(), {"GPU-b", 2000}}};
  return gpus;
}

Claim Share(const std::string& uid, const std::map<DeviceName, uint64_t>& shares,
            const std::vector<Consumer>& pods) {
  Claim claim{.name_space = "team", .name = "claim", .uid = uid, .shares = shares};
  claim.consumers = pods;
  for (const auto& [device, bytes] : shares) claim.requests[device] = {device.second + "-request"};
  return claim;
}

ClaimName NameOf(const Claim& claim) { return {claim.name_space, claim.name, claim.uid}; }

absl::StatusOr<Prepared> PrepareOnly(const Claim& claim, const std::vector<Claim>& others = {}) {
  std::vector<Claim> claims = others;
  claims.push_back(claim);
  auto prepared = Prepare({NameOf(claim)}, claims, Gpus(), "nvidia.com/gpu");
  EXPECT_THAT(prepared, ElementsAre(Pair(claim.uid, ::testing::_)));
  return prepared.at(claim.uid);
}

TEST(PrepareTest, AClaimIsATenantAndCdiDevices) {
  const auto prepared = PrepareOnly(Share(kUid1, {{First(), 100}, {Second(), 7}}, {{kPodA, "a"}}));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const BytesByUuid bytes = {{"GPU-a", 100}, {"GPU-b", 7}};
  EXPECT_THAT(prepared->tenants, ElementsAre(Pair(kTenantA, TenantQuota{bytes, bytes})));
  ASSERT_THAT(prepared->devices, SizeIs(2));
  const PreparedDevice& first = prepared->devices[0];
  EXPECT_EQ(first.device, First());
  EXPECT_THAT(first.requests, ElementsAre("gpu-a-request"));
  EXPECT_THAT(first.cdi_devices,
              ElementsAre(absl::StrCat("gpumem.dev/claim=", kUid1), "nvidia.com/gpu=GPU-a"));
  EXPECT_THAT(prepared->devices[1].cdi_devices,
              ElementsAre(absl::StrCat("gpumem.dev/claim=", kUid1), "nvidia.com/gpu=GPU-b"));
}

TEST(PrepareTest, NoGpuDevicesWithoutTheirKind) {
  const Claim claim = Share(kUid1, {{First(), 100}}, {{kPodA, "a"}});
  const auto prepared = Prepare({NameOf(claim)}, {claim}, Gpus(), "");
  ASSERT_TRUE(prepared.at(kUid1).ok());
  EXPECT_THAT(prepared.at(kUid1)->devices[0].cdi_devices,
              ElementsAre(absl::StrCat("gpumem.dev/claim=", kUid1)));
}

TEST(PrepareTest, APodsTenantHasWhatAllItsClaimsGive) {
  const Claim other = Share(kUid2, {{First(), 20}}, {{kPodA, "a"}, {kPodB, "b"}});
  const auto prepared = PrepareOnly(Share(kUid1, {{First(), 100}}, {{kPodA, "a"}}), {other});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const BytesByUuid bytes = {{"GPU-a", 110}};  // and its half of the other claim
  EXPECT_THAT(prepared->tenants, ElementsAre(Pair(kTenantA, TenantQuota{bytes, bytes})));
  const auto both = PrepareOnly(other);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(both->tenants,
              UnorderedElementsAre(Pair(kTenantA, ::testing::_), Pair(kTenantB, ::testing::_)));
}

TEST(PrepareTest, ErrorsAreOfTheirClaimAlone) {
  const Claim valid = Share(kUid1, {{First(), 100}}, {{kPodA, "a"}});
  const auto prepared = Prepare({NameOf(valid),
                                 {"team", "claim", kUid2},
                                 {"team", "claim", "../../etc"},
                                 {"other", "claim", kUid1 + std::string("x")}},
                                {valid}, Gpus(), "nvidia.com/gpu");
  ASSERT_THAT(prepared, SizeIs(4));
  EXPECT_TRUE(prepared.at(kUid1).ok());
  EXPECT_TRUE(absl::IsNotFound(prepared.at(kUid2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(prepared.at("../../etc").status()));
  EXPECT_THAT(std::string(prepared.at(kUid2).status().message()), HasSubstr("claim team/claim: "));
}

TEST(PrepareTest, UidsNameTheClaimOfThatName) {
  const Claim claim = Share(kUid1, {{First(), 100}}, {{kPodA, "a"}});
  for (const ClaimName& name :
       {ClaimName{"other", "claim", kUid1}, ClaimName{"team", "other", kUid1}}) {
    const auto prepared = Prepare({name}, {claim}, Gpus(), "");
    EXPECT_TRUE(absl::IsNotFound(prepared.at(kUid1).status()));
  }
}

TEST(PrepareTest, ClaimsWithoutAShareAreRefused) {
  Claim whole = Share(kUid1, {}, {{kPodA, "a"}});
  whole.whole = {First()};
  EXPECT_THAT(std::string(PrepareOnly(whole).status().message()),
              HasSubstr("DRAConsumableCapacity"));
  EXPECT_THAT(std::string(PrepareOnly(Share(kUid1, {}, {{kPodA, "a"}})).status().message()),
              HasSubstr("administrators"));
  EXPECT_THAT(std::string(PrepareOnly(Share(kUid1, {{First(), 1}}, {})).status().message()),
              HasSubstr("reserved for no pod"));
}

TEST(PrepareTest, ClaimsThatMakeNoSenseAreRefused) {
  Claim claim = Share(kUid1, {{First(), 100}}, {{kPodA, "a"}});
  claim.problem = "it has too many devices";
  EXPECT_TRUE(absl::IsInvalidArgument(PrepareOnly(claim).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      PrepareOnly(Share(kUid1, {{First(), 100}}, {{"no-uuid", "a"}})).status()));
  const auto elsewhere = PrepareOnly(Share(kUid1, {{{"node-2", "gpu-a"}, 100}}, {{kPodA, "a"}}));
  EXPECT_TRUE(absl::IsFailedPrecondition(elsewhere.status()));
  EXPECT_THAT(std::string(elsewhere.status().message()),
              HasSubstr("no device gpu-a of pool node-2"));
}

TEST(PrepareTest, AnotherClaimOfThePodMayPreventIt) {
  Claim wrong = Share(kUid2, {{Second(), 1}}, {{kPodA, "a"}});
  wrong.problem = "it has too many devices";
  const auto prepared = PrepareOnly(Share(kUid1, {{First(), 100}}, {{kPodA, "a"}}), {wrong});
  EXPECT_TRUE(absl::IsFailedPrecondition(prepared.status()));
  EXPECT_THAT(std::string(prepared.status().message()), HasSubstr("another claim of its pod a"));
}

}  // namespace prepare_test
}  // namespace gpumem::kubernetes
