// SPDX-License-Identifier: Apache-2.0
// Compares the metrics' measures with the operations done.
#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

class LedgerMeasuresTest : public LedgerFixture {
 protected:
  LedgerMeasures::Tenant Of(absl::string_view name) {
    for (const LedgerMeasures::Tenant& tenant : ledger.look().Measure().tenants) {
      if (tenant.name == name) return tenant;
    }
    ADD_FAILURE() << "no tenant " << name;
    return {.devices = std::vector<LedgerMeasures::OnDevice>(2)};
  }
  static uint64_t In(const LedgerMeasures::OnDevice& on, SegmentState state) {
    return on.charged[static_cast<size_t>(state)];
  }
};

TEST_F(LedgerMeasuresTest, BytesByStateOfATenantAndWhoItIsUnder) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 100 * kGranule}},
                              {"member", {.guarantee_bytes = 3 * kGranule, .parent = "team"}}},
                             {});
  const SessionId session = OpenSession("member");
  AcquireOne(session, 2 * kGranule);
  const auto released = AcquireOne(session, 5 * kGranule);
  Release(session, {released});
  const Operation pending = Begin(session, 7 * kGranule, 1, "GPU-2");

  for (const char* name : {"member", "team"}) {
    const LedgerMeasures::Tenant tenant = Of(name);
    EXPECT_EQ(In(tenant.devices[0], SegmentState::kLeased), 2 * kGranule) << name;
    EXPECT_EQ(In(tenant.devices[0], SegmentState::kRetained), 5 * kGranule) << name;
    EXPECT_EQ(In(tenant.devices[1], SegmentState::kPending), 7 * kGranule) << name;
    EXPECT_EQ(tenant.segments, 3) << name;
    EXPECT_EQ(tenant.sessions, 1) << name;
  }
  EXPECT_EQ(Of("member").parent, "team");
  EXPECT_EQ(Of("team").parent, "");
  EXPECT_EQ(Of("member").devices[0].guarantee, 3 * kGranule);
  EXPECT_EQ(Of("team").devices[0].limit, 100 * kGranule);
  EXPECT_TRUE(Of("team").devices[0].ever_charged);
  const LedgerMeasures measures = ledger.look().Measure();
  EXPECT_EQ(measures.devices[0].charged, 7 * kGranule);
  EXPECT_EQ(measures.devices[1].charged, 7 * kGranule);
  Finish(pending);
}

TEST_F(LedgerMeasuresTest, WaitersAndDenials) {
  ledger.tenants().Configure({{"team", {}}, {"a", {.limit_bytes = 4 * kGranule, .parent = "team"}}},
                             {});
  const SessionId session = OpenSession("a");
  AcquireOne(session, 4 * kGranule);
  EXPECT_FALSE(
      ledger.admission().BeginAcquire(session, {.device_uuid = "GPU-1", .bytes = kGranule}).ok());
  auto waits = ledger.admission().BeginAcquire(
      session, {.device_uuid = "GPU-1", .bytes = kGranule, .count = 2, .waits = true});
  ASSERT_TRUE(waits.ok()) << waits.status();
  ASSERT_TRUE(waits->waiter);

  for (const char* name : {"a", "team"}) {
    EXPECT_EQ(Of(name).devices[0].waiting, 1) << name;
    EXPECT_EQ(Of(name).devices[0].waited_for, 2 * kGranule) << name;
    EXPECT_EQ(Of(name).devices[1].waiting, 0) << name;
  }
  const std::map<Denial::Cause, uint64_t> once = {{Denial::Cause::kDeviceLimit, 1}};
  EXPECT_EQ(Of("a").denials, once);
  EXPECT_TRUE(Of("team").denials.empty()) << "counted where it was denied, and only there";
  ledger.admission().EndWait(*waits->waiter, /*expired=*/false).IgnoreError();
}

TEST_F(LedgerMeasuresTest, ARequestForMemoryOnItsWayBackIsNoWaiter) {
  const SessionId owner = OpenSession("b"), session = OpenSession("a");
  Release(owner, Acquire(owner, kCapacity));
  const auto soon =
      ledger.admission().BeginAcquire(session, {.device_uuid = "GPU-1", .bytes = kCapacity});
  ASSERT_TRUE(soon.ok() && soon->waiter) << soon.status();
  EXPECT_EQ(Of("a").devices[0].waiting, 0);
  EXPECT_EQ(Of("a").devices[0].waited_for, 0);
  ledger.admission().EndWait(*soon->waiter, /*expired=*/false).IgnoreError();
}

TEST_F(LedgerMeasuresTest, WhatAProcessLeavesIsReclaimedOnceNobodyHasIt) {
  const SessionId one = OpenSession("t");
  const SessionId other = OpenSession("t");
  const auto shared = AcquireOne(one, 3 * kGranule);
  AcquireOne(one, 2 * kGranule, "GPU-2");
  Release(one, {AcquireOne(one, 8 * kGranule)});  // not held any more, so not reclaimed
  OpenTicket(other, Share(one, shared.lease));
  const auto reclaimed = [&](size_t device) {
    return ledger.look().Measure().devices[device].reclaimed;
  };

  ledger.endings().SocketClosed(one);
  EXPECT_EQ(reclaimed(1), 0) << "its process may still map it";
  ledger.endings().ProcessGone(one);
  EXPECT_EQ(reclaimed(0), 0) << "the other session has it";
  EXPECT_EQ(reclaimed(1), 2 * kGranule);
  ledger.endings().ProcessGone(other);  // before its socket is seen to be closed
  EXPECT_EQ(reclaimed(0), 3 * kGranule);
  EXPECT_EQ(reclaimed(1), 2 * kGranule);
  DestroyDoomed();
  EXPECT_EQ(reclaimed(0), 3 * kGranule);
}

TEST_F(LedgerMeasuresTest, WhatIsTakenPastTheBroker) {
  ledger.tenants().Configure({{"team", {}}, {"a", {.parent = "team"}}}, {});
  const SessionId one = OpenSession("a");
  const SessionId other = OpenSession("a");
  ledger.SetUnbrokered({{.session = one, .device_uuid = "GPU-2", .bytes = 5},
                        {.session = other, .device_uuid = "GPU-2", .bytes = 6},
                        {.session = other, .device_uuid = "GPU-9", .bytes = 7},
                        {.session = SessionId{99}, .device_uuid = "GPU-2", .bytes = 8}});
  EXPECT_EQ(Of("a").devices[1].unbrokered, 11);
  EXPECT_EQ(Of("a").devices[0].unbrokered, 0);
  EXPECT_EQ(Of("team").devices[1].unbrokered, 0) << "of its own processes alone";
}

}  // namespace
}  // namespace gpumemd
