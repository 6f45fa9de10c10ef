// SPDX-License-Identifier: Apache-2.0
// Suspensions, and requests for them, of leases and sessions that are lost, ended or under way.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/suspension/testing/fixture.h"

namespace gpumemd {
namespace suspension_edges_test {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using Action = SuspensionRequests::Action;

class SuspensionEdgesTest : public SuspensionsFixture {
 protected:
  SuspensionEdgesTest()
      : SuspensionsFixture({}, {{.uuid = "HOST-P",
                                 .capacity_bytes = 64 * kGranule,
                                 .granularity_bytes = kGranule,
                                 .kinds = {Kind::kPinned, Kind::kHost}}}) {}
  // Opens a session with a watch that accepts all requests.
  SessionId OpenListening(const std::string& tenant = "a") {
    const SessionId session = OpenSession(tenant);
    requests().AddWatch(session, std::nullopt, /*demotes=*/true);
    return session;
  }
  SuspensionRequests& requests() { return ledger.suspension_requests(); }
  // Returns the leases that the session has still to do this to.
  std::vector<LeaseId> Due(SessionId session, Action action) {
    SuspensionRequests::Due due;
    requests().Collect(session, action, LeaseId{}, SIZE_MAX, due);
    return due.leases;
  }
  StatusCode RefusedResume(SessionId session, const std::vector<LeaseId>& leases) {
    return AskResume(session, leases).status().code();
  }
};

// --- Resumes

TEST_F(SuspensionEdgesTest, ResumesOfWhatCannotComeBackAreRefused) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireFilled(session, kGranule);
  Suspend(session, {item.lease});
  EXPECT_EQ(RefusedResume(SessionId{99}, {item.lease}), StatusCode::kAborted);
  EXPECT_EQ(RefusedResume(session, {item.lease, item.lease}), StatusCode::kInvalidArgument);
  EXPECT_EQ(RefusedResume(session, {LeaseId{99}}), StatusCode::kNotFound);
  auto pooled = Ask(session, {.device_uuid = "GPU-1", .bytes = kGranule, .kind = Kind::kMempool});
  ASSERT_TRUE(Granted(pooled)) << pooled.status();
  Finish(**pooled);
  EXPECT_EQ(RefusedResume(session, {(*pooled)->items[0].lease}), StatusCode::kUnimplemented);
  const Operation::Item lost = AcquireFilled(session, kGranule);
  ledger.segments().MarkLost({lost.segment});
  EXPECT_EQ(RefusedResume(session, {lost.lease}), StatusCode::kFailedPrecondition);
  ledger.Close();
  EXPECT_EQ(RefusedResume(session, {item.lease}), StatusCode::kUnavailable);
}

TEST_F(SuspensionEdgesTest, ACopyUnderWayIsFoundByItsLeasesAndItsPublication) {
  const Suspensions& suspensions = ledger.suspensions();
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const PublicationId id = Publish(session, "w", {item.lease});
  EXPECT_EQ(suspensions.CopyingOf({.publication = id}), std::nullopt);
  EXPECT_EQ(suspensions.CopyingOf({.publication = PublicationId{99}}), std::nullopt);
  EXPECT_EQ(suspensions.CopyingOf({.resumes = {LeaseId{99}, item.lease}}), std::nullopt);
  Release(session, {item});
  auto moves = ledger.suspensions().BeginPublication(id);
  ASSERT_TRUE(moves.ok()) << moves.status();
  EXPECT_EQ(suspensions.CopyingOf({.publication = id}), item.segment);
  Carry(*moves);
  EXPECT_EQ(suspensions.CopyingOf({.publication = id}), std::nullopt);
}

TEST_F(SuspensionEdgesTest, MemoryPastTheBrokerKeepsAPublicationInTheTier) {
  const SessionId session = OpenSession("a");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const PublicationId id = Publish(session, "w", {item.lease});
  Release(session, {item});
  EXPECT_EQ(SuspendPublication(id), kGranule);
  DestroyDoomed();
  ledger.SetUnbrokered({{session, "GPU-2", kGranule, true}});
  ExpectDenial(ledger.admission().BeginResume(id).status(), Denial::Cause::kUnbrokered, "a",
               "GPU-2", kGranule, kGranule, 0);
  ledger.SetUnbrokered({});
  auto back = ledger.admission().BeginResume(id);
  ASSERT_TRUE(back.ok()) << back.status();
  Complete(*back);
  DestroyDoomed();
  EXPECT_EQ(InTier("a"), 0u);
  ExpectContents();
}

TEST_F(SuspensionEdgesTest, PinnedSegmentsOfAPublicationStay) {
  const SessionId session = OpenSession("team");
  const Operation::Item weights = AcquireFilled(session, kGranule);
  const Operation::Item pinned = AcquireFilled(session, kGranule, "HOST-P");
  const PublicationId both = Publish(session, "both", {weights.lease, pinned.lease});
  const PublicationId alone =
      Publish(session, "alone", {AcquireFilled(session, kGranule, "HOST-P").lease});
  ASSERT_TRUE(ledger.leases().Release(session, {weights.lease, pinned.lease}).ok());
  EXPECT_EQ(SuspendPublication(both), kGranule);
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), kGranule);
  EXPECT_EQ(ledger.state().publications.at(both).in_tier, 1u);
  EXPECT_EQ(Usage("team", 3).charged, 2 * kGranule);
  ExpectContents();
  EXPECT_EQ(ledger.suspensions().BeginPublication(alone).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(SuspensionEdgesTest, PublicationWithTooManyLeasesStays) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const PublicationId weights = Publish(session, "weights", {item.lease});
  const Secret ticket = Share(session, item.lease);
  std::vector<LeaseId> leases = {item.lease};
  while (leases.size() < kMaxLeasesMoved) leases.push_back(OpenTicket(session, ticket).lease);
  const LeaseId last = OpenTicket(session, ticket).lease;
  EXPECT_EQ(Suspend(session, leases), 0u);
  EXPECT_EQ(Suspend(session, {last}), 0u);
  const absl::Status refused = ledger.suspensions().BeginPublication(weights).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              EndsWith("in use: 1 of its segments have more than 1024 leases, the "
                       "most that move at once"))
      << "all of them are suspended";
  ASSERT_TRUE(ledger.leases().Release(session, {last}).ok());
  EXPECT_EQ(SuspendPublication(weights), kGranule);
  ExpectContents();
}

// As much memory as before is in the tier, and belongs to another device.
TEST_F(SuspensionEdgesTest, AWaiterForAPublicationThatHasMovedIsRefused) {
  const SessionId session = OpenSession("a"), reader = OpenSession("a"), full = OpenSession("b");
  const Operation::Item one = AcquireFilled(session, kGranule);
  const Operation::Item other = AcquireFilled(session, kGranule, "GPU-2");
  const PublicationId id = Publish(session, "w", {one.lease, other.lease});
  Release(session, {other});
  Suspend(session, {one.lease});
  EXPECT_EQ(SuspendPublication(id), 2 * kGranule);
  DestroyDoomed();
  AcquireOne(full, kCapacity);
  ASSERT_TRUE(ledger.sessions().BeginCall(reader).ok());
  const auto waits = ledger.admission().BeginAcquire(reader, {.waits = true, .publication = id});
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  ledger.endings().ProcessGone(full);
  DestroyDoomed();
  Resume(session, {one.lease});
  const auto admitted = ledger.admission().AdmitWaiting();
  ASSERT_EQ(admitted.size(), 1u);
  EXPECT_EQ(admitted[0].waiter, *waits->waiter);
  EXPECT_EQ(admitted[0].operation.status().code(), StatusCode::kUnavailable);
}

TEST_F(SuspensionEdgesTest, ASessionThatEndsDuringItsResumeGetsNothing) {
  const SessionId session = OpenSession("a"), other = OpenSession("a");
  const Operation::Item moved = AcquireFilled(session, kGranule);
  const Operation::Item stays = AcquireFilled(session, kGranule);
  OpenTicket(other, Share(session, stays.lease));
  EXPECT_EQ(Suspend(session, {moved.lease, stays.lease}), kGranule);
  auto back = AskResume(session, {moved.lease, stays.lease});
  ASSERT_TRUE(Granted(back)) << back.status();
  FillFrom(**back);
  ledger.endings().ProcessGone(session);
  EXPECT_EQ(ledger.operations().Commit(**back).code(), StatusCode::kAborted);
  DestroyDoomed();
  EXPECT_EQ(InTier("a"), 0u);
  EXPECT_EQ(Usage("a").leased, kGranule) << "of the other session";
  EXPECT_FALSE(ledger.state().sessions.contains(session));
}

TEST_F(SuspensionEdgesTest, APublicationComesBackThoughTheSessionThatAskedHasEnded) {
  const SessionId session = OpenSession("a"), reader = OpenSession("b");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const PublicationId id = Publish(session, "w", {item.lease}, /*to_any=*/true);
  Release(session, {item});
  EXPECT_EQ(SuspendPublication(id), kGranule);
  auto back = Ask(reader, {.publication = id});
  ASSERT_TRUE(Granted(back)) << back.status();
  ledger.endings().ProcessGone(reader);
  Complete(**back);
  EXPECT_EQ(ledger.state().publications.at(id).in_tier, 0u);
  EXPECT_FALSE(ledger.state().sessions.contains(reader));
  ExpectContents();
}

TEST_F(SuspensionEdgesTest, AnAbortedResumeOfTwoLeasesOfASegmentLeavesBothSuspended) {
  const SessionId session = OpenSession("a");
  const Operation::Item one = AcquireFilled(session, kGranule);
  const Operation::Item other = OpenTicket(session, Share(session, one.lease));
  expected[other.lease] = expected.at(one.lease);
  EXPECT_EQ(Suspend(session, {one.lease, other.lease}), kGranule);
  DestroyDoomed();
  auto back = AskResume(session, {one.lease, other.lease});
  ASSERT_TRUE(Granted(back)) << back.status();
  ledger.operations().Abort(**back, /*handed_over=*/false);
  EXPECT_THAT(DestroyDoomed(), ElementsAre((*back)->items.at(0).segment));
  EXPECT_EQ(InTier("a"), kGranule);
  Resume(session, {one.lease, other.lease});
  ExpectContents();
}

TEST_F(SuspensionEdgesTest, ARepeatedRequestEndsItsSuspendedLeases) {
  const SessionId session = OpenSession("a");
  auto granted = Ask(session, {.device_uuid = "GPU-1", .bytes = kGranule, .request_id = 5});
  ASSERT_TRUE(Granted(granted)) << granted.status();
  Finish(**granted);
  const Operation::Item item = (*granted)->items.at(0);
  contents[item.segment] = ++numbers;
  EXPECT_EQ(Suspend(session, {item.lease}), kGranule);
  DestroyDoomed();
  Restart();
  EXPECT_FALSE(ledger.reconciliation().Regrant(session, 5, 1)) << "its client has had the answer";
  EXPECT_EQ(ledger.state().leases.Find(item.lease), nullptr);
  DestroyDoomed();
  EXPECT_EQ(InTier("a"), 0u);
}

// --- Other uses of suspended memory

TEST_F(SuspensionEdgesTest, ASuspendedLeaseIsNotPublished) {
  const SessionId session = OpenSession("a");
  const LeaseId lease = AcquireFilled(session, kGranule).lease;
  Suspend(session, {lease});
  EXPECT_EQ(
      ledger.publications().Publish(session, {.name = "w", .leases = {lease}}).status().code(),
      StatusCode::kFailedPrecondition);
  Resume(session, {lease});
  Publish(session, "w", {lease});
}

TEST_F(SuspensionEdgesTest, LostMemoryIsNotMovedOnceItsLastUserIsGone) {
  const SessionId session = OpenSession("a"), other = OpenSession("a");
  const Operation::Item item = AcquireFilled(session, kGranule);
  const Operation::Item opened = OpenTicket(other, Share(session, item.lease));
  EXPECT_EQ(Suspend(session, {item.lease}), 0u);
  ledger.segments().MarkLost({item.segment});
  Release(other, {opened});
  EXPECT_THAT(ledger.state().to_move, IsEmpty());
  EXPECT_EQ(Usage("a").leased, kGranule) << "the suspended lease has it";
}

// --- Requests to a session

TEST_F(SuspensionEdgesTest, AnEndedSessionIsNotAsked) {
  const SessionId session = OpenListening();
  AcquireFilled(session, kGranule);
  const uint64_t number =
      requests().Begin(session, Action::kSuspend, now + absl::Seconds(1), "").value();
  requests().RemoveWatch(session, std::nullopt, /*demotes=*/true);
  ledger.endings().SocketClosed(session);  // its process still maps the memory
  EXPECT_EQ(requests().Check(session, Action::kSuspend).code(), StatusCode::kNotFound);
  EXPECT_EQ(requests().Begin(session, Action::kSuspend, now, "").status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(requests().Find(session), nullptr);
  requests().End(session, number);
  requests().End(session, number);  // once more
  EXPECT_TRUE(Due(SessionId{99}, Action::kSuspend).empty());
}

TEST_F(SuspensionEdgesTest, WhatIsLostOrReleasedIsDone) {
  const SessionId session = OpenListening();
  const Operation::Item stays = AcquireFilled(session, kGranule);
  const Operation::Item lost = AcquireFilled(session, kGranule);
  const Operation::Item gone = AcquireFilled(session, kGranule);
  ledger.segments().MarkLost({lost.segment});
  EXPECT_EQ(Due(session, Action::kSuspend), (std::vector{stays.lease, gone.lease}));
  Release(session, {gone});
  EXPECT_TRUE(requests().IsDone(lost.lease, Action::kSuspend));
  EXPECT_TRUE(requests().IsDone(gone.lease, Action::kSuspend));
  EXPECT_FALSE(requests().IsDone(stays.lease, Action::kSuspend));
  Suspend(session, {stays.lease});
  EXPECT_TRUE(requests().IsDone(stays.lease, Action::kDemote)) << "it is not on its device";
  SuspensionRequests::Moved moved;
  requests().Add({stays.lease, gone.lease}, Action::kSuspend, moved);
  EXPECT_EQ(moved.leases, 1u);
  EXPECT_EQ(moved.bytes, kGranule);
}

TEST_F(SuspensionEdgesTest, OnlyWhatASessionHasForItselfIsDemoted) {
  const SessionId session = OpenListening(), other = OpenListening();
  const Operation::Item own = AcquireFilled(session, kGranule);
  const Operation::Item published = AcquireFilled(session, kGranule);
  Publish(session, "w", {published.lease});
  const Operation::Item opened = AcquireFilled(session, kGranule);
  OpenTicket(other, Share(session, opened.lease));
  // The other process still maps what it has released.
  SetQuota("a", {.release = ReleasePolicy::kOnExit});
  const Operation::Item mapped = AcquireFilled(session, kGranule);
  Release(other, {OpenTicket(other, Share(session, mapped.lease))});
  SetQuota("a", {});
  const Operation::Item suspended = AcquireFilled(session, kGranule);
  Suspend(session, {suspended.lease});
  // Suspended, too, and still on its device.
  const Operation::Item uncopied = AcquireFilled(session, kGranule);
  const auto begun = ledger.suspensions().Begin(session, {uncopied.lease}, /*reservation=*/0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  Carry(*begun, /*copied=*/false);
  EXPECT_EQ(Due(session, Action::kDemote), std::vector{own.lease});
  auto revocable =
      Ask(OpenListening("b"), {.device_uuid = "GPU-1", .bytes = kGranule, .revocable = true});
  ASSERT_TRUE(Granted(revocable)) << revocable.status();
  Finish(**revocable);
  EXPECT_TRUE(Due((*revocable)->session, Action::kDemote).empty());
}

}  // namespace suspension_edges_test
}  // namespace gpumemd
