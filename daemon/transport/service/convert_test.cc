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

TEST(Convert, ObtainableBytesArePresentAlsoIfThereAreNone) {
  TenantView tenant;
  tenant.devices = {{.device_uuid = "GPU-1"}, {.device_uuid = "GPU-2", .obtainable = 5}};
  const v1::Usage proto = ToProto(tenant);
  ASSERT_EQ(proto.devices_size(), 2);
  EXPECT_TRUE(proto.devices(0).has_obtainable_bytes());
  EXPECT_EQ(proto.devices(0).obtainable_bytes(), 0u);
  EXPECT_EQ(proto.devices(1).obtainable_bytes(), 5u);
}

}  // namespace
}  // namespace gpumemd
