// SPDX-License-Identifier: Apache-2.0
// Tenants that operators make at run time. Those of sessions: made_children_test.cc.
#include <string>
#include <vector>

#include "daemon/core/ledger/testing/restart_fixture.h"
#include "daemon/core/quota/testing/change.h"

namespace gpumemd {
namespace {

using absl::StatusCode;

class MadeTenantsTest : public LedgerRestartFixture {
 protected:
  bool Exists(absl::string_view tenant) { return ledger.look().GetTenant(tenant).ok(); }
};

TEST_F(MadeTenantsTest, ExistsWithoutSessionsAndHoldsItsLimit) {
  Configure({{"team", {}}});
  const absl::StatusOr<bool> made = ledger.made_tenants().Create({.tenant = "job-1",
                                                                  .parent = "team",
                                                                  .owner = "slurm",
                                                                  .quota = Limit(2 * kGranule),
                                                                  .by = {{.uid = 7, .pid = 8}}});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(*made);
  const TenantView view = *ledger.look().GetTenant("job-1");
  EXPECT_FALSE(view.configured);
  ASSERT_TRUE(view.made.has_value());
  EXPECT_EQ(view.made->owner, "slurm");
  EXPECT_EQ(view.made->uid, 7u);
  EXPECT_EQ(view.made->parent, "team");
  EXPECT_EQ(view.made->created, now);

  const SessionId session = OpenSession("job-1");
  AcquireOne(session, 2 * kGranule);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, kGranule).status()));
  EXPECT_EQ(Usage("team").leased, 2 * kGranule);
  ledger.endings().ProcessGone(session);
  DestroyDoomed();
  EXPECT_TRUE(Exists("job-1"));
}

TEST_F(MadeTenantsTest, TheSameRequestOnceMoreChangesNothing) {
  const MadeTenantSpec spec = {.tenant = "job-1", .owner = "slurm", .quota = Limit(kGranule)};
  EXPECT_TRUE(*ledger.made_tenants().Create(spec));
  EXPECT_FALSE(*ledger.made_tenants().Create(spec));
  MadeTenantSpec other = spec;
  other.owner = "k8s";
  EXPECT_EQ(Create(other), StatusCode::kAlreadyExists);
  other = spec;
  other.quota = Limit(2 * kGranule);
  EXPECT_EQ(Create(other), StatusCode::kAlreadyExists);
}

TEST_F(MadeTenantsTest, RefusesNamesAndParentsThatItCannotHave) {
  Configure({{"team", {}}});
  EXPECT_EQ(Create({.tenant = "team"}), StatusCode::kAlreadyExists);
  for (const char* name : {"", "a b", "a/b", "a:b", "\xff"}) {
    EXPECT_EQ(Create({.tenant = name}), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(Create({.tenant = std::string(64, 'a')}), StatusCode::kInvalidArgument);
  EXPECT_EQ(Create({.tenant = "a", .owner = "two\nlines"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(Create({.tenant = "a", .owner = std::string(33, 'a')}), StatusCode::kInvalidArgument);
  EXPECT_EQ(Create({.tenant = "a", .parent = "none"}), StatusCode::kNotFound);
  OpenSession("uid-1");
  EXPECT_EQ(Create({.tenant = "a", .parent = "uid-1"}), StatusCode::kNotFound)
      << "a rule's tenant may be gone at any time";
  QuotaOverride elsewhere;
  elsewhere.set = {"devices"};
  elsewhere.values.device_limits["GPU-9"] = 1;
  EXPECT_EQ(Create({.tenant = "a", .quota = elsewhere}), StatusCode::kNotFound);
  std::string parent = "team";
  for (int level = 2; level <= 8; ++level) {
    const std::string name = "level-" + std::to_string(level);
    EXPECT_EQ(Create({.tenant = name, .parent = parent}), StatusCode::kOk);
    parent = name;
  }
  EXPECT_EQ(Create({.tenant = "level-9", .parent = parent}), StatusCode::kFailedPrecondition);
}

TEST_F(MadeTenantsTest, ATenantOfARuleBecomesTheMadeOne) {
  const SessionId session = OpenSession("job-1");
  AcquireOne(session, 3 * kGranule);
  EXPECT_EQ(Create({.tenant = "job-1", .quota = Limit(2 * kGranule)}), StatusCode::kOk);
  EXPECT_EQ(Usage("job-1").leased, 3 * kGranule) << "nothing is revoked";
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, kGranule).status()));
}

TEST_F(MadeTenantsTest, GuaranteesThatCannotAllBeKeptAreRefused) {
  Configure({{"team", {.guarantee_bytes = 600 * kGranule}}});
  EXPECT_EQ(Create({.tenant = "a", .quota = Guarantee(500 * kGranule)}),
            StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Exists("a"));
  EXPECT_EQ(Create({.tenant = "a", .quota = Guarantee(400 * kGranule)}), StatusCode::kOk);
  EXPECT_EQ(ledger.made_tenants().Update("a", std::nullopt, Guarantee(500 * kGranule)).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(Usage("a").guarantee, 400 * kGranule);
  // Under a parent, what the parent is guaranteed covers it.
  EXPECT_EQ(Create({.tenant = "b", .parent = "team", .quota = Guarantee(500 * kGranule)}),
            StatusCode::kOk);
}

TEST_F(MadeTenantsTest, UpdateChangesFieldsOfTheOwnersTenantAlone) {
  EXPECT_EQ(Create({.tenant = "a", .owner = "slurm", .quota = Limit(kGranule)}), StatusCode::kOk);
  MadeTenants& made = ledger.made_tenants();
  EXPECT_EQ(made.Update("a", "k8s", Limit(5)).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(made.Update("b", "slurm", Limit(5)).code(), StatusCode::kNotFound);
  EXPECT_EQ(made.Update("a", "slurm", {}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(made.Update("a", "slurm", Limit(3 * kGranule)).ok());
  EXPECT_EQ(Usage("a").limit, 3 * kGranule);
  QuotaOverride clear;
  clear.clear = {"limit_bytes"};
  EXPECT_TRUE(made.Update("a", std::nullopt, clear).ok());
  EXPECT_EQ(Usage("a").limit, kCapacity);
}

TEST_F(MadeTenantsTest, FieldsThatItDoesNotSetFollowTheDefaults) {
  ledger.tenants().Configure({}, {.limit_bytes = 4 * kGranule, .scrub = true});
  QuotaOverride own;
  own.set = {"priority"};
  own.values.priority = 3;
  EXPECT_EQ(Create({.tenant = "a", .quota = own}), StatusCode::kOk);
  EXPECT_EQ(Usage("a").limit, 4 * kGranule);
  ledger.tenants().Configure({}, {.limit_bytes = 5 * kGranule});
  EXPECT_EQ(Usage("a").limit, 5 * kGranule);
  EXPECT_EQ(ledger.look().GetQuota("a")->priority, 3);
  EXPECT_FALSE(ledger.look().GetQuota("a")->scrub);
}

TEST_F(MadeTenantsTest, EndedItGetsNothingNewAndGoesWithItsLastMemory) {
  EXPECT_EQ(Create({.tenant = "a", .owner = "slurm"}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "b", .parent = "a"}), StatusCode::kOk);
  const SessionId session = OpenSession("b");
  const auto item = AcquireOne(session, kGranule), kept = AcquireOne(session, kGranule);
  Release(session, {kept});
  const absl::StatusOr<Admission> waits =
      ledger.admission().BeginAcquire(session, {.bytes = kCapacity, .waits = true});
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();

  EXPECT_EQ(ledger.made_tenants().End("a", "k8s").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(ledger.made_tenants().End("c", std::nullopt).code(), StatusCode::kNotFound);
  EXPECT_TRUE(ledger.made_tenants().End("a", "slurm").ok());
  EXPECT_TRUE(ledger.made_tenants().End("a", "slurm").ok()) << "once more";
  EXPECT_TRUE(ledger.look().GetTenant("b")->made->ending);
  EXPECT_EQ(StateOf(kept.segment), SegmentState::kReleasing) << "nothing is retained";

  const auto told = ledger.admission().AdmitWaiting();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].operation.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ask(session, kGranule).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ledger.OpenSession("b", {}, NewSecret()).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(ledger.sessions().CheckRoom("a", {}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Create({.tenant = "c", .parent = "a"}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Create({.tenant = "b", .parent = "a"}), StatusCode::kAlreadyExists);
  EXPECT_EQ(ledger.made_tenants().Update("b", std::nullopt, Limit(1)).code(),
            StatusCode::kFailedPrecondition);

  Release(session, {item});
  DestroyDoomed();
  EXPECT_TRUE(Exists("a"));
  ledger.endings().ProcessGone(session);
  EXPECT_FALSE(Exists("b"));
  EXPECT_FALSE(Exists("a"));
  EXPECT_EQ(ledger.made_tenants().End("a", "slurm").code(), StatusCode::kNotFound);
  EXPECT_EQ(Create({.tenant = "b"}), StatusCode::kOk) << "the names are free";
}

TEST_F(MadeTenantsTest, EndedItsGuaranteeIsForOthers) {
  EXPECT_EQ(Create({.tenant = "a", .quota = Guarantee(800 * kGranule)}), StatusCode::kOk);
  const SessionId session = OpenSession("a"), other = OpenSession("b");
  AcquireOne(session, kGranule);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(other, 500 * kGranule).status()));
  EXPECT_EQ(Create({.tenant = "c", .quota = Guarantee(500 * kGranule)}),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(ledger.made_tenants().End("a", std::nullopt).ok());
  AcquireOne(other, 500 * kGranule);
  EXPECT_EQ(Create({.tenant = "c", .quota = Guarantee(500 * kGranule)}), StatusCode::kOk);
}

TEST_F(MadeTenantsTest, ItsPublicationsEndWithIt) {
  EXPECT_EQ(Create({.tenant = "a"}), StatusCode::kOk);
  const SessionId session = OpenSession("a");
  const auto item = AcquireOne(session, kGranule);
  ASSERT_TRUE(ledger.publications().Publish(session, {.name = "w", .leases = {item.lease}}).ok());
  ledger.endings().ProcessGone(session);
  EXPECT_TRUE(ledger.made_tenants().End("a", std::nullopt).ok());
  EXPECT_TRUE(Exists("a"));
  EXPECT_TRUE(ledger.endings().HasAny());
  ledger.endings().Continue();
  EXPECT_FALSE(ledger.endings().HasAny());
  DestroyDoomed();
  EXPECT_FALSE(Exists("a"));
}

TEST_F(MadeTenantsTest, AReloadKeepsMadeTenantsAndTakesOverTheirNames) {
  EXPECT_EQ(Create({.tenant = "a", .owner = "slurm", .quota = Limit(kGranule)}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "b"}), StatusCode::kOk);
  const SessionId session = OpenSession("b");
  AcquireOne(session, kGranule);
  EXPECT_TRUE(ledger.made_tenants().End("b", std::nullopt).ok());
  Configure({{"a", {.limit_bytes = 9 * kGranule}}, {"b", {}}});
  EXPECT_EQ(Usage("a").limit, 9 * kGranule);
  EXPECT_EQ(ledger.look().GetTenant("a")->made->owner, "slurm");
  EXPECT_FALSE(ledger.look().GetTenant("b")->made) << "the configuration's alone";
  AcquireOne(session, kGranule);
  EXPECT_TRUE(ledger.made_tenants().End("a", "slurm").ok());
  EXPECT_TRUE(Exists("a"));
  EXPECT_FALSE(ledger.look().GetTenant("a")->made);
}

TEST_F(MadeTenantsTest, AReloadThatDropsTheNameLeavesTheMadeQuota) {
  EXPECT_EQ(Create({.tenant = "a", .quota = Limit(kGranule)}), StatusCode::kOk);
  Configure({{"a", {.limit_bytes = 9 * kGranule}}});
  Configure({});
  EXPECT_EQ(Usage("a").limit, kGranule);
}

TEST_F(MadeTenantsTest, SurvivesARestartWithItsQuotaOwnerAndEnd) {
  Configure({{"team", {}}});
  QuotaOverride own = Limit(5 * kGranule);
  own.set.insert({"devices", "priority", "kind", "release", "scrub", "idle_suspend_ms", "preload"});
  own.values.device_limits = {{"GPU-1", 2 * kGranule}, {"GPU-2", 3 * kGranule}};
  own.values.priority = -7;
  own.values.kind = Kind::kIpc;
  own.values.release = ReleasePolicy::kOnExit;
  own.values.scrub = true;
  own.values.idle_suspend = absl::Seconds(3);
  own.values.preload = PreloadMode::kBroker;
  own.clear = {"max_sessions"};
  const MadeTenantSpec spec = {
      .tenant = "a", .parent = "team", .owner = "slurm", .quota = own, .by = {{.uid = 5}}};
  EXPECT_EQ(Create(spec), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "b", .parent = "a"}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "gone"}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "ending"}), StatusCode::kOk);
  const SessionId session = OpenSessionOf("ending", 9);
  AcquireOne(session, kGranule);
  EXPECT_TRUE(ledger.made_tenants().End("gone", std::nullopt).ok());
  EXPECT_TRUE(ledger.made_tenants().End("ending", std::nullopt).ok());
  const Quota before = *ledger.look().GetQuota("a");
  now += absl::Seconds(9);

  const Restored restored = Restart();
  EXPECT_TRUE(restored.without_guarantees.empty());
  EXPECT_EQ(*ledger.look().GetQuota("a"), before);
  EXPECT_FALSE(*ledger.made_tenants().Create(spec)) << "its own quota is the same";
  EXPECT_EQ(ledger.look().GetTenant("a")->made->created, now - absl::Seconds(9));
  EXPECT_EQ(ledger.look().GetTenant("b")->made->parent, "a");
  EXPECT_FALSE(Exists("gone"));
  EXPECT_EQ(Ask(session, kGranule).status().code(), StatusCode::kFailedPrecondition);
  // Fewer devices than before leave no record of the others.
  QuotaOverride fewer;
  fewer.clear = {"devices"};
  EXPECT_TRUE(ledger.made_tenants().Update("a", "slurm", fewer).ok());
  Restart({.dead = {session}});
  EXPECT_TRUE(ledger.look().GetQuota("a")->device_limits.empty());
  DestroyDoomed();
  EXPECT_FALSE(Exists("ending"));
  const auto again = ledger.made_tenants().Create({.tenant = "gone"});
  EXPECT_TRUE(again.ok() && *again);
}

TEST_F(MadeTenantsTest, ThereIsABoundOnThem) {
  std::destroy_at(&ledger);
  std::construct_at(&ledger, std::vector<DeviceInfo>{Device("GPU-1", {Kind::kVmm})},
                    Bounds{.max_made_tenants = 2}, [this] { return now; });
  EXPECT_EQ(Create({.tenant = "a"}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "b"}), StatusCode::kOk);
  EXPECT_EQ(Create({.tenant = "c"}), StatusCode::kResourceExhausted);
  EXPECT_TRUE(ledger.made_tenants().End("a", std::nullopt).ok());
  EXPECT_EQ(Create({.tenant = "c"}), StatusCode::kOk);
}

}  // namespace
}  // namespace gpumemd
