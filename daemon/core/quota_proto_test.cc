// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/quota_proto.h"

#include <gtest/gtest.h>

#include "daemon/core/quota/testing/every_field.h"

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;

TEST(QuotaProto, EveryFieldGoesThereAndBack) {
  QuotaOverride override = EveryField();
  override.values.device_limits["GPU-2"] = 0;
  const v1::QuotaOverride proto = ToProto("team", override);
  EXPECT_EQ(proto.tenant(), "team");
  EXPECT_EQ(proto.quota().limit_bytes(), 1u);
  EXPECT_EQ(proto.quota().total_limit_bytes(), 2u);
  EXPECT_EQ(proto.quota().max_segments(), 3u);
  EXPECT_EQ(proto.quota().max_sessions(), 4u);
  EXPECT_EQ(proto.quota().max_in_flight(), 5u);
  EXPECT_EQ(proto.quota().max_retained_bytes(), 6u);
  ASSERT_EQ(proto.quota().devices_size(), 2);
  EXPECT_EQ(proto.quota().devices(0).device_uuid(), "GPU-1");
  EXPECT_EQ(proto.quota().devices(0).limit_bytes(), 7u);
  EXPECT_EQ(proto.quota().pinned_limit_bytes(), 8u);
  EXPECT_EQ(proto.quota().tier_limit_bytes(), 14u);
  EXPECT_EQ(proto.quota().guarantee_bytes(), 9u);
  ASSERT_EQ(proto.quota().guarantees_size(), 1);
  EXPECT_EQ(proto.quota().guarantees(0).device_uuid(), "GPU-1");
  EXPECT_EQ(proto.quota().guarantees(0).guarantee_bytes(), 10u);
  EXPECT_EQ(proto.quota().priority(), -11);
  EXPECT_EQ(proto.quota().max_waiting(), 12u);
  EXPECT_EQ(proto.quota().max_publications(), 13u);
  EXPECT_TRUE(proto.quota().scrub());
  EXPECT_TRUE(proto.quota().revocable());
  EXPECT_TRUE(proto.quota().swappable());
  EXPECT_EQ(proto.quota().min_residence_ms(), 15u);
  EXPECT_EQ(proto.quota().idle_suspend_ms(), 16u);
  EXPECT_EQ(proto.quota().kind(), v1::KIND_IPC);
  EXPECT_EQ(proto.quota().release(), v1::RELEASE_POLICY_ON_EXIT);
  absl::StatusOr<QuotaOverride> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, override);

  v1::SetQuotaRequest request;
  *request.mutable_quota() = ToProto(override.values);
  absl::StatusOr<QuotaOverride> change = FromProto(request);
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(*change, override);
}

TEST(QuotaProto, OnlyPresentFieldsAreSet) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_max_segments(0);
  request.mutable_quota()->set_scrub(false);
  request.mutable_quota()->set_kind(v1::KIND_UNSPECIFIED);
  request.mutable_quota()->set_parent("team");
  request.add_clear("limits");
  request.add_clear("devices");
  const QuotaOverride change{.set = {"max_segments", "scrub", "kind", "parent"},
                             .values = {.max_segments = 0, .parent = "team"},
                             .clear = {"limits", "devices"}};
  ASSERT_TRUE(FromProto(request).ok());
  EXPECT_EQ(*FromProto(request), change);
  // The device's default is a separate value.
  EXPECT_TRUE(ToProto("team", change).quota().has_kind());
  EXPECT_FALSE(ToProto("team", change).quota().has_priority());
  EXPECT_EQ(*FromProto(ToProto("team", change)), change);
  EXPECT_EQ(*FromProto(v1::SetQuotaRequest()), QuotaOverride());
}

TEST(QuotaProto, ALaterEntryOfADeviceReplacesTheEarlier) {
  v1::SetQuotaRequest request;
  for (const uint64_t bytes : {1, 2}) {
    v1::DeviceLimit& device = *request.mutable_quota()->add_devices();
    device.set_device_uuid("GPU-1");
    device.set_limit_bytes(bytes);
  }
  ASSERT_TRUE(FromProto(request).ok());
  EXPECT_EQ(*FromProto(request),
            (QuotaOverride{.set = {"devices"}, .values = {.device_limits = {{"GPU-1", 2}}}}));
}

TEST(QuotaProto, RefusesUnknownValues) {
  v1::SetQuotaRequest kind;
  kind.mutable_quota()->set_kind(static_cast<v1::Kind>(77));
  EXPECT_EQ(FromProto(kind).status(),
            absl::InvalidArgumentError("this daemon does not know segments of kind 77; it knows "
                                       "VMM, MEMPOOL, IPC, PINNED and HOST"));
  v1::SetQuotaRequest release;
  release.mutable_quota()->set_release(v1::RELEASE_POLICY_UNSPECIFIED);
  EXPECT_EQ(FromProto(release).status(),
            absl::InvalidArgumentError(
                "a release policy is RELEASE_POLICY_TRUST or RELEASE_POLICY_ON_EXIT"));
}

TEST(QuotaProto, RefusesAPreloadModeThatItDoesNotKnow) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_preload(v1::PRELOAD_MODE_UNSPECIFIED);
  EXPECT_EQ(
      FromProto(request).status(),
      absl::InvalidArgumentError("a preload mode is PRELOAD_MODE_ACCOUNT or PRELOAD_MODE_BROKER"));
}

TEST(QuotaProto, RefusesADefaultKindThatGivesNoMemory) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_kind(v1::KIND_DRIVER);
  EXPECT_EQ(FromProto(request).status(),
            absl::InvalidArgumentError("kind driver cannot be a tenant's default: requests of it "
                                       "get no memory"));
}

TEST(QuotaProto, TheDefaultsCanBeSet) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_release(v1::RELEASE_POLICY_TRUST);
  request.mutable_quota()->set_preload(v1::PRELOAD_MODE_ACCOUNT);
  const absl::StatusOr<QuotaOverride> change = FromProto(request);
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(*change, (QuotaOverride{.set = {"preload", "release"},
                                    .values = {.release = ReleasePolicy::kTrust,
                                               .preload = PreloadMode::kAccount}}));
  EXPECT_EQ(ToProto("team", *change).quota().SerializeAsString(),
            request.quota().SerializeAsString());
  EXPECT_FALSE(ToProto("team", *change).quota().has_kind());
}

TEST(QuotaProto, AllRequestsWithAQuotaChangeTheSame) {
  v1::Quota quota;
  quota.set_max_segments(7);
  QuotaOverride change{.set = {"max_segments"}, .values = {.max_segments = 7}};
  EXPECT_EQ(*FromProto(quota), change);
  change.clear = {"limits"};
  v1::UpdateTenantRequest of_operator;
  *of_operator.mutable_quota() = quota;
  of_operator.add_clear("limits");
  EXPECT_EQ(*FromProto(of_operator), change);
  v1::UpdateChildTenantRequest of_session;
  *of_session.mutable_quota() = quota;
  of_session.add_clear("limits");
  EXPECT_EQ(*FromProto(of_session), change);
}

TEST(QuotaProto, TellsWhichHoldersAreShown) {
  EXPECT_EQ(ToProto(HoldersShown::kAll), v1::HOLDERS_SHOWN_ALL);
  EXPECT_EQ(ToProto(HoldersShown::kOwn), v1::HOLDERS_SHOWN_OWN);
  EXPECT_EQ(ToProto(HoldersShown::kNone), v1::HOLDERS_SHOWN_NONE);
}

TEST(QuotaProto, RefusesMoreThanADay) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_min_residence_ms(86'400'001);
  EXPECT_EQ(
      FromProto(request).status(),
      absl::InvalidArgumentError("min_residence_ms is at most 86400000, a day, not 86400001"));
  request.mutable_quota()->set_min_residence_ms(86'400'000);
  EXPECT_EQ(FromProto(request)->values.min_residence, absl::Hours(24));
}

TEST(QuotaProto, PercentagesOfRetainedBytesAreNotTold) {
  EXPECT_EQ(ToProto(Quota{.device_max_retained = {{"GPU-1", 1}}}).SerializeAsString(),
            ToProto(Quota()).SerializeAsString());
}

}  // namespace
}  // namespace gpumemd
