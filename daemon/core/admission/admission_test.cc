// SPDX-License-Identifier: Apache-2.0
// Every limit to the byte: which requests fit, and the denials of the others.
#include <vector>

#include "daemon/core/admission/refusals.h"
#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::HasSubstr;
using AdmissionTest = LedgerFixture;

// --- The last byte fits, one more does not ---------------------------------------------

TEST_F(AdmissionTest, DeviceLimit) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 512 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 511 * kGranule);
  ExpectDenial(Ask(session, kGranule + 1).status(), Denial::Cause::kDeviceLimit, "team", "GPU-1",
               2 * kGranule, 511 * kGranule, 512 * kGranule);
  Acquire(session, kGranule);  // the 512th
  ExpectDenial(Ask(session, 1).status(), Denial::Cause::kDeviceLimit, "team", "GPU-1", kGranule,
               512 * kGranule, 512 * kGranule);
  Acquire(session, kGranule, 1, "GPU-2");  // limits are per device
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 2u);
}

TEST_F(AdmissionTest, ALimitOfOneDeviceGoesBeforeTheCommonOne) {
  ledger.tenants().Configure(
      {{"team", {.limit_bytes = 512 * kGranule, .device_limits = {{"GPU-2", kGranule}}}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, kGranule, 1, "GPU-2");
  ExpectDenial(Ask(session, 1, 1, "GPU-2").status(), Denial::Cause::kDeviceLimit, "team", "GPU-2",
               kGranule, kGranule, kGranule);
  Acquire(session, 512 * kGranule, 1, "GPU-1");
}

TEST_F(AdmissionTest, TotalLimit) {
  ledger.tenants().Configure({{"team", {.total_limit_bytes = 512 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 256 * kGranule, 1, "GPU-1");
  Acquire(session, 256 * kGranule, 1, "GPU-2");
  const absl::Status refused = Ask(session, 1).status();
  ExpectDenial(refused, Denial::Cause::kTotalLimit, "team", "", kGranule, 512 * kGranule,
               512 * kGranule);
  EXPECT_THAT(HelpOf(refused), HasSubstr("--total-limit"));
}

TEST_F(AdmissionTest, MaxSegments) {
  ledger.tenants().Configure({{"team", {.max_segments = 512}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 1, 253);
  Acquire(session, 1, 253, "GPU-2");
  ExpectDenial(Ask(session, 1, 7).status(), Denial::Cause::kMaxSegments, "team", "", 7, 506, 512);
  Acquire(session, 1, 6);
  ExpectDenial(Ask(session, 1).status(), Denial::Cause::kMaxSegments, "team", "", 1, 512, 512);
}

TEST_F(AdmissionTest, Capacity) {
  ledger.tenants().Configure({{"team", {}}, {"other", {}}}, {});
  Acquire(OpenSession("other"), 512 * kGranule);
  const SessionId session = OpenSession("team");
  Acquire(session, 511 * kGranule);
  ExpectDenial(Ask(session, kGranule, 2).status(), Denial::Cause::kCapacity, "team", "GPU-1",
               2 * kGranule, 1023 * kGranule, 1024 * kGranule);
  Acquire(session, kGranule);
  ExpectDenial(Ask(session, 1).status(), Denial::Cause::kCapacity, "team", "GPU-1", kGranule,
               1024 * kGranule, 1024 * kGranule);
}

// The cause is not a limit: raising one would not help.
TEST_F(AdmissionTest, TenantWithoutALimitIsDeniedByTheCapacity) {
  const SessionId session = OpenSession("team");
  ExpectDenial(Ask(session, 512 * kGranule, 3).status(), Denial::Cause::kCapacity, "team", "GPU-1",
               1536 * kGranule, 0, kCapacity);
  Acquire(session, kCapacity);
  ExpectDenial(Ask(session, 1).status(), Denial::Cause::kCapacity, "team", "GPU-1", kGranule,
               kCapacity, kCapacity);
  EXPECT_EQ(Usage("team").limit, kCapacity);
}

class DaemonSegmentsTest : public LedgerFixture {
 protected:
  DaemonSegmentsTest() : LedgerFixture(Bounds{.max_segments = 4}) {}
};

TEST_F(DaemonSegmentsTest, MaxSegmentsOfTheDaemon) {
  Acquire(OpenSession("a"), 1, 2);
  const SessionId session = OpenSession("b");
  ExpectDenial(Ask(session, 1, 3).status(), Denial::Cause::kDaemonLimit, "b", "", 3, 2, 4);
  Acquire(session, 1, 2, "GPU-2");
  const absl::Status refused = Ask(session, 1).status();
  ExpectDenial(refused, Denial::Cause::kDaemonLimit, "b", "", 1, 4, 4);
  EXPECT_THAT(HelpOf(refused), HasSubstr("daemon.max_segments"));
}

// --- The numbers of a denial -----------------------------------------------------------

TEST_F(AdmissionTest, RetainedMemoryDoesNotCountAsUsed) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 4 * kGranule);
  Release(session, Acquire(session, 3 * kGranule));
  ExpectDenial(Ask(session, 5 * kGranule).status(), Denial::Cause::kDeviceLimit, "team", "GPU-1",
               5 * kGranule, 4 * kGranule, 8 * kGranule);
  EXPECT_EQ(Usage("team").retained, 3 * kGranule);  // a denial dooms no segment
}

// `asked` includes segments that could have been reused.
TEST_F(AdmissionTest, AskedIncludesSegmentsThatCouldBeReused) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 4 * kGranule);
  Release(session, Acquire(session, 2 * kGranule));
  ExpectDenial(Ask(session, 2 * kGranule, 3).status(), Denial::Cause::kDeviceLimit, "team", "GPU-1",
               6 * kGranule, 4 * kGranule, 8 * kGranule);
}

// Above a limit that was lowered, more has to be released than was asked for.
TEST_F(AdmissionTest, HelpOfATenantAboveItsLimit) {
  ledger.tenants().Configure({{"team", {}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 10 * kGranule);
  SetQuota("team", {.limit_bytes = 4 * kGranule});
  const absl::Status refused = Ask(session, kGranule).status();
  ExpectDenial(refused, Denial::Cause::kDeviceLimit, "team", "GPU-1", kGranule, 10 * kGranule,
               4 * kGranule);
  EXPECT_THAT(HelpOf(refused), HasSubstr("release 14.00 MiB"));
}

TEST_F(AdmissionTest, AskingForMoreThanTheLimit) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 4 * kGranule}}}, {});
  const absl::Status refused = Ask(OpenSession("team"), 5 * kGranule).status();
  ExpectDenial(refused, Denial::Cause::kDeviceLimit, "team", "GPU-1", 5 * kGranule, 0,
               4 * kGranule);
  EXPECT_THAT(HelpOf(refused), HasSubstr("ask for less"));
}

// `used` includes the memory that is on its way back to the driver.
TEST_F(AdmissionTest, ExpiredWaiterIsToldThatMemoryIsComingBack) {
  ledger.tenants().Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  const AcquireSpec spec{.bytes = 5 * kGranule};
  Release(session, Acquire(session, 8 * kGranule));
  const absl::StatusOr<Admission> waits = ledger.admission().BeginAcquire(session, spec);
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  const absl::Status refused = ledger.admission().EndWait(*waits->waiter, /*expired=*/true);
  ExpectDenial(refused, Denial::Cause::kDeviceLimit, "team", "GPU-1", 5 * kGranule, 8 * kGranule,
               8 * kGranule);
  DestroyDoomed();
  EXPECT_TRUE(Granted(Ask(session, spec)));
}

TEST_F(AdmissionTest, TheDriversDenial) {
  const SessionId session = OpenSession("team");
  Acquire(session, kGranule);
  const absl::Status refused =
      ledger.operations().DriverDenial(session, 0, 5, "CUDA_ERROR_OUT_OF_MEMORY");
  ExpectDenial(refused, Denial::Cause::kDriver, "team", "GPU-1", 5, kGranule, kCapacity);
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 1u);
}

TEST_F(AdmissionTest, ADenialNamesHoldersOfTheSessionsTeamAlone) {
  const SessionId session = OpenSession("a");
  OpenSession("b");
  const Denial denial{.holders = {{"a", 3}, {"b", 2}, {"forgotten", 1}}};
  Denial own = denial;
  HideHolders(ledger.state(), session, HoldersShown::kOwn, own);
  EXPECT_EQ(own.holders, std::vector(1, denial.holders[0]));
  Denial of_ended = denial;
  HideHolders(ledger.state(), SessionId{99}, HoldersShown::kOwn, of_ended);
  EXPECT_TRUE(of_ended.holders.empty()) << "the session has ended";
}

// --- Requests that make no sense -------------------------------------------------------

class NoDeviceTest : public LedgerFixture {
 protected:
  NoDeviceTest() : LedgerFixture(Bounds{}, std::vector<DeviceInfo>{}) {}
};

TEST_F(NoDeviceTest, ARequestIsToldThatTheNodeHasNone) {
  EXPECT_EQ(Ask(OpenSession("a"), {.bytes = kGranule}).status(),
            absl::NotFoundError("this node has no device"));
}

TEST_F(AdmissionTest, InvalidRequestsAreRefused) {
  const SessionId session = OpenSession("team");
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(session, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(session, kCapacity + 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(session, uint64_t{1} << 63).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(session, UINT64_MAX).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(session, 1, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(session, 1, kMaxSegmentsPerCall + 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(session, 1, UINT32_MAX).status()));
  EXPECT_TRUE(absl::IsNotFound(Ask(session, 1, 1, "GPU-3").status()));
  EXPECT_TRUE(absl::IsAborted(Ask(SessionId{77}, 1).status()));
  EXPECT_TRUE(
      absl::IsUnimplemented(ledger.admission()
                                .BeginAcquire(session, {.bytes = 1, .kind = static_cast<Kind>(9)})
                                .status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ledger.operations().BeginOpen(session, {}).status()));
  const std::vector<Secret> many(kMaxSegmentsPerCall + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ledger.operations().BeginOpen(session, many).status()));
  EXPECT_EQ(ledger.state().segments.size(), 0u);
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 0u);  // invalid, so not a denial
  EXPECT_EQ(Acquire(session, 1, kMaxSegmentsPerCall).size(), kMaxSegmentsPerCall);
}

TEST_F(AdmissionTest, RequestWithoutAKindGetsTheTenantsKind) {
  ledger.tenants().Configure({{"a", {.kind = Kind::kIpc}}}, {});
  const absl::Status none =
      ledger.admission()
          .BeginAcquire(OpenSession("a"),
                        {.device_uuid = "GPU-1", .bytes = kGranule, .waits = true})
          .status();
  EXPECT_TRUE(absl::IsUnimplemented(none)) << none;  // these devices make no other kind than vmm
}

}  // namespace
}  // namespace gpumemd
