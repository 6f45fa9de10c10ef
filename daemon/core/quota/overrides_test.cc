#include "daemon/core/quota/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::SetQuotaRequest EveryField() {
  v1::SetQuotaRequest request;
  v1::Quota& set = *request.mutable_quota();
  set.set_limit_bytes(1);
  set.set_total_limit_bytes(2);
  set.set_max_segments(3);
  set.set_max_sessions(4);
  set.set_max_in_flight(5);
  set.set_max_retained_bytes(6);
  v1::DeviceLimit& limit = *set.add_devices();
  limit.set_device_uuid("GPU-1");
  limit.set_limit_bytes(7);
  set.set_pinned_limit_bytes(8);
  set.set_guarantee_bytes(9);
  v1::DeviceGuarantee& guarantee = *set.add_guarantees();
  guarantee.set_device_uuid("GPU-1");
  guarantee.set_guarantee_bytes(10);
  set.set_priority(-11);
  set.set_max_waiting(12);
  set.set_max_publications(13);
  set.set_scrub(true);
  set.set_revocable(true);
  set.set_kind(v1::KIND_IPC);
  set.set_release(v1::RELEASE_POLICY_ON_EXIT);
  return request;
}

Quota Applied(const v1::SetQuotaRequest& request, Quota quota = {}) {
  v1::QuotaOverride override;
  Merge(request, &override);
  Apply(override, &quota);
  return quota;
}

TEST(Overrides, EveryFieldCanBeSetAndCleared) {
  EXPECT_EQ(CheckRequest(EveryField()), absl::OkStatus());
  const Quota all = Applied(EveryField());
  EXPECT_EQ(all, (Quota{.limit_bytes = 1,
                        .device_limits = {{"GPU-1", 7}},
                        .total_limit_bytes = 2,
                        .pinned_limit_bytes = 8,
                        .max_segments = 3,
                        .max_sessions = 4,
                        .max_in_flight = 5,
                        .max_waiting = 12,
                        .max_publications = 13,
                        .max_retained_bytes = 6,
                        .guarantee_bytes = 9,
                        .device_guarantees = {{"GPU-1", 10}},
                        .priority = -11,
                        .kind = Kind::kIpc,
                        .scrub = true,
                        .revocable = true,
                        .release = ReleasePolicy::kOnExit}));
  v1::QuotaOverride override;
  Merge(EveryField(), &override);
  v1::SetQuotaRequest clear;
  // All fields but the parent: a new field of the protocol must be added here.
  EXPECT_EQ(static_cast<int>(FieldsOf(override).size()),
            v1::Quota::descriptor()->field_count() - 1);
  for (const std::string& name : FieldsOf(override)) clear.add_clear(name);
  EXPECT_EQ(CheckRequest(clear), absl::OkStatus());
  Quota cleared = Applied(clear, all);
  EXPECT_EQ(cleared, Quota());
}

TEST(Overrides, ChangeOnlyWhatIsNamed) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_limit_bytes(10);
  request.add_clear("max_segments");
  EXPECT_EQ(
      Applied(request, {.limit_bytes = 1,
                        .total_limit_bytes = 2,
                        .max_segments = 3,
                        .max_sessions = 4,
                        .parent = "team"}),
      (Quota{.limit_bytes = 10, .total_limit_bytes = 2, .max_sessions = 4, .parent = "team"}));
}

TEST(Overrides, APlainLimitReplacesThoseOfDevices) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_limit_bytes(10);
  v1::DeviceLimit& device = *request.mutable_quota()->add_devices();
  device.set_device_uuid("GPU-2");
  device.set_limit_bytes(7);
  EXPECT_EQ(Applied(request, {.device_limits = {{"GPU-1", 5}, {"GPU-2", 6}}}),
            (Quota{.limit_bytes = 10, .device_limits = {{"GPU-2", 7}}}));
  v1::SetQuotaRequest guarantee;
  guarantee.mutable_quota()->set_guarantee_bytes(3);
  EXPECT_EQ(Applied(guarantee, {.device_guarantees = {{"GPU-1", 5}}}),
            (Quota{.guarantee_bytes = 3}));
}

TEST(Overrides, RefuseWhatMakesNoSense) {
  EXPECT_THAT(std::string(CheckRequest({}).message()), HasSubstr("nothing to change"));
  v1::SetQuotaRequest both;
  both.mutable_quota()->set_limit_bytes(1);
  both.add_clear("limit_bytes");
  EXPECT_THAT(std::string(CheckRequest(both).message()), HasSubstr("both set and cleared"));
  v1::SetQuotaRequest unknown;
  unknown.add_clear("limits");
  EXPECT_THAT(std::string(CheckRequest(unknown).message()), HasSubstr("no field \"limits\""));
  v1::SetQuotaRequest mute;
  mute.mutable_quota()->set_max_in_flight(0);
  EXPECT_THAT(std::string(CheckRequest(mute).message()), HasSubstr("no call"));
  v1::SetQuotaRequest parent;
  parent.mutable_quota()->set_parent("team");
  EXPECT_THAT(std::string(CheckRequest(parent).message()), HasSubstr("into the configuration"));
  parent.Clear();
  parent.add_clear("parent");
  EXPECT_THAT(std::string(CheckRequest(parent).message()), HasSubstr("into the configuration"));
  v1::SetQuotaRequest loud;
  loud.mutable_quota()->set_priority(1001);
  EXPECT_THAT(std::string(CheckRequest(loud).message()), HasSubstr("from -1000 to 1000"));
  v1::SetQuotaRequest kind;
  kind.mutable_quota()->set_kind(static_cast<v1::Kind>(77));
  EXPECT_EQ(CheckRequest(kind).code(), absl::StatusCode::kInvalidArgument);
  v1::SetQuotaRequest release;
  release.mutable_quota()->set_release(v1::RELEASE_POLICY_UNSPECIFIED);
  EXPECT_EQ(CheckRequest(release).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Overrides, AreRemovedByNameOrAllTogether) {
  v1::QuotaOverride override;
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_limit_bytes(1);
  request.mutable_quota()->set_scrub(false);
  request.add_clear("max_segments");
  Merge(request, &override);
  EXPECT_THAT(FieldsOf(override), ElementsAre("limit_bytes", "max_segments", "scrub"));
  EXPECT_THAT(std::string(Remove({"limit"}, &override).message()), HasSubstr("no field"));
  EXPECT_EQ(Remove({"limit_bytes", "max_sessions"}, &override),
            absl::FailedPreconditionError(
                "\"max_sessions\" is not overridden (what is: limit_bytes, max_segments, scrub)"));
  EXPECT_THAT(FieldsOf(override), ElementsAre("limit_bytes", "max_segments", "scrub"));
  EXPECT_EQ(Remove({"limit_bytes"}, &override), absl::OkStatus());
  EXPECT_THAT(FieldsOf(override), ElementsAre("max_segments", "scrub"));
  EXPECT_EQ(Remove({}, &override), absl::OkStatus());
  EXPECT_THAT(FieldsOf(override), IsEmpty());
  EXPECT_EQ(Remove({}, &override).code(), absl::StatusCode::kFailedPrecondition);
}

// For any order of sets and clears: one merged override has the same effect as the single ones
// after each other, on any quota.
TEST(Overrides, MergedAreAsOneAfterTheOther) {
  std::mt19937 random(7);
  const auto chance = [&](uint32_t of) { return random() % of == 0; };
  for (int round = 0; round < 2000; ++round) {
    Quota base = Applied(EveryField());
    if (chance(2)) base = {.device_limits = {{"GPU-1", 5}, {"GPU-2", 6}}, .priority = 3};
    Quota stepwise = base;
    v1::QuotaOverride merged;
    for (int step = 0; step < 6; ++step) {
      v1::SetQuotaRequest request;
      const v1::SetQuotaRequest all = EveryField();
      for (int i = 0; i < v1::Quota::descriptor()->field_count(); ++i) {
        const auto* field = v1::Quota::descriptor()->field(i);
        if (field->name() == "parent" || !chance(3)) continue;
        if (chance(2)) {
          request.add_clear(field->name());
        } else if (field->name() == "devices") {
          v1::DeviceLimit& limit = *request.mutable_quota()->add_devices();
          limit.set_device_uuid(chance(2) ? "GPU-1" : "GPU-3");
          limit.set_limit_bytes(random() % 9);
        } else if (field->name() == "guarantees") {
          v1::DeviceGuarantee& guarantee = *request.mutable_quota()->add_guarantees();
          guarantee.set_device_uuid(chance(2) ? "GPU-1" : "GPU-3");
          guarantee.set_guarantee_bytes(random() % 9);
        } else if (field->name() == "limit_bytes") {
          request.mutable_quota()->set_limit_bytes(random() % 9);
        } else {
          v1::Quota one = all.quota();
          for (int j = 0; j < v1::Quota::descriptor()->field_count(); ++j) {
            if (j != i) one.GetReflection()->ClearField(&one, v1::Quota::descriptor()->field(j));
          }
          request.mutable_quota()->MergeFrom(one);
        }
      }
      if (!CheckRequest(request).ok()) continue;  // empty
      stepwise = Applied(request, stepwise);
      Merge(request, &merged);
    }
    Quota at_once = base;
    Apply(merged, &at_once);
    ASSERT_EQ(at_once, stepwise) << "round " << round << ": " << merged.ShortDebugString();
  }
}

}  // namespace
}  // namespace gpumemd
