// SPDX-License-Identifier: Apache-2.0
// Scratch memory, whose bytes are dropped when it is suspended, and the tags of leases.
#include <string>
#include <vector>

#include "daemon/core/suspension/testing/fixture.h"

namespace gpumemd {
namespace scratch_test {

using absl::StatusCode;
using ::testing::HasSubstr;

class ScratchTest : public SuspensionsFixture {
 protected:
  Operation::Item AcquireScratch(SessionId session, uint64_t bytes) {
    return AcquireFilled(session, bytes, "GPU-1", /*scratch=*/true);
  }
  SessionView Look(SessionId session) {
    const auto views = ledger.look().ListSessions("");
    for (const SessionView& view : *views) {
      if (view.id == session) return view;
    }
    return {};
  }
  absl::Status Refusal(SessionId session, const AcquireSpec& spec) {
    return Ask(session, spec).status();
  }
};

TEST_F(ScratchTest, ItsBytesAreDroppedAndItsSizeComesBack) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireScratch(session, 2 * kGranule);
  EXPECT_TRUE(Segment(item.segment).scratch);
  auto begun = ledger.suspensions().Begin(session, {item.lease}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  ASSERT_EQ(begun->moves.size(), 1u);
  EXPECT_TRUE(begun->moves[0].dropped);
  EXPECT_EQ(begun->moves[0].bytes, 2 * kGranule);
  Carry(*begun);
  DestroyDoomed();
  EXPECT_EQ(Usage("team").charged, 0u);
  EXPECT_EQ(InTier("team"), 0u);
  const SegmentView view = Segment(SegmentOf(item.lease));
  EXPECT_EQ(view.kind, Kind::kTier);
  EXPECT_EQ(view.bytes, 0u);
  EXPECT_EQ(view.dropped_bytes, 2 * kGranule);
  EXPECT_EQ(Look(session).leases, 1u);
  EXPECT_EQ(Look(session).leased_bytes, 0u) << "it holds nothing";
  EXPECT_EQ(ledger.state().suspended[0], 0u) << "nothing was copied";

  Resume(session, {item.lease});
  DestroyDoomed();
  EXPECT_EQ(Usage("team").charged, 2 * kGranule);
  EXPECT_EQ(Look(session).leased_bytes, 2 * kGranule);
  EXPECT_TRUE(Segment(SegmentOf(item.lease)).scratch);
  EXPECT_EQ(contents.at(SegmentOf(item.lease)), 0u) << "fresh memory";
  EXPECT_EQ(ledger.state().resumed[0], 0u);
  EXPECT_EQ(Suspend(session, {item.lease}), 2 * kGranule) << "and again";
}

TEST_F(ScratchTest, NeedsNoRoomInTheTier) {
  const SessionId session = OpenSession("team");
  const Operation::Item kept = AcquireFilled(session, kTierCapacity);
  const Operation::Item scratch = AcquireScratch(session, 2 * kTierCapacity);
  const Operation::Item more = AcquireFilled(session, kGranule);
  auto reserved = ledger.suspensions().Prepare(session, {kept.lease, scratch.lease});
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_EQ(reserved->bytes, kTierCapacity);
  auto begun = ledger.suspensions().Begin(session, {kept.lease, scratch.lease}, reserved->id);
  ASSERT_TRUE(begun.ok()) << begun.status();
  Carry(*begun);
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), kTierCapacity);
  EXPECT_EQ(ledger.state().suspended[0], kTierCapacity);
  ExpectContents();
  ExpectDenial(ledger.suspensions().Prepare(session, {more.lease}).status(),
               Denial::Cause::kCapacity, "team", "TIER-0", kGranule, kTierCapacity, kTierCapacity);

  // Nor in a tier that is over a limit that was lowered.
  SetQuota("team", {.tier_limit_bytes = kGranule});
  const Operation::Item late = AcquireScratch(session, kGranule);
  EXPECT_EQ(Suspend(session, {late.lease}), kGranule);
  Resume(session, {kept.lease, scratch.lease, late.lease});
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 0u);
  ExpectContents();
}

TEST_F(ScratchTest, ResumeNeedsRoomOnTheDevice) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireScratch(session, kGranule);
  Suspend(session, {item.lease});
  DestroyDoomed();
  Acquire(OpenSession("other"), kCapacity);
  ExpectDenial(AskResume(session, {item.lease}).status(), Denial::Cause::kCapacity, "team", "GPU-1",
               kGranule, kCapacity, kCapacity);
}

TEST_F(ScratchTest, TheLastOfItsUsersDropsIt) {
  const SessionId first = OpenSession("team");
  const SessionId second = OpenSession("team");
  const Operation::Item item = AcquireScratch(first, kGranule);
  const Operation::Item opened = OpenTicket(second, Share(first, item.lease));
  expected[opened.lease] = expected[item.lease];
  EXPECT_EQ(Suspend(first, {item.lease}), 0u);
  ExpectContents();
  EXPECT_EQ(Suspend(second, {opened.lease}), kGranule);
  EXPECT_EQ(expected[item.lease] + expected[opened.lease], 0u);
  Resume(second, {opened.lease});
  Resume(first, {item.lease});
  ExpectContents();
}

TEST_F(ScratchTest, AFailedCopyDropsNothing) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireScratch(session, kGranule);
  auto begun = ledger.suspensions().Begin(session, {item.lease}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  Carry(*begun, /*copied=*/false);
  EXPECT_EQ(SegmentOf(item.lease), item.segment);
  ExpectContents();
}

TEST_F(ScratchTest, SurvivesARestartWithoutMemory) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireScratch(session, 2 * kGranule);
  const Operation::Item other = AcquireScratch(session, kGranule);
  Suspend(session, {item.lease});
  DestroyDoomed();
  auto begun = ledger.suspensions().Begin(session, {other.lease}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  MakeRooms({begun->moves[0]});  // and is killed here
  const Restored restored = Restart();
  EXPECT_TRUE(restored.lost.empty());
  DestroyDoomed();
  EXPECT_EQ(Usage("team").charged, kGranule);
  EXPECT_EQ(InTier("team"), 0u);
  EXPECT_EQ(Segment(SegmentOf(item.lease)).dropped_bytes, 2 * kGranule);
  EXPECT_EQ(ledger.state().leases.at(item.lease).tag, "t");
  EXPECT_EQ(Suspend(session, {other.lease}), kGranule);
  Resume(session, {item.lease, other.lease});
  DestroyDoomed();
  EXPECT_EQ(Usage("team").charged, 3 * kGranule);
  ExpectContents();
}

TEST_F(ScratchTest, AReusedSegmentTakesTheNewRequestsValue) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireScratch(session, kGranule);
  Release(session, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kRetained);
  EXPECT_FALSE(Segment(item.segment).scratch);
  const Operation::Item kept = AcquireFilled(session, kGranule);
  ASSERT_EQ(kept.segment, item.segment);
  EXPECT_FALSE(Segment(item.segment).scratch);
  Release(session, {kept});
  EXPECT_EQ(AcquireScratch(session, kGranule).segment, item.segment);
  EXPECT_TRUE(Segment(item.segment).scratch);
}

// A daemon that begins while the memory is not yet freed may keep it for the next request.
TEST_F(ScratchTest, ASegmentThatIsToBeFreedIsNoLongerScratch) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireScratch(session, kGranule);
  ledger.SetDraining(true);
  EXPECT_TRUE(ledger.Image().segments.at(item.segment).scratch);
  Release(session, {item});
  EXPECT_EQ(StateOf(item), SegmentState::kReleasing);
  EXPECT_FALSE(ledger.Image().segments.at(item.segment).scratch);
}

TEST_F(ScratchTest, IsNotPublished) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireScratch(session, kGranule);
  const absl::Status refused =
      ledger.publications().Publish(session, {.name = "w", .leases = {item.lease}}).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("is scratch"));
}

TEST_F(ScratchTest, OnlyOfKindsThatCanBeSuspended) {
  const SessionId session = OpenSession("team");
  const absl::Status refused =
      Refusal(session,
              {.device_uuid = "GPU-1", .bytes = kGranule, .kind = Kind::kMempool, .scratch = true});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("kind mempool cannot be suspended; kind vmm can"));
}

TEST_F(ScratchTest, TagsAreShortNames) {
  const SessionId session = OpenSession("team");
  const std::string longest(32, 'x');
  for (const std::string& right : {std::string(), longest, std::string("KV_cache.0-a")}) {
    auto operation = Ask(session, {.bytes = kGranule, .tag = right});
    ASSERT_TRUE(Granted(operation)) << operation.status();
    Finish(**operation);
    EXPECT_EQ(ledger.state().leases.at((*operation)->items[0].lease).tag, right);
  }
  for (const std::string& wrong :
       {longest + "x", std::string("a b"), std::string("a/b"), std::string("a\0b", 3),
        std::string("\xff"), std::string(1 << 20, 'x')}) {
    const absl::Status refused = Refusal(session, {.bytes = kGranule, .tag = wrong});
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused;
    EXPECT_LT(refused.message().size(), 500u);
  }
}

// Between the reservation and the suspension the segment may be reused for other contents.
TEST_F(ScratchTest, AReservationForOtherContentsIsNotUsed) {
  const SessionId session = OpenSession("team");
  for (const bool scratch : {true, false}) {
    const Operation::Item first = AcquireFilled(session, 2 * kGranule, "GPU-1", !scratch);
    auto reserved = ledger.suspensions().Prepare(session, {first.lease});
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    ASSERT_TRUE(ledger.leases().Release(session, {first.lease}).ok());
    const Operation::Item second = AcquireFilled(session, 2 * kGranule, "GPU-1", scratch);
    ASSERT_EQ(second.segment, first.segment) << "this test needs it to be reused";
    auto begun = ledger.suspensions().Begin(session, {second.lease}, reserved->id);
    ASSERT_TRUE(begun.ok()) << begun.status();
    Carry(*begun);
    DestroyDoomed();
    EXPECT_EQ(InTier("team"), scratch ? 0u : 2 * kGranule);
    EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
    Resume(session, {second.lease});
    DestroyDoomed();
    EXPECT_EQ(Segment(SegmentOf(second.lease)).scratch, scratch);
    ExpectContents();
    ASSERT_TRUE(ledger.leases().Release(session, {second.lease}).ok());
  }
}

TEST_F(ScratchTest, NeedsNoCopier) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireScratch(session, kGranule);
  auto reserved = ledger.suspensions().Prepare(session, {item.lease});
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_TRUE(reserved->devices.empty());
}

}  // namespace scratch_test
}  // namespace gpumemd
