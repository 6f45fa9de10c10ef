// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/core/requested_kind.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

TEST(Convert, KindsGoThereAndBack) {
  EXPECT_EQ(*RequestedKind(ToProto(Kind::kVmm)), Kind::kVmm);
  EXPECT_EQ(*RequestedKind(v1::KIND_UNSPECIFIED), std::nullopt);
  EXPECT_EQ(RequestedKind(static_cast<v1::Kind>(77)).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(Convert, AbsentLimitsStayAbsent) {
  v1::Quota plain;  // what there is always a word for
  plain.set_priority(0);
  plain.set_scrub(false);
  plain.set_revocable(false);
  plain.set_release(v1::RELEASE_POLICY_TRUST);
  plain.set_swappable(false);
  plain.set_min_residence_ms(10'000);
  plain.set_idle_suspend_ms(0);
  EXPECT_EQ(ToProto(Quota()).SerializeAsString(), plain.SerializeAsString());
  const v1::Quota proto = ToProto(Quota{.limit_bytes = 5, .device_limits = {{"GPU-1", 3}}});
  EXPECT_EQ(proto.limit_bytes(), 5u);
  EXPECT_FALSE(proto.has_total_limit_bytes());
  ASSERT_EQ(proto.devices_size(), 1);
  EXPECT_EQ(proto.devices(0).limit_bytes(), 3u);
}

TEST(Convert, AQuotaSaysAllOfItself) {
  const v1::Quota proto = ToProto(Quota{.max_waiting = 3,
                                        .guarantee_bytes = 4,
                                        .device_guarantees = {{"GPU-1", 5}},
                                        .priority = -6,
                                        .kind = Kind::kIpc,
                                        .scrub = true,
                                        .revocable = true,
                                        .release = ReleasePolicy::kOnExit,
                                        .preload = PreloadMode::kBroker,
                                        .parent = "team"});
  EXPECT_EQ(proto.max_waiting(), 3u);
  EXPECT_EQ(proto.guarantee_bytes(), 4u);
  ASSERT_EQ(proto.guarantees_size(), 1);
  EXPECT_EQ(proto.guarantees(0).device_uuid(), "GPU-1");
  EXPECT_EQ(proto.guarantees(0).guarantee_bytes(), 5u);
  EXPECT_EQ(proto.priority(), -6);
  EXPECT_EQ(proto.kind(), v1::KIND_IPC);
  EXPECT_TRUE(proto.scrub());
  EXPECT_TRUE(proto.revocable());
  EXPECT_EQ(proto.release(), v1::RELEASE_POLICY_ON_EXIT);
  EXPECT_EQ(proto.preload(), v1::PRELOAD_MODE_BROKER);
  EXPECT_EQ(proto.parent(), "team");
}

TEST(Convert, UsesOfATenantHaveThePresentOneFirst) {
  BrokerTenants::Uses uses;
  uses.present = TenantView{.name = "job-1"};
  uses.present->devices = {
      {.device_uuid = "GPU-1", .charged = 1, .limit = 2, .peak = 3, .byte_seconds = 4}};
  uses.present->made =
      MadeView{.owner = "slurm", .user = 1000, .created = absl::FromUnixMillis(50)};
  uses.ended = {{.name = "job-1",
                 .owner = "slurm",
                 .created = absl::FromUnixMillis(10),
                 .ended = absl::FromUnixMillis(40)}};
  uses.ended[0].devices = {
      {.device_uuid = "GPU-2", .limit = 5, .guarantee = 6, .peak = 7, .byte_seconds = 8}};
  const v1::GetTenantUsageResponse proto = ToProto(uses);
  ASSERT_EQ(proto.usages_size(), 2);
  const v1::TenantUsage& now = proto.usages(0);
  EXPECT_EQ(now.tenant(), "job-1");
  EXPECT_EQ(now.user(), 1000u);
  EXPECT_EQ(now.created_ms(), 50);
  EXPECT_FALSE(now.has_ended_ms());
  EXPECT_EQ(now.devices(0).charged_bytes(), 1u);
  EXPECT_EQ(now.devices(0).limit_bytes(), 2u);
  EXPECT_EQ(now.devices(0).peak_bytes(), 3u);
  EXPECT_EQ(now.devices(0).byte_seconds(), 4u);
  const v1::TenantUsage& before = proto.usages(1);
  EXPECT_FALSE(before.has_user());
  EXPECT_EQ(before.created_ms(), 10);
  EXPECT_EQ(before.ended_ms(), 40);
  EXPECT_EQ(before.devices(0).device_uuid(), "GPU-2");
  EXPECT_EQ(before.devices(0).limit_bytes(), 5u);
  EXPECT_EQ(before.devices(0).guarantee_bytes(), 6u);
  EXPECT_EQ(before.devices(0).peak_bytes(), 7u);
  EXPECT_EQ(before.devices(0).byte_seconds(), 8u);
  // Of a tenant of the configuration the times are absent.
  uses.present->made.reset();
  EXPECT_FALSE(ToProto(uses).usages(0).has_created_ms());
}

TEST(Convert, ObtainableBytesArePresentAlsoIfThereAreNone) {
  TenantView tenant;
  tenant.devices = {{.device_uuid = "GPU-1"},
                    {.device_uuid = "GPU-2", .byte_seconds = 6, .obtainable = 5}};
  const v1::Usage proto = ToProto(tenant);
  ASSERT_EQ(proto.devices_size(), 2);
  EXPECT_TRUE(proto.devices(0).has_obtainable_bytes());
  EXPECT_EQ(proto.devices(0).obtainable_bytes(), 0u);
  EXPECT_EQ(proto.devices(1).obtainable_bytes(), 5u);
  EXPECT_TRUE(proto.devices(0).has_byte_seconds());
  EXPECT_EQ(proto.devices(1).byte_seconds(), 6u);
}

}  // namespace
}  // namespace gpumemd
