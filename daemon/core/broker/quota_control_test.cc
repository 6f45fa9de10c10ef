// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/quota_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/quota/testing/change.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace quota_control_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using gpumem::kMiB;

class QuotaControlTest : public testing::Test {
 protected:
  QuotaControlTest() { Start({}); }

  // A daemon with one device of 64 MiB that remembers `overrides`.
  void Start(Overrides overrides) {
    control_ = nullptr;
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 64 * kMiB}));
    options.random = CountedSecrets();
    std::vector<DeviceInfo> devices = {options.devices[0]->info()};
    uuid_ = devices[0].uuid;
    broker_ = std::make_unique<Broker>(std::move(options));
    disk_ = overrides;
    control_ = std::make_unique<QuotaControl>(broker_.get(), devices, std::move(overrides),
                                              [this](const Overrides& all) {
                                                if (disk_fails_) {
                                                  return absl::InternalError("disk full");
                                                }
                                                disk_ = all;
                                                return absl::OkStatus();
                                              });
  }

  Quota Of(const std::string& tenant) { return broker_->views().GetTenant(tenant)->quota; }

  std::string uuid_;
  Overrides disk_;
  bool disk_fails_ = false;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<QuotaControl> control_;
};

TEST_F(QuotaControlTest, WhatIsSetGoesBeforeTheConfigurationFieldByField) {
  control_->Configure({{"team", {.limit_bytes = 10, .max_segments = 3}}}, {});
  absl::StatusOr<QuotaControl::Outcome> set = control_->Set("team", Limit(20));
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->tenant.quota, (Quota{.limit_bytes = 20, .max_segments = 3}));
  EXPECT_THAT(set->overridden, ElementsAre("limit_bytes"));
  EXPECT_THAT(control_->Configure({{"team", {.limit_bytes = 11, .max_segments = 4}}}, {}),
              IsEmpty());
  EXPECT_EQ(Of("team"), (Quota{.limit_bytes = 20, .max_segments = 4}));

  Start(disk_);  // again
  control_->Configure({{"team", {.limit_bytes = 12, .max_segments = 5}}}, {});
  EXPECT_EQ(Of("team"), (Quota{.limit_bytes = 20, .max_segments = 5}));
  EXPECT_THAT(control_->Overridden("team"), ElementsAre("limit_bytes"));

  absl::StatusOr<QuotaControl::Outcome> unset = control_->Unset("team", {});
  ASSERT_TRUE(unset.ok()) << unset.status();
  EXPECT_EQ(unset->tenant.quota, (Quota{.limit_bytes = 12, .max_segments = 5}));
  EXPECT_THAT(unset->overridden, IsEmpty());
  EXPECT_THAT(disk_, IsEmpty());
  EXPECT_EQ(control_->Unset("team", {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(QuotaControlTest, ATenantThatIsNotThereYetIsRemembered) {
  control_->Configure({}, {.limit_bytes = 10});
  EXPECT_TRUE(absl::IsNotFound(control_->Set("user-1", Limit(20)).status()));
  EXPECT_TRUE(absl::IsNotFound(control_->Unset("user-1", {}).status()));
  auto session = broker_->OpenSession("user-1", {});
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE(control_->Set("user-1", Limit(20)).ok());
  broker_->SocketClosed(session->id);
  broker_->ProcessGone(session->id);
  EXPECT_EQ(Of("user-1").limit_bytes, 20u);

  Start(disk_);
  control_->Configure({}, {.limit_bytes = 10});
  ASSERT_TRUE(broker_->OpenSession("user-1", {}).ok());
  EXPECT_EQ(Of("user-1").limit_bytes, 20u);
  ASSERT_TRUE(broker_->OpenSession("user-2", {}).ok());
  EXPECT_EQ(Of("user-2").limit_bytes, 10u);
}

TEST_F(QuotaControlTest, ATenantThatWasThereForItsOverrideGoesWithIt) {
  Start({{"user-1", Limit(20)}});
  control_->Configure({}, {.limit_bytes = 10});
  absl::StatusOr<QuotaControl::Outcome> unset = control_->Unset("user-1", {"limit_bytes"});
  ASSERT_TRUE(unset.ok()) << unset.status();
  EXPECT_EQ(unset->tenant.quota, (Quota{.limit_bytes = 10}));
  EXPECT_TRUE(absl::IsNotFound(broker_->views().GetTenant("user-1").status()));
  EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
}

TEST_F(QuotaControlTest, WhatCannotBeWrittenIsNotChanged) {
  control_->Configure({{"team", {.limit_bytes = 10}}}, {});
  ASSERT_TRUE(control_->Set("team", Limit(20)).ok());
  disk_fails_ = true;
  EXPECT_EQ(control_->Set("team", Limit(30)).status(), absl::InternalError("disk full"));
  EXPECT_EQ(control_->Unset("team", {}).status(), absl::InternalError("disk full"));
  EXPECT_EQ(Of("team").limit_bytes, 20u);
  control_->Configure({{"team", {.limit_bytes = 10}}}, {});
  EXPECT_EQ(Of("team").limit_bytes, 20u);
}

TEST_F(QuotaControlTest, GuaranteesThatCannotBeKeptAreRefused) {
  control_->Configure({{"a", {.guarantee_bytes = 40 * kMiB}}, {"b", {.limit_bytes = 30 * kMiB}}},
                      {});
  EXPECT_EQ(control_->Set("b", Guarantee(25 * kMiB)).status(),
            absl::FailedPreconditionError(absl::StrCat(
                "the guarantees of all tenants add up to 65.00 MiB on ", uuid_,
                ", which is more than the device's 64.00 MiB (a 40.00 MiB, b 25.00 MiB); lower one "
                "of them")));
  EXPECT_EQ(control_->Set("b", Guarantee(31 * kMiB)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(control_->Set("b", Guarantee(24 * kMiB)).ok());
  EXPECT_EQ(control_->Set("a", Limit(39 * kMiB)).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Undoing a change must not break guarantees given since, either.
  ASSERT_TRUE(control_->Set("a", Guarantee(30 * kMiB)).ok());
  ASSERT_TRUE(control_->Set("b", Guarantee(30 * kMiB)).ok());
  EXPECT_EQ(control_->Unset("a", {}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Of("a").guarantee_bytes, 30 * kMiB);
}

TEST_F(QuotaControlTest, WhatMakesNoSenseWithTheConfigurationIsSkippedAndRemembered) {
  control_->Configure({{"a", {}}, {"b", {}}}, {});
  ASSERT_TRUE(control_->Set("b", Guarantee(40 * kMiB)).ok());
  ASSERT_TRUE(control_->Set("a", Limit(50 * kMiB)).ok());
  const std::vector<std::string> said =
      control_->Configure({{"a", {.guarantee_bytes = 30 * kMiB}}, {"b", {}}}, {});
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], HasSubstr("the overrides of tenant \"b\" (guarantee_bytes) conflict"));
  EXPECT_THAT(said[0], HasSubstr("add up to 70.00 MiB"));
  EXPECT_EQ(Of("b"), Quota());
  EXPECT_THAT(control_->Overridden("b"), IsEmpty());
  EXPECT_EQ(Of("a"), (Quota{.limit_bytes = 50 * kMiB, .guarantee_bytes = 30 * kMiB}));
  EXPECT_THAT(control_->Configure({{"a", {}}, {"b", {}}}, {}), IsEmpty());
  EXPECT_EQ(Of("b"), (Quota{.guarantee_bytes = 40 * kMiB}));
}

TEST_F(QuotaControlTest, ACheckTellsOfConflictsAndChangesNothing) {
  control_->Configure({{"a", {}}, {"b", {}}}, {});
  ASSERT_TRUE(control_->Set("b", Guarantee(40 * kMiB)).ok());
  const std::map<std::string, Quota> next = {{"a", {.guarantee_bytes = 30 * kMiB}}, {"b", {}}};
  const std::vector<std::string> said = control_->CheckConfigure(next, {});
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(Of("a"), Quota());
  EXPECT_EQ(Of("b"), (Quota{.guarantee_bytes = 40 * kMiB}));
  EXPECT_THAT(control_->Skipped(), IsEmpty());
  EXPECT_THAT(control_->Overridden("b"), ElementsAre("guarantee_bytes"));
  EXPECT_EQ(control_->Configure(next, {}), said);
}

TEST_F(QuotaControlTest, AnOverrideThatMakesRoomForAnotherIsFoundWhateverTheirOrder) {
  const std::map<std::string, Quota> tenants = {{"a", {.guarantee_bytes = 10 * kMiB}},
                                                {"b", {.guarantee_bytes = 50 * kMiB}}};
  control_->Configure(tenants, {});
  ASSERT_TRUE(control_->Set("b", Guarantee(10 * kMiB)).ok());
  ASSERT_TRUE(control_->Set("a", Guarantee(50 * kMiB)).ok());
  EXPECT_THAT(control_->Configure(tenants, {}), IsEmpty());
  EXPECT_EQ(Of("a").guarantee_bytes, 50 * kMiB);
  EXPECT_EQ(Of("b").guarantee_bytes, 10 * kMiB);
}

TEST_F(QuotaControlTest, DevicesAreThoseThatThereAre) {
  control_->Configure({{"a", {}}}, {});
  QuotaOverride change = Limit(kMiB);
  change.set.insert("devices");
  change.values.device_limits["GPU-9"] = 0;
  EXPECT_TRUE(absl::IsNotFound(control_->Set("a", change).status()));
  change = Limit(kMiB);
  change.set.insert("guarantees");
  change.values.device_guarantees["GPU-9"] = 0;
  EXPECT_TRUE(absl::IsNotFound(control_->Set("a", change).status()));
  EXPECT_EQ(Of("a"), Quota());
  // An override whose device is gone by now does not block other changes.
  Start({{"a", {.set = {"devices"}, .values = {.device_limits = {{"GPU-9", 0}}}}}});
  control_->Configure({{"a", {}}}, {});
  EXPECT_TRUE(control_->Set("a", Limit(2 * kMiB)).ok());
}

TEST_F(QuotaControlTest, AChangeMustMakeSense) {
  control_->Configure({{"a", {}}}, {});
  EXPECT_TRUE(absl::IsInvalidArgument(control_->Set("a", {}).status()));
  EXPECT_THAT(control_->Overridden("a"), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(control_->UpdateTenant("b", std::nullopt, Limit(1)).status()));
}

TEST_F(QuotaControlTest, RevocableMemoryIsOfKindsThatCanBe) {
  control_->Configure({{"a", {}}}, {});
  ASSERT_TRUE(control_->Set("a", {.set = {"revocable"}, .values = {.revocable = true}}).ok());
  for (const std::optional<Kind> kind : {std::optional(Kind::kVmm), std::optional<Kind>()}) {
    EXPECT_THAT(control_->Configure({{"a", {.kind = kind}}}, {}), IsEmpty());
    EXPECT_TRUE(Of("a").revocable);
  }
  const std::vector<std::string> said = control_->Configure({{"a", {.kind = Kind::kMempool}}}, {});
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], HasSubstr("the tenant's kind is mempool"));
  EXPECT_FALSE(Of("a").revocable);
}

// A tenant that no rule has made yet is there for an override that is in force alone.
TEST_F(QuotaControlTest, ASkippedOverrideCountsInLaterChanges) {
  Start({{"user-1", Guarantee(40 * kMiB)}});
  control_->Configure({{"a", {.guarantee_bytes = 30 * kMiB}}}, {});
  EXPECT_THAT(control_->Skipped(), SizeIs(1));
  EXPECT_TRUE(absl::IsNotFound(broker_->views().GetTenant("user-1").status()));
  const absl::Status refused = control_->Set("user-1", Limit(50 * kMiB)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the earlier overrides of user-1 (guarantee_bytes) count as well"));
  const absl::StatusOr<QuotaControl::Outcome> unset = control_->Unset("user-1", {});
  ASSERT_TRUE(unset.ok()) << unset.status();
  EXPECT_EQ(unset->tenant.name, "user-1");
  EXPECT_THAT(control_->Skipped(), IsEmpty());
}

// --- Tenants made at run time ----------------------------------------------------------

TEST_F(QuotaControlTest, OverridesGoOnTopOfAMadeTenantsQuota) {
  control_->Configure({{"team", {}}}, {.max_segments = 9});
  ASSERT_TRUE(control_->CreateTenant({.tenant = "job", .quota = Limit(10)}).ok());
  EXPECT_EQ(Of("job"), (Quota{.limit_bytes = 10, .max_segments = 9}));
  ASSERT_TRUE(control_->Set("job", Limit(20)).ok());
  absl::StatusOr<TenantView> changed = control_->UpdateTenant("job", std::nullopt, Limit(15));
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->quota.limit_bytes, 20u) << "the operator's override holds";
  control_->Configure({{"team", {}}}, {.max_segments = 8});
  EXPECT_EQ(Of("job"), (Quota{.limit_bytes = 20, .max_segments = 8}));
  absl::StatusOr<QuotaControl::Outcome> unset = control_->Unset("job", {});
  ASSERT_TRUE(unset.ok()) << unset.status();
  EXPECT_EQ(Of("job"), (Quota{.limit_bytes = 15, .max_segments = 8}));
}

TEST_F(QuotaControlTest, AnOverrideOfBeforeHoldsForAMadeTenantUnderItsParent) {
  Start({{"job", Limit(20)}});
  control_->Configure({{"team", {}}}, {});
  absl::StatusOr<TenantView> made =
      control_->CreateTenant({.tenant = "job", .parent = "team", .quota = Limit(10)});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->quota, (Quota{.limit_bytes = 20, .parent = "team"}));
  EXPECT_THAT(made->above, ElementsAre("team"));
}

TEST_F(QuotaControlTest, AnOverrideThatDoesNotFitAMadeTenantIsSkipped) {
  Start({{"job", Guarantee(40 * kMiB)}});
  control_->Configure({{"team", {.guarantee_bytes = 30 * kMiB}}}, {});
  absl::StatusOr<TenantView> made = control_->CreateTenant({.tenant = "job", .quota = Limit(10)});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->quota, (Quota{.limit_bytes = 10}));
  EXPECT_THAT(control_->Skipped(), SizeIs(1));
  EXPECT_THAT(control_->Overridden("job"), IsEmpty());
}

TEST_F(QuotaControlTest, TheConfigurationDecidesAboutATenantThatItNames) {
  control_->Configure({}, {});
  ASSERT_TRUE(control_->CreateTenant({.tenant = "job", .quota = Limit(10)}).ok());
  ASSERT_TRUE(control_->Set("job", Limit(20)).ok());
  control_->Configure({{"job", {.max_segments = 3}}}, {});
  absl::StatusOr<TenantView> changed = control_->UpdateTenant("job", std::nullopt, Limit(15));
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(Of("job"), (Quota{.limit_bytes = 20, .max_segments = 3}));
}

TEST_F(QuotaControlTest, AReloadMayNotTakeTheGuaranteesOfMadeTenants) {
  control_->Configure({{"team", {}}}, {});
  ASSERT_TRUE(control_->CreateTenant({.tenant = "job", .quota = Guarantee(40 * kMiB)}).ok());
  EXPECT_TRUE(control_->CheckMade({{"team", {.guarantee_bytes = 20 * kMiB}}}, {}).ok());
  const absl::Status refused = control_->CheckMade({{"team", {.guarantee_bytes = 30 * kMiB}}}, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("job 40.00 MiB"));
  // If it names the tenant, it decides.
  EXPECT_TRUE(
      control_->CheckMade({{"team", {.guarantee_bytes = 30 * kMiB}}, {"job", {}}}, {}).ok());
  // An override that raises a guarantee counts them, too.
  EXPECT_TRUE(absl::IsFailedPrecondition(control_->Set("team", Guarantee(30 * kMiB)).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      control_->CreateTenant({.tenant = "more", .quota = Guarantee(30 * kMiB)}).status()));
}

TEST_F(QuotaControlTest, AReloadMayNotPutMadeTenantsTooDeep) {
  control_->Configure({{"team", {}}}, {});
  ASSERT_TRUE(control_->CreateTenant({.tenant = "job", .parent = "team"}).ok());
  ASSERT_TRUE(control_->CreateTenant({.tenant = "step", .parent = "job"}).ok());
  // Returns a configuration with so many tenants above "team".
  const auto above = [](size_t count) {
    std::map<std::string, Quota> tenants;
    std::string below = "team";
    for (size_t i = 0; i < count; ++i) {
      const std::string name = absl::StrCat("above", i);
      tenants.emplace(below, Quota{.parent = name});
      below = name;
    }
    tenants.emplace(below, Quota());
    return tenants;
  };
  EXPECT_TRUE(control_->CheckMade(above(kMaxTenantLevels - 3), {}).ok());
  const absl::Status refused = control_->CheckMade(above(kMaxTenantLevels - 2), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tenant \"step\""));
  EXPECT_TRUE(absl::IsFailedPrecondition(control_->CheckMade(above(kMaxTenantLevels), {})));
  // The reader of the configuration counts the levels of its tenants (SettleParents).
  std::map<std::string, Quota> named = above(kMaxTenantLevels + 5);
  named.emplace("job", Quota());
  named.emplace("step", Quota{.parent = "job"});
  EXPECT_TRUE(control_->CheckMade(named, {}).ok());
}

TEST_F(QuotaControlTest, AReloadMayNotPutChildrenTooDeepByTheDefaultParent) {
  control_->Configure({{"team", {}}}, {});
  const auto session = broker_->OpenSession("alice", {.peer = {.pid = 7, .start_time = 1}});
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(broker_->tenants().CreateChild(CallIn(*broker_, *session), "step", {}).ok());
  std::map<std::string, Quota> tenants;
  for (size_t level = 1; level < kMaxTenantLevels; ++level) {
    tenants.emplace(absl::StrCat("level", level),
                    Quota{.parent = level == 1 ? "" : absl::StrCat("level", level - 1)});
  }
  EXPECT_TRUE(control_->CheckMade(tenants, {.parent = "level6"}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(control_->CheckMade(tenants, {.parent = "level7"})));
}

TEST_F(QuotaControlTest, EndingAMadeTenantSaysWhatItHolds) {
  control_->Configure({}, {});
  ASSERT_TRUE(control_->CreateTenant({.tenant = "job", .owner = "slurm"}).ok());
  const auto session = broker_->OpenSession("job", {.peer = {.pid = 7, .start_time = 1}});
  ASSERT_TRUE(session.ok()) << session.status();
  absl::Notification waits;
  const auto end = [&](absl::Duration wait) {
    return broker_->tenants().End("job", "slurm", {}, absl::Now() + wait, [&] {
      if (wait > absl::ZeroDuration() && !waits.HasBeenNotified()) waits.Notify();
      return false;
    });
  };
  const auto held = end(absl::ZeroDuration());
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(held->gone);
  EXPECT_THAT(held->sessions, ElementsAre(std::pair(session->id, 7)));
  EXPECT_TRUE(absl::IsFailedPrecondition(broker_->OpenSession("job", {}).status()));
  std::thread ends([&] {
    waits.WaitForNotification();
    broker_->ProcessGone(session->id);
  });
  EXPECT_TRUE(end(absl::Minutes(1))->gone);
  ends.join();
  EXPECT_TRUE(absl::IsNotFound(end(absl::ZeroDuration()).status()));
}

}  // namespace quota_control_test
}  // namespace gpumemd
