// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/quota/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <random>

#include "absl/strings/str_join.h"
#include "common/quota_keys.h"
#include "daemon/core/quota/testing/every_field.h"

namespace gpumemd {
namespace {

using gpumem::kQuotaKeys;
using gpumem::QuotaKey;
using gpumem::QuotaUnit;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Quota Applied(const QuotaOverride& change, Quota quota = {}) {
  QuotaOverride override;
  Merge(change, &override);
  Apply(override, &quota);
  return quota;
}

TEST(Overrides, EveryFieldCanBeSetAndCleared) {
  EXPECT_EQ(CheckChange(EveryField()), absl::OkStatus());
  const Quota all = Applied(EveryField());
  EXPECT_EQ(all, EveryField().values);
  QuotaOverride override;
  Merge(EveryField(), &override);
  // All fields but the parent: EveryField() must set a new one.
  EXPECT_EQ(FieldsOf(override).size(), std::size(kQuotaKeys) - 1);
  for (const QuotaKey& key : kQuotaKeys) {
    if (key.unit == QuotaUnit::kTenant) continue;
    QuotaOverride one{.set = {std::string(key.field)}, .values = EveryField().values};
    EXPECT_NE(Applied(one), Quota()) << key.field;
  }
  const QuotaOverride clear{.clear = FieldsOf(override)};
  EXPECT_EQ(CheckChange(clear), absl::OkStatus());
  Quota cleared = Applied(clear, all);
  EXPECT_EQ(cleared, Quota());
}

TEST(Overrides, ChangeOnlyWhatIsNamed) {
  const QuotaOverride change{
      .set = {"limit_bytes"}, .values = {.limit_bytes = 10}, .clear = {"max_segments"}};
  EXPECT_EQ(
      Applied(change, {.limit_bytes = 1,
                       .total_limit_bytes = 2,
                       .max_segments = 3,
                       .max_sessions = 4,
                       .parent = "team"}),
      (Quota{.limit_bytes = 10, .total_limit_bytes = 2, .max_sessions = 4, .parent = "team"}));
}

TEST(Overrides, APlainLimitReplacesThoseOfDevices) {
  const QuotaOverride limits{.set = {"limit_bytes", "devices"},
                             .values = {.limit_bytes = 10, .device_limits = {{"GPU-2", 7}}}};
  EXPECT_EQ(Applied(limits, {.device_limits = {{"GPU-1", 5}, {"GPU-2", 6}}}),
            (Quota{.limit_bytes = 10, .device_limits = {{"GPU-2", 7}}}));
  const QuotaOverride guarantee{.set = {"guarantee_bytes"}, .values = {.guarantee_bytes = 3}};
  EXPECT_EQ(Applied(guarantee, {.device_guarantees = {{"GPU-1", 5}}}),
            (Quota{.guarantee_bytes = 3}));
  const QuotaOverride retained{.set = {"max_retained_bytes"}, .values = {.max_retained_bytes = 4}};
  EXPECT_EQ(Applied(retained, {.device_max_retained = {{"GPU-1", 5}}}),
            (Quota{.max_retained_bytes = 4}));
}

TEST(Overrides, RefuseWhatMakesNoSense) {
  const auto refused = [](const QuotaOverride& change) {
    const absl::Status status = CheckChange(change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused({}), HasSubstr("nothing to change"));
  EXPECT_THAT(
      refused({.set = {"limit_bytes"}, .values = {.limit_bytes = 1}, .clear = {"limit_bytes"}}),
      HasSubstr("both set and cleared"));
  EXPECT_EQ(refused({.clear = {"limits"}}),
            "a quota has no field \"limits\" to clear; it has limit_bytes, total_limit_bytes, "
            "max_segments, max_sessions, max_in_flight, max_retained_bytes, devices, "
            "pinned_limit_bytes, guarantee_bytes, guarantees, priority, max_waiting, scrub, "
            "revocable, kind, release, max_publications, tier_limit_bytes, swappable, "
            "min_residence_ms, idle_suspend_ms, preload");
  EXPECT_THAT(refused({.set = {"max_in_flight"}, .values = {.max_in_flight = 0}}),
              HasSubstr("no call"));
  EXPECT_THAT(refused({.set = {"parent"}, .values = {.parent = "team"}}),
              HasSubstr("in the configuration"));
  EXPECT_THAT(refused({.clear = {"parent"}}), HasSubstr("in the configuration"));
  EXPECT_EQ(refused({.set = {"priority"}, .values = {.priority = 1001}}),
            "a priority is from -1000 to 1000, not 1001");
  EXPECT_EQ(refused({.set = {"priority"}, .values = {.priority = -1001}}),
            "a priority is from -1000 to 1000, not -1001");
}

// They come from a file that an operator may have edited.
TEST(Overrides, RememberedOnesAreChecked) {
  EXPECT_EQ(CheckRemembered("a", EveryField()), absl::OkStatus());
  EXPECT_EQ(CheckRemembered("a", {.clear = {"limit_bytes"}}), absl::OkStatus());
  const auto refused = [](absl::string_view tenant, const QuotaOverride& override) {
    const absl::Status status = CheckRemembered(tenant, override);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refused("", EveryField()), "an override without a tenant");
  EXPECT_EQ(refused("a", {.set = {"parent"}, .values = {.parent = "team"}}),
            "a parent cannot be overridden (tenant \"a\")");
  EXPECT_EQ(refused("a", {.clear = {"limits"}}), "a quota has no field \"limits\" (tenant \"a\")");
  EXPECT_EQ(refused("a", {.set = {"priority"}, .values = {.priority = 1001}}),
            "a priority is from -1000 to 1000, not 1001 (tenant \"a\")");
}

TEST(Overrides, AreRemovedByNameOrAllTogether) {
  QuotaOverride override;
  Merge({.set = {"limit_bytes", "scrub"}, .values = {.limit_bytes = 1}, .clear = {"max_segments"}},
        &override);
  EXPECT_THAT(FieldsOf(override), ElementsAre("limit_bytes", "max_segments", "scrub"));
  EXPECT_EQ(Remove({"limit"}, &override).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      Remove({"limit_bytes", "max_sessions"}, &override),
      absl::FailedPreconditionError(
          "\"max_sessions\" is not overridden (these are: limit_bytes, max_segments, scrub)"));
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
    QuotaOverride merged;
    for (int step = 0; step < 6; ++step) {
      QuotaOverride change;
      const QuotaOverride all = EveryField();
      for (const QuotaKey& key : kQuotaKeys) {
        if (key.unit == QuotaUnit::kTenant || !chance(3)) continue;
        if (chance(2)) {
          change.clear.emplace_back(key.field);
          continue;
        }
        change.set.emplace(key.field);
        if (key.field == "devices") {
          change.values.device_limits[chance(2) ? "GPU-1" : "GPU-3"] = random() % 9;
        } else if (key.field == "guarantees") {
          change.values.device_guarantees[chance(2) ? "GPU-1" : "GPU-3"] = random() % 9;
        } else if (key.field == "limit_bytes") {
          change.values.limit_bytes = random() % 9;
        } else {
          ForEachQuotaField([&](absl::string_view field, auto member) {
            if (field == key.field) change.values.*member = all.values.*member;
          });
        }
      }
      if (!CheckChange(change).ok()) continue;  // empty
      stepwise = Applied(change, stepwise);
      Merge(change, &merged);
    }
    Quota at_once = base;
    Apply(merged, &at_once);
    ASSERT_EQ(at_once, stepwise) << "round " << round << ": "
                                 << absl::StrJoin(FieldsOf(merged), ", ");
  }
}

}  // namespace
}  // namespace gpumemd
