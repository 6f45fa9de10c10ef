// SPDX-License-Identifier: Apache-2.0
// What it costs to take memory from others, when there are many of them.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace taking_cost_test {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr uint64_t kTenants = 10'000;

class TakingCostTest : public LedgerFixture {
 protected:
  TakingCostTest() : LedgerFixture({.max_sessions = 2 * kTenants}, Devices()) {}

  static std::vector<DeviceInfo> Devices() {
    std::vector<DeviceInfo> devices = {Device("GPU-1", {Kind::kVmm})};
    devices[0].capacity_bytes = kTenants * kGranule;
    return devices;
  }
  // Opens a session of each tenant, which acquires one segment. Returns them in this order.
  std::vector<std::pair<SessionId, Operation::Item>> FillDevice(bool revocable) {
    std::vector<std::pair<SessionId, Operation::Item>> all;
    for (uint64_t i = 0; i < kTenants; ++i) {
      const SessionId session = OpenSession(absl::StrCat("tenant-", i));
      const auto operation = Ask(session, {.bytes = kGranule, .revocable = revocable});
      EXPECT_TRUE(Granted(operation)) << operation.status();
      if (!Granted(operation)) break;
      Finish(**operation);
      all.emplace_back(session, (*operation)->items[0]);
    }
    return all;
  }
};

TEST_F(TakingCostTest, ARevocationLooksAtWhatItTakes) {
  ledger.tenants().Configure({{"high", {.priority = 1}}}, {});
  const auto all = FillDevice(/*revocable=*/true);
  ASSERT_THAT(all, SizeIs(kTenants));
  const SessionId high = OpenSession("high");
  EXPECT_TRUE(ledger.sessions().BeginCall(high).ok());
  for (uint64_t granules : {1, 8}) {
    const uint64_t before = ledger.admission().looks();
    const auto waits =
        ledger.admission().BeginAcquire(high, {.bytes = granules * kGranule, .waits = true});
    ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
    EXPECT_LE(ledger.admission().looks() - before, 4 * (granules + 1));
  }
  // The newest.
  EXPECT_THAT(ledger.state().revoking, SizeIs(9));
  for (uint64_t i = kTenants - 9; i < kTenants; ++i) {
    EXPECT_TRUE(ledger.state().revoking.contains(all[i].second.segment)) << i;
  }
}

TEST_F(TakingCostTest, WithoutEnoughThatMayBeTakenNoneIsLookedAt) {
  FillDevice(/*revocable=*/true);
  const uint64_t before = ledger.admission().looks();
  const SessionId equal = OpenSession("equal");
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(equal, kGranule).status()));
  EXPECT_EQ(ledger.admission().looks(), before);
  EXPECT_TRUE(ledger.state().revoking.empty());
}

TEST_F(TakingCostTest, TheRichestRetainerIsKnown) {
  ledger.tenants().Configure({{"team", {}}, {"member", {.parent = "team"}}}, {});
  const auto all = FillDevice(/*revocable=*/false);
  for (const auto& [session, item] : all) Release(session, {item});
  EXPECT_EQ(ledger.segments().RichestRetainer(0)->name, "tenant-0") << "the first of equals";
  EXPECT_EQ(ledger.segments().RichestRetainer(0, ledger.state().FindTenant("team")), nullptr);
  // One that takes memory of the others takes no more than it needs.
  const SessionId member = OpenSession("member");
  EXPECT_TRUE(Soon(Ask(member, 3 * kGranule)));
  EXPECT_THAT(DestroyDoomed(),
              ElementsAre(all[0].second.segment, all[1].second.segment, all[10].second.segment));
  Release(member, {AcquireOne(member, 3 * kGranule, "GPU-1")});
  EXPECT_EQ(ledger.segments().RichestRetainer(0)->name, "member");
  EXPECT_EQ(ledger.segments().RichestRetainer(0, ledger.state().FindTenant("team"))->name,
            "member");
  SetQuota("member", {});
  EXPECT_EQ(ledger.segments().RichestRetainer(0, ledger.state().FindTenant("team")), nullptr);
  SetQuota("member", {.parent = "team"});
  EXPECT_EQ(ledger.segments().RichestRetainer(0, ledger.state().FindTenant("team"))->name,
            "member");
}

}  // namespace taking_cost_test
}  // namespace gpumemd
