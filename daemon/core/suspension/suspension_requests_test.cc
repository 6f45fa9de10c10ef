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

class SuspensionRequestsTest : public LedgerFixture {
 protected:
  SuspensionRequestsTest()
      : LedgerFixture({}, {Device("GPU-1", {Kind::kVmm, Kind::kMempool}),
                           Device("GPU-2", {Kind::kVmm}), Device("TIER-0", {Kind::kTier})}) {}

  SuspensionRequests& requests() { return ledger.suspension_requests(); }
  SessionId OpenListening(absl::string_view tenant) {
    const SessionId session = OpenSession(tenant);
    requests().AddWatch(session);
    return session;
  }
  LeaseId AcquireLease(SessionId session) { return AcquireOne(session, kGranule).lease; }
  SuspensionRequests::Due Collect(SessionId session, bool resume, size_t at_once = 2) {
    SuspensionRequests::Due due;
    for (std::optional<LeaseId> next = LeaseId{}; next.has_value();) {
      next = requests().Collect(session, resume, *next, at_once, due);
    }
    return due;
  }
  SuspensionRequests::Moved Sum(const std::vector<LeaseId>& leases, bool resume) {
    SuspensionRequests::Moved moved;
    requests().Add(leases, resume, moved);
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
  EXPECT_EQ(requests().Check(SessionId{99}).code(), StatusCode::kNotFound);
  const absl::Status deaf = requests().Check(session);
  EXPECT_EQ(deaf.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(deaf.message(), HasSubstr("does not accept"));
  requests().AddWatch(session);
  EXPECT_EQ(requests().Check(session), absl::OkStatus());
  requests().RemoveWatch(session);
  EXPECT_EQ(requests().Check(session).code(), StatusCode::kFailedPrecondition);
  requests().AddWatch(session);
  ASSERT_TRUE(requests().Begin(session, /*resume=*/false, now).ok());
  EXPECT_NE(requests().Find(session), nullptr);
  ledger.endings().SocketClosed(session);  // its process lives, and may map memory
  EXPECT_EQ(requests().Check(session).code(), StatusCode::kNotFound);
  EXPECT_EQ(requests().Find(session), nullptr);
}

TEST_F(SuspensionRequestsTest, ALaterRequestReplacesTheEarlier) {
  const SessionId session = OpenListening("team");
  const auto first = requests().Begin(session, /*resume=*/false, now);
  const auto second = requests().Begin(session, /*resume=*/true, now);
  ASSERT_TRUE(first.ok() && second.ok());
  requests().End(session, *first);
  ASSERT_NE(requests().Find(session), nullptr);
  EXPECT_EQ(requests().Find(session)->number, *second);
  EXPECT_TRUE(requests().Find(session)->resume);
  requests().End(session, *second);
  EXPECT_EQ(requests().Find(session), nullptr);
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
    EXPECT_EQ(Collect(session, /*resume=*/false, at_once).leases, leases);
    EXPECT_EQ(Collect(session, /*resume=*/false, at_once).done, 0u);
  }
  EXPECT_THAT(Collect(session, /*resume=*/true).leases, IsEmpty());
  EXPECT_EQ(Collect(session, /*resume=*/true).done, 5u);
  Carry(BeginSuspend(session, {leases[1], leases[3]}));
  EXPECT_THAT(Collect(session, /*resume=*/false).leases,
              ElementsAre(leases[0], leases[2], leases[4]));
  EXPECT_EQ(Collect(session, /*resume=*/false).done, 2u);
  EXPECT_THAT(Collect(session, /*resume=*/true).leases, ElementsAre(leases[1], leases[3]));
  SetQuota("team", {.release = ReleasePolicy::kOnExit});
  EXPECT_THAT(Collect(session, /*resume=*/false).leases, IsEmpty());
}

TEST_F(SuspensionRequestsTest, IsDoneOnceTheContentsAreInTheirPlace) {
  const SessionId session = OpenListening("team");
  const LeaseId lease = AcquireLease(session);
  EXPECT_FALSE(requests().IsDone(lease, /*resume=*/false));
  EXPECT_TRUE(requests().IsDone(lease, /*resume=*/true));
  const Suspensions::Begun begun = BeginSuspend(session, {lease});
  EXPECT_FALSE(requests().IsDone(lease, /*resume=*/false)) << "while it is copied";
  Carry(begun);
  EXPECT_TRUE(requests().IsDone(lease, /*resume=*/false));
  EXPECT_FALSE(requests().IsDone(lease, /*resume=*/true));
  EXPECT_EQ(Sum({lease}, /*resume=*/false).bytes, kGranule);
  EXPECT_EQ(Sum({lease}, /*resume=*/true).leases, 0u);

  auto operation = Ask(session, {.resumes = {lease}});
  ASSERT_TRUE(Granted(operation)) << operation.status();
  EXPECT_FALSE(requests().IsDone(lease, /*resume=*/true));
  Finish(**operation);
  EXPECT_TRUE(requests().IsDone(lease, /*resume=*/true));
  EXPECT_EQ(Sum({lease}, /*resume=*/true).bytes, kGranule);
  DestroyDoomed();
  ASSERT_TRUE(ledger.leases().Release(session, {lease}).ok());
  EXPECT_TRUE(requests().IsDone(lease, /*resume=*/false)) << "it has ended";
}

TEST_F(SuspensionRequestsTest, SharedMemoryCountsOnceAndStaysOnItsDevice) {
  const SessionId session = OpenListening("team");
  const SessionId other = OpenSession("team");
  const LeaseId lease = AcquireLease(session);
  const Secret ticket = Share(session, lease);
  const LeaseId again = OpenTicket(session, ticket).lease;
  OpenTicket(other, ticket);
  Carry(BeginSuspend(session, {lease, again}));
  EXPECT_TRUE(requests().IsDone(lease, /*resume=*/false));
  const SuspensionRequests::Moved moved = Sum({lease, again}, /*resume=*/false);
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
  EXPECT_THAT(ledger.suspension_requests().Check(*session).message(), HasSubstr("no host tier"));
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
  const auto collect = [&](bool resume, absl::string_view tag) {
    SuspensionRequests::Due due;
    requests().Collect(session, resume, LeaseId{}, 9, due, tag);
    return due;
  };
  EXPECT_EQ(collect(/*resume=*/false, "kv").leases, tagged);
  EXPECT_EQ(collect(/*resume=*/false, "").leases.size(), 3u);
  EXPECT_THAT(collect(/*resume=*/false, "weights").leases, IsEmpty());
  ASSERT_TRUE(requests().Begin(session, /*resume=*/false, now, "kv").ok());
  EXPECT_EQ(requests().Find(session)->tag, "kv");
  Carry(BeginSuspend(session, tagged));
  EXPECT_EQ(collect(/*resume=*/false, "kv").done, 2u);
  EXPECT_EQ(collect(/*resume=*/true, "kv").leases, tagged);
  const SuspensionRequests::Moved moved = Sum(tagged, /*resume=*/false);
  EXPECT_EQ(moved.leases, 2u);
  EXPECT_EQ(moved.bytes, kGranule);
  EXPECT_EQ(moved.dropped_bytes, kGranule);
  EXPECT_EQ(moved.resident_bytes, 0u);
}

}  // namespace suspension_requests_test
}  // namespace gpumemd
