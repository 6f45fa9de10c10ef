// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/suspension/suspensions.h"

#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "daemon/core/suspension/testing/fixture.h"

namespace gpumemd {
namespace {

using SuspensionsTest = SuspensionsFixture;

TEST_F(SuspensionsTest, ChargeMovesToTheTierAndBack) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, 2 * kGranule);
  auto begun = ledger.suspensions().Begin(session, {item.lease}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  ASSERT_EQ(begun->moves.size(), 1u);
  EXPECT_EQ(InTier("team"), 2 * kGranule);         // reserved before anything is copied
  EXPECT_EQ(Usage("team").charged, 2 * kGranule);  // still on the device
  EXPECT_EQ(SegmentOf(item.lease), item.segment);
  Carry(*begun);
  EXPECT_EQ(Usage("team").charged, 2 * kGranule) << "the driver does not have it back yet";
  EXPECT_EQ(DestroyDoomed(), std::vector<SegmentId>{item.segment});
  EXPECT_EQ(Usage("team").charged, 0u);
  EXPECT_EQ(InTier("team"), 2 * kGranule);
  ExpectContents();

  Resume(session, {item.lease});
  DestroyDoomed();
  EXPECT_EQ(Usage("team").charged, 2 * kGranule);
  EXPECT_EQ(InTier("team"), 0u);
  ExpectContents();
}

TEST_F(SuspensionsTest, ReservationHoldsTheRoomUntilItEnds) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kTierCapacity);
  const Operation::Item other = AcquireFilled(session, kGranule);
  auto reserved = ledger.suspensions().Prepare(session, {item.lease});
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_EQ(reserved->bytes, kTierCapacity);
  auto refused = ledger.suspensions().Begin(session, {other.lease}, 0);
  ExpectDenial(refused.status(), Denial::Cause::kCapacity, "team", "TIER-0", kGranule,
               kTierCapacity, kTierCapacity);
  EXPECT_FALSE(ledger.state().leases.at(other.lease).suspended);

  // Another reservation takes its place, and Cancel ends it.
  reserved = ledger.suspensions().Prepare(session, {other.lease});
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), kGranule);
  ledger.suspensions().Cancel(session, reserved->id + 1);
  EXPECT_EQ(InTier("team"), kGranule) << "another number";
  ledger.suspensions().Cancel(session, reserved->id);
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 0u);

  // Begin uses it.
  reserved = ledger.suspensions().Prepare(session, {item.lease});
  auto begun = ledger.suspensions().Begin(session, {item.lease}, reserved->id);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(InTier("team"), kTierCapacity);
  Carry(*begun);

  // A reservation ends with its session.
  const SessionId next = OpenSession("other");
  ASSERT_TRUE(ledger.leases().Release(session, {item.lease}).ok());
  DestroyDoomed();
  const Operation::Item third = AcquireFilled(next, kGranule);
  ASSERT_TRUE(ledger.suspensions().Prepare(next, {third.lease}).ok());
  ledger.endings().ProcessGone(next);
  DestroyDoomed();
  EXPECT_EQ(ledger.state().charged(kTierIndex), 0u);
}

TEST_F(SuspensionsTest, TenantsTierLimitDenies) {
  SetQuota("team", {.tier_limit_bytes = kGranule});
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, 2 * kGranule);
  ExpectDenial(ledger.suspensions().Prepare(session, {item.lease}).status(),
               Denial::Cause::kDeviceLimit, "team", "TIER-0", 2 * kGranule, 0, kGranule);
}

TEST_F(SuspensionsTest, SharedSegmentMovesWithItsLastUser) {
  const SessionId first = OpenSession("team");
  const SessionId second = OpenSession("team");
  const Operation::Item item = AcquireFilled(first, kGranule);
  const Secret ticket = Share(first, item.lease);
  const Operation::Item opened = OpenTicket(second, ticket);
  expected[opened.lease] = expected[item.lease];

  auto begun = ledger.suspensions().Begin(first, {item.lease}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_TRUE(begun->moves.empty());
  EXPECT_EQ(begun->resident_bytes, kGranule);
  // Back without a copy.
  auto back = AskResume(first, {item.lease});
  ASSERT_TRUE(Granted(back)) << back.status();
  EXPECT_FALSE((*back)->items[0].fresh);
  EXPECT_TRUE(ledger.operations().Commit(**back).ok());
  EXPECT_FALSE(ledger.state().leases.at(item.lease).suspended);

  EXPECT_EQ(Suspend(first, {item.lease}), 0u);
  EXPECT_EQ(Suspend(second, {opened.lease}), kGranule);
  EXPECT_EQ(SegmentOf(item.lease), SegmentOf(opened.lease));
  DestroyDoomed();
  ExpectContents();
  // No session opens it meanwhile, and either brings it back for both.
  EXPECT_EQ(ledger.operations().BeginOpen(OpenSession("team"), {ticket}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Resume(second, {opened.lease});
  EXPECT_EQ(SegmentOf(item.lease), SegmentOf(opened.lease));
  EXPECT_TRUE(ledger.state().leases.at(item.lease).suspended);
  Resume(first, {item.lease});
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 0u);
  ExpectContents();
}

TEST_F(SuspensionsTest, RefusesWhatCannotBeSuspended) {
  SetQuota("strict", {.release = ReleasePolicy::kOnExit});
  const SessionId strict = OpenSession("strict");
  const Operation::Item kept = AcquireOne(strict, kGranule);
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireOne(session, kGranule);
  auto pooled = Ask(session, {.device_uuid = "GPU-1", .bytes = kGranule, .kind = Kind::kMempool});
  ASSERT_TRUE(Granted(pooled));
  Finish(**pooled);
  const auto code = [&](SessionId who, const std::vector<LeaseId>& leases) {
    return ledger.suspensions().Prepare(who, leases).status().code();
  };
  EXPECT_EQ(code(session, {}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(session, {item.lease, item.lease}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(session, std::vector<LeaseId>(1025)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(session, {kept.lease}), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(session, {(*pooled)->items[0].lease}), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code(strict, {kept.lease}), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(SessionId{99}, {item.lease}), absl::StatusCode::kAborted);
}

TEST_F(SuspensionsTest, FailedCopyLeavesTheMemoryOnItsDevice) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  auto begun = ledger.suspensions().Begin(session, {item.lease}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_TRUE(absl::IsUnavailable(AskResume(session, {item.lease}).status()));
  Carry(*begun, /*copied=*/false);
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), 0u);
  EXPECT_EQ(Usage("team").charged, kGranule);
  EXPECT_EQ(Suspend(session, {item.lease}), kGranule) << "tried again";
  // And back.
  auto operation = AskResume(session, {item.lease});
  ASSERT_TRUE(Granted(operation)) << operation.status();
  ledger.operations().Abort(**operation, /*handed_over=*/false);
  DestroyDoomed();
  EXPECT_EQ(InTier("team"), kGranule);
  Resume(session, {item.lease});
  ExpectContents();
}

TEST_F(SuspensionsTest, HolderThatDiesDuringTheCopyLeavesNothing) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  auto begun = ledger.suspensions().Begin(session, {item.lease}, 0);
  ASSERT_TRUE(begun.ok()) << begun.status();
  ledger.endings().ProcessGone(session);
  EXPECT_TRUE(ledger.CheckInvariants().ok()) << Broken();
  Carry(*begun);
  DestroyDoomed();
  EXPECT_EQ(ledger.state().charged(0) + ledger.state().charged(kTierIndex), 0u);
  EXPECT_TRUE(ledger.state().segments.empty());
}

TEST_F(SuspensionsTest, ResumeWaitsItsTurn) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  Suspend(session, {item.lease});
  DestroyDoomed();
  const SessionId other = OpenSession("other");
  const auto full = Acquire(other, kCapacity);
  ExpectDenial(AskResume(session, {item.lease}).status(), Denial::Cause::kCapacity, "team", "GPU-1",
               kGranule, kCapacity, kCapacity);
  auto admission =
      ledger.admission().BeginAcquire(session, {.waits = true, .resumes = {item.lease}});
  ASSERT_TRUE(admission.ok() && admission->waiter) << admission.status();
  EXPECT_TRUE(ledger.admission().AdmitWaiting().empty());
  Release(other, full);
  ledger.endings().ProcessGone(other);
  DestroyDoomed();
  std::vector<AdmissionControl::Admitted> admitted = ledger.admission().AdmitWaiting();
  ASSERT_EQ(admitted.size(), 1u);
  ASSERT_TRUE(admitted[0].operation.ok()) << admitted[0].operation.status();
  FillFrom(*admitted[0].operation);
  EXPECT_TRUE(ledger.operations().Commit(*admitted[0].operation).ok());
  DestroyDoomed();
  ExpectContents();
}

TEST_F(SuspensionsTest, ReleasedLeaseFreesTheTier) {
  const SessionId session = OpenSession("team");
  const Operation::Item item = AcquireFilled(session, kGranule);
  Suspend(session, {item.lease});
  DestroyDoomed();
  ASSERT_TRUE(ledger.leases().Release(session, {item.lease}).ok());
  DestroyDoomed();
  EXPECT_TRUE(ledger.state().segments.empty()) << "memory of the tier is never retained";
}

// Random steps of three sessions and an operator, with scratch memory, copies that fail, holders
// that die, and daemons that are killed at any point. Each lease and each publication keeps its
// contents, but for those that were dropped, and nothing is charged without a holder.
TEST_F(SuspensionsTest, EachLeaseKeepsItsContentsThroughRandomSteps) {
  // A step may be refused. So many were not.
  int moved = 0, moved_publications = 0, moved_later = 0, resumed = 0;
  for (uint32_t seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return random() % n; };
    std::vector<SessionId> sessions;
    std::vector<std::vector<Move>> copying;
    std::vector<Operation> resuming;
    for (int i = 0; i < 3; ++i) sessions.push_back(OpenSession(i < 2 ? "team" : "other"));
    for (int step = 0; step < 200; ++step) {
      const size_t who = below(sessions.size());
      const SessionId session = sessions[who];
      const auto& leases = ledger.state().sessions.at(session)->leases;
      std::vector<LeaseId> some;
      for (LeaseId lease : leases) {
        if (below(2) == 0) some.push_back(lease);
      }
      const auto& publications = ledger.state().publications;
      PublicationId publication{};
      if (!publications.empty()) {
        publication =
            std::next(publications.begin(), static_cast<ptrdiff_t>(below(publications.size())))
                ->first;
      }
      switch (below(16)) {
        case 0:
        case 1:
          if (ledger.state().charged(0) < 6 * kGranule) {
            AcquireFilled(session, (1 + below(3)) * kGranule, below(3) == 0 ? "GPU-2" : "GPU-1",
                          /*scratch=*/below(3) == 0);
          }
          break;
        case 2: {  // shares one with a session of its tenant
          if (some.empty() || ledger.state().segments.at(SegmentOf(some[0]))->lost) break;
          auto operation =
              ledger.operations().BeginOpen(sessions[below(2)], {Share(session, some[0])});
          if (!operation.ok()) break;
          EXPECT_TRUE(ledger.operations().Commit(*operation).ok());
          expected[operation->items[0].lease] = expected.at(some[0]);
          break;
        }
        case 3:
        case 4: {
          const bool reserves = below(2) == 0;
          uint64_t reservation = 0;
          if (reserves) {
            auto prepared = ledger.suspensions().Prepare(session, some);
            if (prepared.ok()) reservation = prepared->id;
          }
          auto begun = ledger.suspensions().Begin(session, some, reservation);
          if (!begun.ok()) break;
          MakeRooms(begun->moves);
          copying.push_back(begun->moves);
          moved += begun->moves.empty() ? 0 : 1;
          break;
        }
        case 5:
          if (copying.empty()) break;
          for (const Move& move : copying.back()) EndMoves({move}, /*copied=*/below(5) != 0);
          copying.pop_back();
          break;
        case 6: {
          ledger.SetDraining(below(4) == 0);
          auto operation = AskResume(session, some);
          ledger.SetDraining(false);
          if (!Granted(operation)) break;
          FillFrom(**operation);
          resuming.push_back(**operation);
          break;
        }
        case 7:
          if (resuming.empty()) break;
          if (below(3) == 0) {
            ledger.operations().Abort(resuming.back(), /*handed_over=*/below(2) == 0);
          } else {
            EXPECT_TRUE(ledger.operations().Commit(resuming.back()).ok());
            ++resumed;
          }
          resuming.pop_back();
          break;
        case 8:
          if (!some.empty()) {
            EXPECT_TRUE(ledger.leases().Release(session, {some[0]}).ok());
          }
          break;
        case 9:
          if (below(4) != 0) break;
          Restart();
          copying.clear();
          resuming.clear();
          break;
        case 10: {  // publishes leases that are not suspended
          std::vector<LeaseId> mapped;
          std::set<SegmentId> distinct;
          for (LeaseId lease : some) {
            const records::Segment& segment = *ledger.state().segments.at(SegmentOf(lease));
            if (ledger.state().leases.at(lease).suspended || segment.lost) continue;
            if (segment.scratch) continue;
            if (segment.tenant != ledger.state().sessions.at(session)->tenant) continue;
            if (distinct.insert(SegmentOf(lease)).second) mapped.push_back(lease);
          }
          if (!mapped.empty()) Publish(session, below(2) == 0 ? "a" : "b", mapped, below(2) == 0);
          break;
        }
        case 11: {  // attaches, or brings a suspended publication back
          if (publication == PublicationId{}) break;
          const records::Publication& of = publications.at(publication);
          auto attach =
              ledger.operations().BeginAttach(session, {.name = of.tenant->name + "/" + of.name});
          if (!attach.ok()) break;
          if (attach->suspended) {
            auto operation = Ask(session, {.publication = *attach->suspended});
            if (!Granted(operation)) break;
            FillFrom(**operation);
            resuming.push_back(**operation);
            break;
          }
          EXPECT_TRUE(ledger.operations().Commit(*attach->operation).ok());
          for (size_t i = 0; i < attach->operation->items.size(); ++i) {
            expected[attach->operation->items[i].lease] = published_numbers.at(publication).at(i);
          }
          break;
        }
        case 12:
          if (publication != PublicationId{} && below(3) == 0)
            ledger.publications().End(publication);
          break;
        case 13: {
          if (publication == PublicationId{}) break;
          auto moves = ledger.suspensions().BeginPublication(publication);
          if (!moves.ok() || moves->empty()) break;
          MakeRooms(*moves);
          copying.push_back(*moves);
          ++moved_publications;
          break;
        }
        case 14: {  // by an operator
          if (publication == PublicationId{}) break;
          auto operation = ledger.admission().BeginResume(publication);
          if (!operation.ok()) break;
          FillFrom(*operation);
          resuming.push_back(*operation);
          break;
        }
        case 15: {
          const std::optional<Move> move = ledger.suspensions().BeginLater(1);
          if (!move) break;
          MakeRooms({*move});
          copying.push_back({*move});
          ++moved_later;
          break;
        }
      }
      if (below(2) == 0) DestroyDoomed();
      ASSERT_TRUE(ledger.CheckInvariants().ok()) << Broken();
      ExpectContents();
      ASSERT_FALSE(HasFailure());
    }
    for (const std::vector<Move>& moves : copying) EndMoves(moves, /*copied=*/false);
    for (const Operation& operation : resuming) ledger.operations().Abort(operation, false);
    for (SessionId session : sessions) ledger.endings().ProcessGone(session);
    while (!ledger.state().publications.empty()) {
      ledger.publications().End(ledger.state().publications.begin()->first);
    }
    DestroyDoomed();
    EXPECT_TRUE(ledger.state().segments.empty());
    EXPECT_TRUE(ledger.state().to_move.empty() && ledger.state().without_room.empty());
    expected.clear();
    published_numbers.clear();
  }
  for (const int done : {moved, moved_publications, moved_later, resumed}) EXPECT_GT(done, 10);
}

}  // namespace
}  // namespace gpumemd
