// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/suspension/suspension_requests.h"

#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace suspension_requests_test {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Action = SuspensionRequests::Action;

class SuspensionRequestsTest : public LedgerFixture {
 protected:
  SuspensionRequestsTest()
      : LedgerFixture({}, {Device("GPU-1", {Kind::kVmm, Kind::kMempool}),
                           Device("GPU-2", {Kind::kVmm}), Device("TIER-0", {Kind::kTier}),
                           Device("PINNED-0", {Kind::kPinned, Kind::kHost})}) {}

  SuspensionRequests& requests() { return ledger.suspension_requests(); }
  SessionId OpenListening(absl::string_view tenant) {
    const SessionId session = OpenSession(tenant);
    requests().AddWatch(session);
    return session;
  }
  LeaseId AcquireLease(SessionId session) { return AcquireOne(session, kGranule).lease; }
  SessionId OpenDemoting(absl::string_view tenant) {
    const SessionId session = OpenSession(tenant);
    requests().AddWatch(session, std::nullopt, /*demotes=*/true);
    return session;
  }
  // Returns a lease of host memory.
  LeaseId AcquireHost(SessionId session) {
    auto operation =
        Ask(session, {.device_uuid = "PINNED-0", .bytes = kGranule, .kind = Kind::kHost});
    EXPECT_TRUE(Granted(operation)) << operation.status();
    Finish(**operation);
    return (*operation)->items[0].lease;
  }
  // Says which device the contents of a lease's memory came from, as an exchange does.
  void SetHome(LeaseId id, size_t home) {
    auto& state = const_cast<LedgerState&>(ledger.state());
    const records::Lease& lease = state.leases.at(id);
    records::Segment& segment = *state.segments.at(lease.segment);
    records::Session& session = *state.sessions.at(lease.session);
    LedgerState::CountDemoted(session, segment, /*leased=*/false);
    segment.home = home;
    LedgerState::CountDemoted(session, segment, /*leased=*/true);
  }
  SuspensionRequests::Due Collect(SessionId session, Action action, size_t at_once = 2) {
    SuspensionRequests::Due due;
    for (std::optional<LeaseId> next = LeaseId{}; next.has_value();) {
      next = requests().Collect(session, action, *next, at_once, due);
    }
    return due;
  }
  SuspensionRequests::Moved Sum(const std::vector<LeaseId>& leases, Action action) {
    SuspensionRequests::Moved moved;
    requests().Add(leases, action, moved);
    return moved;
  }
  Suspensions::Begun BeginSuspend(SessionId session, const std::vector<LeaseId>& leases) {
    auto begun = ledger.suspensions().Begin(session, leases, /*reservation=*/0);
    EXPECT_TRUE(begun.ok()) << begun.status();
    return begun.value_or(Suspensions::Begun{});
  }
  void Carry(const Suspensions::Begun& begun) {
    for (const Suspensions::Move& move : begun.moves) {
      std::vector<TierExtent> extents;
      if (!move.dropped) extents.push_back({.offset = 0, .bytes = move.bytes});
      ledger.suspensions().Made(move, std::move(extents));
      ledger.suspensions().Finish(move, /*copied=*/true);
    }
    DestroyDoomed();
  }
};

TEST_F(SuspensionRequestsTest, OnlyALiveSessionThatListensIsAsked) {
  const SessionId session = OpenSession("team");
  EXPECT_EQ(requests().Check(SessionId{99}, Action::kSuspend).code(), StatusCode::kNotFound);
  const absl::Status deaf = requests().Check(session, Action::kSuspend);
  EXPECT_EQ(deaf.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(deaf.message(), HasSubstr("does not accept"));
  requests().AddWatch(session);
  EXPECT_EQ(requests().Check(session, Action::kSuspend), absl::OkStatus());
  requests().RemoveWatch(session);
  EXPECT_EQ(requests().Check(session, Action::kSuspend).code(), StatusCode::kFailedPrecondition);
  requests().AddWatch(session);
  ASSERT_TRUE(requests().Begin(session, Action::kSuspend, now).ok());
  EXPECT_NE(requests().Find(session), nullptr);
  ledger.endings().SocketClosed(session);  // its process lives, and may map memory
  EXPECT_EQ(requests().Check(session, Action::kSuspend).code(), StatusCode::kNotFound);
  EXPECT_EQ(requests().Find(session), nullptr);
}

TEST_F(SuspensionRequestsTest, ALaterRequestReplacesTheEarlier) {
  const SessionId session = OpenListening("team");
  const auto first = requests().Begin(session, Action::kSuspend, now);
  const auto second = requests().Begin(session, Action::kResume, now);
  ASSERT_TRUE(first.ok() && second.ok());
  requests().End(session, *first);
  ASSERT_NE(requests().Find(session), nullptr);
  EXPECT_EQ(requests().Find(session)->number, *second);
  EXPECT_EQ(requests().Find(session)->action, Action::kResume);
  requests().End(session, *second);
  EXPECT_EQ(requests().Find(session), nullptr);
}

TEST_F(SuspensionRequestsTest, TheViewOfASessionTellsIfItIsAsked) {
  const SessionId session = OpenSession("team");
  const auto view = [&] { return ledger.look().ListSessions("team")->at(0); };
  EXPECT_FALSE(view().serves_suspension);
  requests().AddWatch(session);
  EXPECT_TRUE(view().serves_suspension);
  EXPECT_FALSE(view().swappable);
  SetQuota("team", {.swappable = true});
  EXPECT_TRUE(view().swappable);
  requests().AddWatch(session, /*swappable=*/false);
  EXPECT_FALSE(view().swappable);

  EXPECT_FALSE(view().asked);
  ASSERT_TRUE(
      requests().Begin(session, SuspensionRequests::Action::kResume, now + absl::Seconds(1)).ok());
  EXPECT_FALSE(view().asked) << "to resume";
  ASSERT_TRUE(
      requests().Begin(session, SuspensionRequests::Action::kSuspend, now + absl::Seconds(1)).ok());
  EXPECT_TRUE(view().asked);
  now += absl::Seconds(1);
  EXPECT_FALSE(view().asked) << "its time is over";

  EXPECT_EQ(view().idle, absl::Seconds(1));
  AcquireLease(session);
  ledger.swaps().Active(session);  // as the broker does
  EXPECT_EQ(view().idle, absl::ZeroDuration());
  ledger.endings().SocketClosed(session);
  EXPECT_FALSE(view().serves_suspension);
  EXPECT_FALSE(view().swappable);
}

TEST_F(SuspensionRequestsTest, CollectsWhatCanBeSuspended) {
  const SessionId session = OpenListening("team");
  const SessionId other = OpenSession("other");
  std::vector<LeaseId> leases;
  for (int i = 0; i < 5; ++i) leases.push_back(AcquireLease(session));
  OpenTicket(session, Share(other, AcquireLease(other), TicketScope::kAny));  // not its tenant's
  auto pooled = Ask(session, {.bytes = kGranule, .kind = Kind::kMempool});
  ASSERT_TRUE(Granted(pooled)) << pooled.status();
  Finish(**pooled);
  for (size_t at_once : {1, 3, 100}) {
    EXPECT_EQ(Collect(session, Action::kSuspend, at_once).leases, leases);
    EXPECT_EQ(Collect(session, Action::kSuspend, at_once).done, 0u);
  }
  EXPECT_THAT(Collect(session, Action::kResume).leases, IsEmpty());
  EXPECT_EQ(Collect(session, Action::kResume).done, 5u);
  Carry(BeginSuspend(session, {leases[1], leases[3]}));
  EXPECT_THAT(Collect(session, Action::kSuspend).leases,
              ElementsAre(leases[0], leases[2], leases[4]));
  EXPECT_EQ(Collect(session, Action::kSuspend).done, 2u);
  EXPECT_THAT(Collect(session, Action::kResume).leases, ElementsAre(leases[1], leases[3]));
  SetQuota("team", {.release = ReleasePolicy::kOnExit});
  EXPECT_THAT(Collect(session, Action::kSuspend).leases, IsEmpty());
}

TEST_F(SuspensionRequestsTest, IsDoneOnceTheContentsAreInTheirPlace) {
  const SessionId session = OpenListening("team");
  const LeaseId lease = AcquireLease(session);
  EXPECT_FALSE(requests().IsDone(lease, Action::kSuspend));
  EXPECT_TRUE(requests().IsDone(lease, Action::kResume));
  const Suspensions::Begun begun = BeginSuspend(session, {lease});
  EXPECT_FALSE(requests().IsDone(lease, Action::kSuspend)) << "while it is copied";
  Carry(begun);
  EXPECT_TRUE(requests().IsDone(lease, Action::kSuspend));
  EXPECT_FALSE(requests().IsDone(lease, Action::kResume));
  EXPECT_EQ(Sum({lease}, Action::kSuspend).bytes, kGranule);
  EXPECT_EQ(Sum({lease}, Action::kResume).leases, 0u);

  auto operation = Ask(session, {.resumes = {lease}});
  ASSERT_TRUE(Granted(operation)) << operation.status();
  EXPECT_FALSE(requests().IsDone(lease, Action::kResume));
  Finish(**operation);
  EXPECT_TRUE(requests().IsDone(lease, Action::kResume));
  EXPECT_EQ(Sum({lease}, Action::kResume).bytes, kGranule);
  DestroyDoomed();
  ASSERT_TRUE(ledger.leases().Release(session, {lease}).ok());
  EXPECT_TRUE(requests().IsDone(lease, Action::kSuspend)) << "it has ended";
}

TEST_F(SuspensionRequestsTest, SharedMemoryCountsOnceAndStaysOnItsDevice) {
  const SessionId session = OpenListening("team");
  const SessionId other = OpenSession("team");
  const LeaseId lease = AcquireLease(session);
  const Secret ticket = Share(session, lease);
  const LeaseId again = OpenTicket(session, ticket).lease;
  OpenTicket(other, ticket);
  Carry(BeginSuspend(session, {lease, again}));
  EXPECT_TRUE(requests().IsDone(lease, Action::kSuspend));
  const SuspensionRequests::Moved moved = Sum({lease, again}, Action::kSuspend);
  EXPECT_EQ(moved.leases, 2u);
  EXPECT_EQ(moved.segments.size(), 1u);
  EXPECT_EQ(moved.bytes, 0u);
  EXPECT_EQ(moved.resident_bytes, kGranule);
}

TEST(SuspensionRequestsWithoutTierTest, Refuse) {
  Ledger ledger({{.uuid = "GPU-1", .capacity_bytes = kGranule, .granularity_bytes = kGranule}}, {},
                [] { return absl::Time(); });
  const auto session = ledger.OpenSession("team", {}, Secret{1});
  ASSERT_TRUE(session.ok()) << session.status();
  ledger.suspension_requests().AddWatch(*session);
  EXPECT_THAT(ledger.suspension_requests().Check(*session, Action::kSuspend).message(),
              HasSubstr("no host tier"));
}

TEST_F(SuspensionRequestsTest, OnlyASessionThatServesDemotionIsAskedToDemote) {
  const SessionId session = OpenListening("team");
  for (const Action action : {Action::kDemote, Action::kPromote}) {
    const absl::Status refused = requests().Check(session, action);
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("pause and proceed"));
  }
  requests().AddWatch(session, std::nullopt, /*demotes=*/true);
  EXPECT_EQ(requests().Check(session, Action::kDemote), absl::OkStatus());
  const auto begun = requests().Begin(session, Action::kPromote, now);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(requests().Find(session)->action, Action::kPromote);
  requests().RemoveWatch(session, std::nullopt, /*demotes=*/true);
  EXPECT_EQ(requests().Check(session, Action::kDemote).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(requests().Check(session, Action::kSuspend), absl::OkStatus());
  EXPECT_THAT(requests().Check(OpenSession("team"), Action::kDemote).message(),
              HasSubstr("does not accept to be demoted"));
}

TEST_F(SuspensionRequestsTest, CollectsWhatCanBeDemotedAndWhatIs) {
  const SessionId session = OpenDemoting("team");
  const SessionId other = OpenSession("team");
  const std::vector<LeaseId> alone = {AcquireLease(session), AcquireLease(session)};
  const LeaseId shared = AcquireLease(session);
  OpenTicket(other, Share(session, shared));
  Carry(BeginSuspend(session, {AcquireLease(session)}));
  auto scratch = Ask(session, {.bytes = kGranule, .scratch = true});
  ASSERT_TRUE(Granted(scratch)) << scratch.status();
  Finish(**scratch);
  const LeaseId plain = AcquireHost(session);
  const LeaseId demoted = AcquireHost(session);
  SetHome(demoted, 0);
  EXPECT_EQ(Collect(session, Action::kDemote).leases, alone);
  EXPECT_EQ(Collect(session, Action::kDemote).done, 1u);
  EXPECT_THAT(Collect(session, Action::kPromote).leases, ElementsAre(demoted));
  EXPECT_EQ(Collect(session, Action::kPromote).done, 2u);

  EXPECT_FALSE(requests().IsDone(alone[0], Action::kDemote));
  EXPECT_TRUE(requests().IsDone(demoted, Action::kDemote));
  EXPECT_FALSE(requests().IsDone(demoted, Action::kPromote));
  EXPECT_TRUE(requests().IsDone(plain, Action::kPromote));
  const SuspensionRequests::Moved moved = Sum({alone[0], demoted, plain}, Action::kDemote);
  EXPECT_EQ(moved.leases, 1u);
  EXPECT_EQ(moved.bytes, kGranule);
  EXPECT_EQ(Sum({demoted}, Action::kPromote).leases, 0u);
}

TEST_F(SuspensionRequestsTest, DemotedBytesAreCounted) {
  const SessionId session = OpenDemoting("team");
  const SessionId other = OpenSession("team");
  const LeaseId lease = AcquireHost(session);
  const auto demoted = [&](SessionId id) { return ledger.state().sessions.at(id)->demoted_bytes; };
  const auto of_team = [&] { return ledger.state().FindTenant("team")->demoted_bytes; };
  EXPECT_EQ(demoted(session), 0u);
  SetHome(lease, 1);
  const LeaseId second = OpenTicket(other, Share(session, lease)).lease;
  EXPECT_EQ(demoted(session), kGranule);
  EXPECT_EQ(demoted(other), kGranule);
  EXPECT_EQ(of_team(), 2 * kGranule);
  EXPECT_EQ(ledger.look().GetTenant("team")->demoted, 2 * kGranule);
  ASSERT_TRUE(ledger.leases().Release(session, {lease}).ok());
  EXPECT_EQ(demoted(session), 0u);
  EXPECT_EQ(of_team(), kGranule);
  // Retained memory is the next request's, and no longer another device's.
  ASSERT_TRUE(ledger.leases().Release(other, {second}).ok());
  EXPECT_EQ(of_team(), 0u);
  AcquireHost(session);
  EXPECT_EQ(demoted(session), 0u);
}

TEST_F(SuspensionRequestsTest, ATagSelectsLeases) {
  const SessionId session = OpenListening("team");
  AcquireLease(session);
  std::vector<LeaseId> tagged;
  for (const bool scratch : {false, true}) {
    auto operation = Ask(session, {.bytes = kGranule, .tag = "kv", .scratch = scratch});
    ASSERT_TRUE(Granted(operation)) << operation.status();
    Finish(**operation);
    tagged.push_back((*operation)->items[0].lease);
  }
  const auto collect = [&](Action action, absl::string_view tag) {
    SuspensionRequests::Due due;
    requests().Collect(session, action, LeaseId{}, 9, due, tag);
    return due;
  };
  EXPECT_EQ(collect(Action::kSuspend, "kv").leases, tagged);
  EXPECT_EQ(collect(Action::kSuspend, "").leases.size(), 3u);
  EXPECT_THAT(collect(Action::kSuspend, "weights").leases, IsEmpty());
  ASSERT_TRUE(requests().Begin(session, Action::kSuspend, now, "kv").ok());
  EXPECT_EQ(requests().Find(session)->tag, "kv");
  Carry(BeginSuspend(session, tagged));
  EXPECT_EQ(collect(Action::kSuspend, "kv").done, 2u);
  EXPECT_EQ(collect(Action::kResume, "kv").leases, tagged);
  const SuspensionRequests::Moved moved = Sum(tagged, Action::kSuspend);
  EXPECT_EQ(moved.leases, 2u);
  EXPECT_EQ(moved.bytes, kGranule);
  EXPECT_EQ(moved.dropped_bytes, kGranule);
  EXPECT_EQ(moved.resident_bytes, 0u);
}

}  // namespace suspension_requests_test
}  // namespace gpumemd
