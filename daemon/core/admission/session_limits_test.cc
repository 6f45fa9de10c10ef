// SPDX-License-Identifier: Apache-2.0
// Limits of sessions, calls in flight and watches: of a tenant, of a user and of the daemon.
#include <utility>
#include <vector>

#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::HasSubstr;

class DaemonSessionsTest : public LedgerFixture {
 protected:
  DaemonSessionsTest() : LedgerFixture(Bounds{.max_sessions = 3}) {}
};

TEST_F(DaemonSessionsTest, MaxSessions) {
  ledger.tenants().Configure({{"team", {.max_sessions = 1}}}, {});
  const SessionId first = OpenSession("team");
  const absl::Status refused = ledger.OpenSession("team", {}, NewSecret()).status();
  ExpectDenial(refused, Denial::Cause::kMaxSessions, "team", "", 1, 1, 1);
  OpenSession("a");
  OpenSession("b");
  ExpectDenial(ledger.OpenSession("c", {}, NewSecret()).status(), Denial::Cause::kDaemonLimit, "c",
               "", 1, 3, 3);
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("c").status()));  // leaves no trace
  ledger.endings().SocketClosed(first);
  OpenSession("team");
}

class SharedDaemonTest : public LedgerFixture {
 protected:
  SharedDaemonTest()
      : LedgerFixture(
            Bounds{.max_sessions = 16, .max_sessions_per_uid = 4, .reserved_sessions = 2}) {}

  // Opens a session of a new process.
  absl::StatusOr<SessionId> OpenOf(uid_t uid, absl::string_view tenant) {
    SessionDetails details;
    details.peer.pid = ++pids;
    details.peer.uid = uid;
    const absl::Status room = ledger.sessions().CheckRoom(tenant, details);
    absl::StatusOr<SessionId> session = ledger.OpenSession(tenant, std::move(details), NewSecret());
    EXPECT_EQ(room.code(), session.status().code()) << room << " and " << session.status();
    return session;
  }
};

TEST_F(SharedDaemonTest, SessionLimitOfAUserCountsAllItsTenants) {
  std::vector<SessionId> sessions;
  for (const char* tenant : {"a", "b", "a", "c"}) sessions.push_back(*OpenOf(1, tenant));
  const absl::Status refused = OpenOf(1, "d").status();
  ExpectDenial(refused, Denial::Cause::kDaemonLimit, "d", "", 1, 4, 4);
  EXPECT_THAT(HelpOf(refused), HasSubstr("daemon.max_sessions_per_uid"));
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("d").status()));  // leaves no trace
  EXPECT_TRUE(OpenOf(2, "a").ok());
  ledger.endings().SocketClosed(sessions[0]);
  EXPECT_TRUE(OpenOf(1, "d").ok());
}

TEST_F(SharedDaemonTest, LastSessionsAreReservedForUsersWithoutAny) {
  for (uid_t uid = 1; uid <= 7; ++uid) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(OpenOf(uid, "a").ok());
  }
  ExpectDenial(OpenOf(1, "a").status(), Denial::Cause::kDaemonLimit, "a", "", 1, 14, 14);
  EXPECT_TRUE(OpenOf(8, "a").ok());
  EXPECT_FALSE(OpenOf(8, "a").ok());
  EXPECT_TRUE(OpenOf(9, "b").ok());
  ExpectDenial(OpenOf(10, "b").status(), Denial::Cause::kDaemonLimit, "b", "", 1, 16, 16);
}

class SharedPoolTest : public LedgerFixture {
 protected:
  SharedPoolTest()
      : LedgerFixture(Bounds{.max_sessions_per_uid = 2},
                      {Device("GPU-1", {Kind::kVmm, Kind::kMempool})}) {}

  absl::StatusOr<SessionId> Open(uid_t uid, pid_t pid) {
    SessionDetails details;
    details.peer.uid = uid;
    details.peer.pid = pid;
    details.peer.start_time = 1;
    const absl::Status room = ledger.sessions().CheckRoom("a", details);
    absl::StatusOr<SessionId> session = ledger.OpenSession("a", std::move(details), NewSecret());
    EXPECT_EQ(room.code(), session.status().code()) << room << " and " << session.status();
    return session;
  }
};

// A process that has changed its user leaves a session of the old one behind.
TEST_F(SharedPoolTest, OnlyAnEndedSessionOfTheSameUserIsReplaced) {
  const SessionId left = *Open(1, 7);
  const auto made = Ask(left, {.device_uuid = "GPU-1", .bytes = kGranule, .kind = Kind::kMempool});
  ASSERT_TRUE(Granted(made)) << made.status();
  Finish(**made);
  Release(left, (*made)->items);
  ledger.endings().SocketClosed(left);
  ASSERT_EQ(ledger.look().GetTenant("a")->sessions, 1u) << "its process has the pool open";
  for (pid_t pid : {8, 9}) ASSERT_TRUE(Open(2, pid).ok());
  ExpectDenial(Open(2, 7).status(), Denial::Cause::kDaemonLimit, "a", "", 1, 2, 2);
  // A predecessor of the same user makes room.
  ASSERT_TRUE(Open(1, 10).ok());
  EXPECT_FALSE(Open(1, 11).ok());
  EXPECT_TRUE(Open(1, 7).ok());
}

using CallsInFlightTest = LedgerFixture;

TEST_F(CallsInFlightTest, MaxInFlight) {
  ledger.tenants().Configure({{"team", {.max_in_flight = 2}}}, {});
  const SessionId one = OpenSession("team");
  const SessionId two = OpenSession("team");
  EXPECT_TRUE(ledger.sessions().BeginCall(one).ok());
  EXPECT_TRUE(ledger.sessions().BeginCall(two).ok());
  ExpectDenial(ledger.sessions().BeginCall(one), Denial::Cause::kMaxInFlight, "team", "", 1, 2, 2);
  ledger.sessions().EndCall(two);
  EXPECT_TRUE(ledger.sessions().BeginCall(one).ok());
  EXPECT_EQ(ledger.look().GetTenant("team")->in_flight, 2u);
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 1u);
}

class FewWatches : public LedgerFixture {
 protected:
  FewWatches() : LedgerFixture({.max_watches_per_session = 2}) {}
};

TEST_F(FewWatches, WatchDoesNotCountAsACallInFlight) {
  ledger.tenants().Configure({{"team", {.max_in_flight = 1}}}, {});
  const SessionId session = OpenSession("team");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(ledger.sessions().BeginCall(session).ok());
    ASSERT_TRUE(ledger.sessions().BecomeWatch(session).ok());
  }
  EXPECT_EQ(ledger.look().GetTenant("team")->in_flight, 0u);
  ASSERT_TRUE(ledger.sessions().BeginCall(session).ok());
  ExpectDenial(ledger.sessions().BecomeWatch(session), Denial::Cause::kDaemonLimit, "team", "", 1,
               2, 2);
  ledger.sessions().EndCall(session);
  EXPECT_EQ(ledger.CheckInvariants(), absl::OkStatus());
  ledger.sessions().EndWatch(session);
  ASSERT_TRUE(ledger.sessions().BeginCall(session).ok());
  EXPECT_TRUE(ledger.sessions().BecomeWatch(session).ok());
  // Like a call, a watch keeps the session's record until the watch ends.
  ledger.endings().SocketClosed(session);
  ledger.endings().ProcessGone(session);
  EXPECT_TRUE(Drain(ledger.effects().forgotten).empty());
  ledger.sessions().EndWatch(session);
  ledger.sessions().EndWatch(session);
  EXPECT_EQ(Drain(ledger.effects().forgotten), std::vector<SessionId>{session});
}

class FewWatchesOfATenant : public LedgerFixture {
 protected:
  FewWatchesOfATenant() : LedgerFixture({.max_watches_per_tenant = 2}) {}
};

TEST_F(FewWatchesOfATenant, OneMoreIsDeniedAndItsCallGoesOn) {
  const SessionId one = OpenSession("team"), other = OpenSession("team");
  for (SessionId session : {one, other}) {
    ASSERT_TRUE(ledger.sessions().BeginCall(session).ok());
    ASSERT_TRUE(ledger.sessions().BecomeWatch(session).ok());
  }
  ASSERT_TRUE(ledger.sessions().BeginCall(one).ok());
  ExpectDenial(ledger.sessions().BecomeWatch(one), Denial::Cause::kDaemonLimit, "team", "", 1, 2,
               2);
  EXPECT_EQ(ledger.look().GetTenant("team")->in_flight, 1u);
  ledger.sessions().EndWatch(other);
  EXPECT_TRUE(ledger.sessions().BecomeWatch(one).ok());
}

}  // namespace
}  // namespace gpumemd
