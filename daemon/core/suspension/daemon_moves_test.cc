// SPDX-License-Identifier: Apache-2.0
// Moves that no session asks for: of segments that their last user has let go of, and of
// publications.
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/suspension/suspensions.h"
#include "daemon/core/suspension/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DaemonMovesTest : public SuspensionsFixture {
 protected:
  DaemonMovesTest() : first(OpenSession("team")), second(OpenSession("team")) {}

  // A lease of the first session that is suspended, and one of the second that keeps the segment
  // on its device.
  std::pair<LeaseId, LeaseId> SharedWithOneUser(uint64_t bytes = kGranule) {
    const Operation::Item item = AcquireFilled(first, bytes);
    const Operation::Item opened = OpenTicket(second, Share(first, item.lease));
    expected[opened.lease] = expected.at(item.lease);
    EXPECT_EQ(Suspend(first, {item.lease}), 0u);
    EXPECT_EQ(MoveLater(), 0u);
    return {item.lease, opened.lease};
  }
  absl::StatusOr<Admission> Attach(SessionId session, const std::string& name) {
    return ledger.operations().BeginAttach(session, {.name = name});
  }
  absl::StatusCode WhySuspended(PublicationId publication, const std::string& words) {
    const absl::Status status = ledger.suspensions().BeginPublication(publication).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    return status.code();
  }

  const SessionId first, second;
};

TEST_F(DaemonMovesTest, LastUserThatReleasesItsLease) {
  const auto [suspended, mapped] = SharedWithOneUser();
  ASSERT_TRUE(ledger.leases().Release(second, {mapped}).ok());
  EXPECT_EQ(MoveLater(), kGranule);
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), kGranule);
  EXPECT_EQ(Usage("team").charged, 0u);
  EXPECT_EQ(ledger.state().suspended[0], kGranule);
  Resume(first, {suspended});
  DestroyDoomed();
  ExpectContents();
}

TEST_F(DaemonMovesTest, LastUserThatEnds) {
  SharedWithOneUser();
  ledger.endings().SocketClosed(second);
  EXPECT_EQ(MoveLater(), 0u) << "its process may still map it";
  ledger.endings().ProcessGone(second);
  EXPECT_EQ(MoveLater(), kGranule);
  ExpectContents();
}

TEST_F(DaemonMovesTest, PublicationThatEnds) {
  const Operation::Item item = AcquireFilled(first, kGranule);
  const PublicationId weights = Publish(first, "weights", {item.lease});
  EXPECT_EQ(Suspend(first, {item.lease}), 0u);
  ledger.publications().End(weights);
  EXPECT_EQ(MoveLater(), kGranule);
  ExpectContents();
}

TEST_F(DaemonMovesTest, ResumedSegmentStays) {
  const auto [suspended, mapped] = SharedWithOneUser();
  ASSERT_TRUE(ledger.leases().Release(second, {mapped}).ok());
  auto back = AskResume(first, {suspended});
  ASSERT_TRUE(Granted(back)) << back.status();
  EXPECT_EQ(MoveLater(), 0u);
  EXPECT_TRUE(ledger.operations().Commit(**back).ok());
  EXPECT_EQ(MoveLater(), 0u);
}

TEST_F(DaemonMovesTest, FullTierIsTriedAgainWhenASegmentLeavesIt) {
  const Operation::Item full = AcquireFilled(first, kTierCapacity);
  EXPECT_EQ(Suspend(first, {full.lease}), kTierCapacity);
  DestroyDoomed();
  const auto [suspended, mapped] = SharedWithOneUser();
  ASSERT_TRUE(ledger.leases().Release(second, {mapped}).ok());
  EXPECT_EQ(MoveLater(), 0u);
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 0u) << "no session asked";
  EXPECT_TRUE(ledger.state().to_move.empty()) << "it would be tried for ever";
  ASSERT_TRUE(ledger.leases().Release(first, {full.lease}).ok());
  DestroyDoomed();
  EXPECT_EQ(MoveLater(), kGranule);
  ExpectContents();
}

TEST_F(DaemonMovesTest, SegmentsWithoutRoomTakeTurns) {
  const LeaseId large = AcquireFilled(first, kTierCapacity - kGranule).lease;
  const LeaseId small = AcquireFilled(first, kGranule).lease;
  EXPECT_EQ(Suspend(first, {large, small}), kTierCapacity);
  DestroyDoomed();
  std::vector<SegmentId> waits;
  while (waits.size() <= kMovesRetried) {
    const auto [suspended, mapped] = SharedWithOneUser(2 * kGranule);
    ASSERT_TRUE(ledger.leases().Release(second, {mapped}).ok());
    waits.push_back(SegmentOf(suspended));
  }
  EXPECT_EQ(MoveLater(), 0u);
  ASSERT_TRUE(ledger.leases().Release(first, {small}).ok());
  DestroyDoomed();
  EXPECT_THAT(ledger.state().without_room, ElementsAre(waits.back()));
  EXPECT_EQ(MoveLater(), 0u) << "one granule is not enough";
  ASSERT_TRUE(ledger.leases().Release(first, {large}).ok());
  DestroyDoomed();
  EXPECT_THAT(ledger.state().without_room, ElementsAre(waits[kMovesRetried - 1]));
  EXPECT_EQ(MoveLater(), kTierCapacity);
}

TEST_F(DaemonMovesTest, FailedCopyIsNotRepeated) {
  const auto [suspended, mapped] = SharedWithOneUser();
  ASSERT_TRUE(ledger.leases().Release(second, {mapped}).ok());
  EXPECT_EQ(MoveLater(/*copied=*/false), 0u);
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 0u);
  EXPECT_EQ(MoveLater(), 0u);
  EXPECT_EQ(Suspend(first, {suspended}), kGranule) << "but when it is asked for";
}

TEST_F(DaemonMovesTest, NextDaemonMovesIt) {
  const auto [suspended, mapped] = SharedWithOneUser();
  ASSERT_TRUE(ledger.leases().Release(second, {mapped}).ok());
  Restart();
  std::optional<Move> move = ledger.suspensions().BeginLater(64);
  ASSERT_TRUE(move);
  MakeRooms({*move});
  Restart();  // before its end
  DestroyDoomed();
  EXPECT_EQ(MoveLater(), kGranule);
  DestroyDoomed();
  EXPECT_EQ(Usage("team").charged, 0u);
  ExpectContents();
}

TEST_F(DaemonMovesTest, NextDaemonWithoutATierMovesNothing) {
  const auto [suspended, mapped] = SharedWithOneUser();
  Restart({Device("GPU-1", {Kind::kVmm, Kind::kMempool}), Device("GPU-2", {Kind::kVmm})});
  ASSERT_TRUE(ledger.leases().Release(second, {mapped}).ok());
  ASSERT_FALSE(ledger.state().to_move.empty());
  EXPECT_EQ(MoveLater(), 0u);
  EXPECT_TRUE(ledger.state().to_move.empty()) << "it would be tried for ever";
  Resume(first, {suspended});
  EXPECT_EQ(Usage("team").charged, kGranule);
  ExpectContents();
}

TEST_F(DaemonMovesTest, SuspendNamesWhatOthersAreCopying) {
  const auto [suspended, mapped] = SharedWithOneUser();
  ASSERT_TRUE(ledger.leases().Release(second, {mapped}).ok());
  const std::optional<Move> move = ledger.suspensions().BeginLater(64);
  ASSERT_TRUE(move);
  auto again = ledger.suspensions().Begin(first, {suspended}, 0);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->moves.empty());
  EXPECT_EQ(again->copying, std::vector<SegmentId>{move->from});
  EXPECT_EQ(again->resident_bytes, 0u);
  Carry({*move});
}

// --- Publications ----------------------------------------------------------------------

TEST_F(DaemonMovesTest, PublicationMovesToTheTierAndBack) {
  const Operation::Item one = AcquireFilled(first, kGranule);
  const Operation::Item other = AcquireFilled(first, 2 * kGranule, "GPU-2");
  const PublicationId weights = Publish(first, "weights", {one.lease, other.lease}, true);
  ASSERT_TRUE(ledger.leases().Release(first, {one.lease, other.lease}).ok());
  EXPECT_EQ(SuspendPublication(weights), 3 * kGranule);
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 3 * kGranule);
  EXPECT_EQ(Usage("team", 0).charged + Usage("team", 1).charged, 0u);
  EXPECT_EQ(ledger.look().ListPublications("")->at(0).in_tier, 2u);
  EXPECT_EQ(ledger.look().ListPublications("")->at(0).tier_bytes, 3 * kGranule);
  EXPECT_EQ(SuspendPublication(weights), 0u) << "again";

  // Another tenant's session brings it back, for its tenant.
  const SessionId reader = OpenSession("other");
  for (int i = 0; i < 2; ++i) {
    auto attach = Attach(reader, "team/weights");
    ASSERT_TRUE(attach.ok()) << attach.status();
    ASSERT_EQ(attach->suspended, weights);
    auto back = Ask(reader, {.publication = weights});
    ASSERT_TRUE(Granted(back)) << back.status();
    Complete(**back);
  }
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 0u);
  EXPECT_EQ(Usage("team", 0).charged, kGranule);
  EXPECT_EQ(Usage("team", 1).charged, 2 * kGranule);
  EXPECT_EQ(Usage("other", 0).charged, 0u);
  auto attach = Attach(reader, "team/weights");
  ASSERT_TRUE(attach.ok() && attach->operation) << attach.status();
  EXPECT_TRUE(ledger.operations().Commit(*attach->operation).ok());
  ExpectContents();
  EXPECT_EQ(WhySuspended(weights, "1 sessions are attached"),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(DaemonMovesTest, PublicationInUseStays) {
  const Operation::Item item = AcquireFilled(first, kGranule);
  const PublicationId weights = Publish(first, "weights", {item.lease});
  EXPECT_EQ(WhySuspended(weights, "1 of its segments have leases that are not suspended"),
            absl::StatusCode::kFailedPrecondition);
  const PublicationId twice = Publish(first, "twice", {item.lease});
  Suspend(first, {item.lease});
  EXPECT_EQ(WhySuspended(weights, "1 are in other publications"),
            absl::StatusCode::kFailedPrecondition);
  ledger.publications().End(twice);
  auto moves = ledger.suspensions().BeginPublication(weights);
  ASSERT_TRUE(moves.ok()) << moves.status();
  EXPECT_EQ(WhySuspended(weights, "is being copied"), absl::StatusCode::kUnavailable);
  auto attach = Attach(second, "weights");
  ASSERT_TRUE(attach.ok()) << attach.status();
  EXPECT_EQ(attach->suspended, weights) << "while it is being copied";
  EXPECT_TRUE(absl::IsUnavailable(Ask(second, {.publication = weights}).status()));
  Carry(*moves, /*copied=*/false);
  attach = Attach(second, "weights");
  ASSERT_TRUE(attach.ok() && attach->operation) << attach.status();
  EXPECT_TRUE(ledger.operations().Commit(*attach->operation).ok());
  EXPECT_EQ(WhySuspended(PublicationId{99}, "has ended"), absl::StatusCode::kNotFound);
}

TEST_F(DaemonMovesTest, PublisherThatResumesBringsThePublicationAlong) {
  const Operation::Item item = AcquireFilled(first, kGranule);
  const PublicationId weights = Publish(first, "weights", {item.lease});
  Suspend(first, {item.lease});
  EXPECT_EQ(SuspendPublication(weights), kGranule);
  Resume(first, {item.lease});
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 0u);
  EXPECT_EQ(ledger.state().publications.at(weights).in_tier, 0u);
  EXPECT_EQ(ledger.look().ListPublications("")->at(0).tier_bytes, 0u);
  ExpectContents();
}

TEST_F(DaemonMovesTest, EndedPublicationFreesTheTier) {
  const Operation::Item item = AcquireFilled(first, kGranule);
  const PublicationId weights = Publish(first, "weights", {item.lease});
  ASSERT_TRUE(ledger.leases().Release(first, {item.lease}).ok());
  SuspendPublication(weights);
  ASSERT_TRUE(ledger.publications().Unpublish(first, "weights").ok());
  DestroyDoomed();
  EXPECT_TRUE(ledger.state().segments.empty());
}

TEST_F(DaemonMovesTest, PublicationThatEndsDuringAMoveLeavesNothing) {
  for (const bool back : {false, true}) {
    const Operation::Item item = AcquireFilled(first, kGranule);
    const PublicationId weights = Publish(first, "weights", {item.lease});
    ASSERT_TRUE(ledger.leases().Release(first, {item.lease}).ok());
    if (back) SuspendPublication(weights);
    auto moves = ledger.suspensions().BeginPublication(weights);
    auto operation = ledger.admission().BeginResume(weights);
    ledger.publications().End(weights);
    if (back) {
      ASSERT_TRUE(operation.ok()) << operation.status();
      Complete(*operation);
    } else {
      ASSERT_TRUE(moves.ok()) << moves.status();
      Carry(*moves);
    }
    ASSERT_TRUE(ledger.segments().Trim("", "", 0).ok());  // it may be retained
    DestroyDoomed();
    EXPECT_TRUE(ledger.state().segments.empty()) << back;
  }
}

TEST_F(DaemonMovesTest, AttachersThatWaitShareOneResume) {
  const Operation::Item item = AcquireFilled(first, kGranule);
  const PublicationId weights = Publish(first, "weights", {item.lease});
  ASSERT_TRUE(ledger.leases().Release(first, {item.lease}).ok());
  SuspendPublication(weights);
  DestroyDoomed();
  const SessionId other = OpenSession("other");
  const auto full = Acquire(other, kCapacity);
  const AcquireSpec wait = {.waits = true, .publication = weights};
  std::vector<WaiterId> waiters;
  for (SessionId session : {first, second}) {
    EXPECT_TRUE(ledger.sessions().BeginCall(session).ok());
    auto admission = ledger.admission().BeginAcquire(session, wait);
    ASSERT_TRUE(admission.ok() && admission->waiter) << admission.status();
    waiters.push_back(*admission->waiter);
  }
  EXPECT_TRUE(ledger.admission().AdmitWaiting().empty());
  Release(other, full);
  ledger.endings().ProcessGone(other);
  DestroyDoomed();
  std::vector<AdmissionControl::Admitted> admitted = ledger.admission().AdmitWaiting();
  ASSERT_FALSE(admitted.empty());
  ASSERT_TRUE(admitted[0].operation.ok()) << admitted[0].operation.status();
  EXPECT_EQ(admitted[0].waiter, waiters[0]);
  // The second asks again once the first one's copy has ended.
  ASSERT_EQ(admitted.size(), 2u);
  EXPECT_TRUE(absl::IsUnavailable(admitted[1].operation.status()));
  Complete(*admitted[0].operation);
  for (SessionId session : {first, second}) ledger.sessions().EndCall(session);
  EXPECT_EQ(ledger.state().publications.at(weights).in_tier, 0u);
  ExpectContents();
}

// A waiter without room is told at once, and its request keeps the tenant.
TEST_F(DaemonMovesTest, WaiterForAPublicationThatEndsIsRefused) {
  const SessionId owner = OpenSession("owner");
  const Operation::Item item = AcquireFilled(owner, kGranule);
  const PublicationId weights = Publish(owner, "weights", {item.lease}, /*to_any=*/true);
  ledger.endings().ProcessGone(owner);
  SuspendPublication(weights);
  DestroyDoomed();
  const auto full = Acquire(second, kCapacity);
  EXPECT_TRUE(ledger.sessions().BeginCall(first).ok());
  auto admission = ledger.admission().BeginAcquire(first, {.waits = true, .publication = weights});
  ASSERT_TRUE(admission.ok() && admission->waiter) << admission.status();
  EXPECT_TRUE(ledger.admission().AdmitWaiting().empty());
  ledger.publications().End(weights);
  DestroyDoomed();
  EXPECT_NE(ledger.state().FindTenant("owner"), nullptr);
  std::vector<AdmissionControl::Admitted> admitted = ledger.admission().AdmitWaiting();
  ASSERT_EQ(admitted.size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(admitted[0].operation.status()));
  ledger.sessions().EndCall(first);
  Release(second, full);
}

TEST_F(DaemonMovesTest, SuspendedPublicationOutlivesTheDaemon) {
  const Operation::Item one = AcquireFilled(first, kGranule);
  const Operation::Item other = AcquireFilled(first, kGranule);
  const PublicationId weights = Publish(first, "weights", {one.lease, other.lease});
  ledger.endings().ProcessGone(first);
  auto moves = ledger.suspensions().BeginPublication(weights);
  ASSERT_TRUE(moves.ok()) << moves.status();
  MakeRooms(*moves);
  EndMoves({moves->front()}, /*copied=*/true);
  Restart();  // half of it has moved
  DestroyDoomed();
  EXPECT_EQ(ledger.state().publications.at(weights).in_tier, 1u);
  ExpectContents();
  EXPECT_EQ(SuspendPublication(weights), kGranule) << "the rest";
  Restart();
  auto back = ledger.admission().BeginResume(weights);
  ASSERT_TRUE(back.ok()) << back.status();
  FillFrom(*back);
  Restart();
  DestroyDoomed();
  EXPECT_EQ(ledger.state().publications.at(weights).in_tier, 2u);
  back = ledger.admission().BeginResume(weights);
  ASSERT_TRUE(back.ok()) << back.status();
  Complete(*back);
  Restart();
  ASSERT_TRUE(ledger.segments().Trim("", "", 0).ok());  // what restarts have left
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 0u);
  EXPECT_EQ(Usage("team").charged, 2 * kGranule);
  ExpectContents();
}

TEST_F(DaemonMovesTest, AnOperatorsResumeTakesNothingThatAWaiterWaitsFor) {
  const Operation::Item item = AcquireFilled(first, kGranule);
  const PublicationId weights = Publish(first, "weights", {item.lease});
  ASSERT_TRUE(ledger.leases().Release(first, {item.lease}).ok());
  SuspendPublication(weights);
  DestroyDoomed();
  AcquireOne(OpenSession("other"), kCapacity - kGranule);
  auto waits = ledger.admission().BeginAcquire(
      second, {.device_uuid = "GPU-1", .bytes = 2 * kGranule, .waits = true});
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  EXPECT_TRUE(absl::IsResourceExhausted(ledger.admission().BeginResume(weights).status()));
  ledger.admission().EndWait(*waits->waiter, /*expired=*/false).IgnoreError();
  auto back = ledger.admission().BeginResume(weights);
  ASSERT_TRUE(back.ok()) << back.status();
  Complete(*back);
  ExpectContents();
}

}  // namespace
}  // namespace gpumemd
