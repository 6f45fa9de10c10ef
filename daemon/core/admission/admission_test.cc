// Every limit to the byte: which requests fit, the denials of the others, and what makes room.
#include "daemon/core/ledger/testing/fixture.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AdmissionTest : public LedgerFixture {
 protected:
  using LedgerFixture::LedgerFixture;
  static bool Granted(const absl::StatusOr<std::optional<Operation>>& answer) {
    return answer.ok() && answer->has_value();
  }
  static bool Soon(const absl::StatusOr<std::optional<Operation>>& answer) {
    return answer.ok() && !answer->has_value();
  }
};

// --- The last byte fits, one more does not ---------------------------------------------

TEST_F(AdmissionTest, DeviceLimit) {
  ledger.Configure({{"team", {.limit_bytes = 512 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 511 * kGranule);
  ExpectDenial(Ask(session, kGranule + 1).status(), Denial::Cause::kDeviceLimit, "team", "GPU-1",
               2 * kGranule, 511 * kGranule, 512 * kGranule);
  Acquire(session, kGranule);  // the 512th
  const absl::Status refused = Ask(session, 1).status();
  ExpectDenial(refused, Denial::Cause::kDeviceLimit, "team", "GPU-1", kGranule, 512 * kGranule,
               512 * kGranule);
  EXPECT_THAT(HelpOf(refused), HasSubstr("release 2.00 MiB"));
  Acquire(session, kGranule, 1, "GPU-2");  // limits are per device
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 2u);
}

TEST_F(AdmissionTest, ALimitOfOneDeviceGoesBeforeTheCommonOne) {
  ledger.Configure(
      {{"team", {.limit_bytes = 512 * kGranule, .device_limits = {{"GPU-2", kGranule}}}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, kGranule, 1, "GPU-2");
  ExpectDenial(Ask(session, 1, 1, "GPU-2").status(), Denial::Cause::kDeviceLimit, "team", "GPU-2",
               kGranule, kGranule, kGranule);
  Acquire(session, 512 * kGranule, 1, "GPU-1");
}

TEST_F(AdmissionTest, TotalLimit) {
  ledger.Configure({{"team", {.total_limit_bytes = 512 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 256 * kGranule, 1, "GPU-1");
  Acquire(session, 256 * kGranule, 1, "GPU-2");
  const absl::Status refused = Ask(session, 1).status();
  ExpectDenial(refused, Denial::Cause::kTotalLimit, "team", "", kGranule, 512 * kGranule,
               512 * kGranule);
  EXPECT_THAT(HelpOf(refused), HasSubstr("--total-limit"));
}

TEST_F(AdmissionTest, MaxSegments) {
  ledger.Configure({{"team", {.max_segments = 512}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 1, 253);
  Acquire(session, 1, 253, "GPU-2");
  ExpectDenial(Ask(session, 1, 7).status(), Denial::Cause::kMaxSegments, "team", "", 7, 506, 512);
  Acquire(session, 1, 6);
  ExpectDenial(Ask(session, 1).status(), Denial::Cause::kMaxSegments, "team", "", 1, 512, 512);
}

TEST_F(AdmissionTest, Capacity) {
  ledger.Configure({{"team", {}}, {"other", {}}}, {});
  Acquire(OpenSession("other"), 512 * kGranule);
  const SessionId session = OpenSession("team");
  Acquire(session, 511 * kGranule);
  ExpectDenial(Ask(session, kGranule, 2).status(), Denial::Cause::kCapacity, "team", "GPU-1",
               2 * kGranule, 1023 * kGranule, 1024 * kGranule);
  Acquire(session, kGranule);
  ExpectDenial(Ask(session, 1).status(), Denial::Cause::kCapacity, "team", "GPU-1", kGranule,
               1024 * kGranule, 1024 * kGranule);
}

// A tenant without a limit is not advised to have its limit raised.
TEST_F(AdmissionTest, WithoutALimitItIsTheCapacityThatDenies) {
  const SessionId session = OpenSession("team");
  const absl::Status too_much = Ask(session, 512 * kGranule, 3).status();
  ExpectDenial(too_much, Denial::Cause::kCapacity, "team", "GPU-1", 1536 * kGranule, 0, kCapacity);
  EXPECT_THAT(HelpOf(too_much), HasSubstr("ask for less"));
  Acquire(session, kCapacity);
  ExpectDenial(Ask(session, 1).status(), Denial::Cause::kCapacity, "team", "GPU-1", kGranule,
               kCapacity, kCapacity);
  EXPECT_EQ(Usage("team").limit, kCapacity);
}

class SmallDaemonTest : public AdmissionTest {
 protected:
  SmallDaemonTest() : AdmissionTest(Bounds{.max_sessions = 3, .max_segments = 4}) {}
};

TEST_F(SmallDaemonTest, MaxSegmentsOfTheDaemon) {
  Acquire(OpenSession("a"), 1, 2);
  const SessionId session = OpenSession("b");
  ExpectDenial(Ask(session, 1, 3).status(), Denial::Cause::kDaemonLimit, "b", "", 3, 2, 4);
  Acquire(session, 1, 2, "GPU-2");
  const absl::Status refused = Ask(session, 1).status();
  ExpectDenial(refused, Denial::Cause::kDaemonLimit, "b", "", 1, 4, 4);
  EXPECT_THAT(HelpOf(refused), HasSubstr("daemon.max_segments"));
}

TEST_F(SmallDaemonTest, WhatOthersRetainGoesForTheDaemonsLimitToo) {
  const SessionId other = OpenSession("other");
  const auto kept = Acquire(other, kGranule, 2, "GPU-2");
  Release(other, kept);
  const SessionId session = OpenSession("team");
  Acquire(session, 1, 2);
  EXPECT_TRUE(Soon(Ask(session, 1)));
  EXPECT_THAT(DestroyDoomed(), ElementsAre(kept[0].segment));
  EXPECT_TRUE(Granted(Ask(session, 1)));
}

TEST_F(SmallDaemonTest, MaxSessions) {
  ledger.Configure({{"team", {.max_sessions = 1}}}, {});
  const SessionId first = OpenSession("team");
  const absl::Status refused = ledger.OpenSession("team", {}, NewSecret()).status();
  ExpectDenial(refused, Denial::Cause::kMaxSessions, "team", "", 1, 1, 1);
  OpenSession("a");
  OpenSession("b");
  ExpectDenial(ledger.OpenSession("c", {}, NewSecret()).status(), Denial::Cause::kDaemonLimit, "c",
               "", 1, 3, 3);
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("c").status()));  // leaves no trace
  ledger.SocketClosed(first);
  OpenSession("team");
}

class SharedDaemonTest : public AdmissionTest {
 protected:
  SharedDaemonTest()
      : AdmissionTest(
            Bounds{.max_sessions = 16, .max_sessions_per_uid = 4, .reserved_sessions = 2}) {}

  // Opens a session of a new process.
  absl::StatusOr<SessionId> OpenOf(uid_t uid, absl::string_view tenant) {
    SessionDetails details;
    details.peer.pid = ++pids;
    details.peer.uid = uid;
    const absl::Status room = ledger.CheckRoomForSession(tenant, details);
    const absl::StatusOr<SessionId> session =
        ledger.OpenSession(tenant, std::move(details), NewSecret());
    EXPECT_EQ(room.code(), session.status().code()) << room << " and " << session.status();
    return session;
  }
};

TEST_F(SharedDaemonTest, AUserHasAShareOfTheSessionsWhateverItsTenants) {
  std::vector<SessionId> sessions;
  for (const char* tenant : {"a", "b", "a", "c"}) sessions.push_back(*OpenOf(1, tenant));
  const absl::Status refused = OpenOf(1, "d").status();
  ExpectDenial(refused, Denial::Cause::kDaemonLimit, "d", "", 1, 4, 4);
  EXPECT_THAT(HelpOf(refused), HasSubstr("daemon.max_sessions_per_uid"));
  EXPECT_TRUE(absl::IsNotFound(ledger.look().GetTenant("d").status()));  // leaves no trace
  EXPECT_TRUE(OpenOf(2, "a").ok());
  ledger.SocketClosed(sessions[0]);
  EXPECT_TRUE(OpenOf(1, "d").ok());
}

TEST_F(SharedDaemonTest, TheLastSessionsAreForUsersWhoHaveNone) {
  for (uid_t uid = 1; uid <= 7; ++uid) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(OpenOf(uid, "a").ok());
  }
  const absl::Status refused = OpenOf(1, "a").status();
  ExpectDenial(refused, Denial::Cause::kDaemonLimit, "a", "", 1, 14, 14);
  EXPECT_THAT(HelpOf(refused), HasSubstr("for users who have none"));
  EXPECT_TRUE(OpenOf(8, "a").ok());
  EXPECT_FALSE(OpenOf(8, "a").ok());
  EXPECT_TRUE(OpenOf(9, "b").ok());
  ExpectDenial(OpenOf(10, "b").status(), Denial::Cause::kDaemonLimit, "b", "", 1, 16, 16);
}

class SharedPoolTest : public AdmissionTest {
 protected:
  SharedPoolTest()
      : AdmissionTest(Bounds{.max_sessions_per_uid = 2},
                      {Device("GPU-1", {Kind::kVmm, Kind::kMempool})}) {}

  absl::StatusOr<SessionId> Open(uid_t uid, pid_t pid) {
    SessionDetails details;
    details.peer.uid = uid;
    details.peer.pid = pid;
    details.peer.start_time = 1;
    const absl::Status room = ledger.CheckRoomForSession("a", details);
    const absl::StatusOr<SessionId> session =
        ledger.OpenSession("a", std::move(details), NewSecret());
    EXPECT_EQ(room.code(), session.status().code()) << room << " and " << session.status();
    return session;
  }
};

// A process that has changed its user leaves a session of the old one behind.
TEST_F(SharedPoolTest, OnlyAPredecessorOfTheSameUserMakesRoom) {
  const SessionId left = *Open(1, 7);
  const auto made = Ask(left, {.device_uuid = "GPU-1", .bytes = kGranule, .kind = Kind::kMempool});
  ASSERT_TRUE(Granted(made)) << made.status();
  Finish(**made);
  Release(left, (*made)->items);
  ledger.SocketClosed(left);
  ASSERT_EQ(ledger.look().GetTenant("a")->sessions, 1u) << "its process has the pool open";
  for (pid_t pid : {8, 9}) ASSERT_TRUE(Open(2, pid).ok());
  ExpectDenial(Open(2, 7).status(), Denial::Cause::kDaemonLimit, "a", "", 1, 2, 2);
  // A predecessor of the same user makes room.
  ASSERT_TRUE(Open(1, 10).ok());
  EXPECT_FALSE(Open(1, 11).ok());
  EXPECT_TRUE(Open(1, 7).ok());
}

TEST_F(AdmissionTest, MaxInFlight) {
  ledger.Configure({{"team", {.max_in_flight = 2}}}, {});
  const SessionId one = OpenSession("team");
  const SessionId two = OpenSession("team");
  EXPECT_TRUE(ledger.BeginCall(one).ok());
  EXPECT_TRUE(ledger.BeginCall(two).ok());
  ExpectDenial(ledger.BeginCall(one), Denial::Cause::kMaxInFlight, "team", "", 1, 2, 2);
  ledger.EndCall(two);
  EXPECT_TRUE(ledger.BeginCall(one).ok());
  EXPECT_EQ(ledger.look().GetTenant("team")->in_flight, 2u);
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 1u);
}

class FewWatches : public LedgerFixture {
 protected:
  FewWatches() : LedgerFixture({.max_watches_per_session = 2}) {}
};

TEST_F(FewWatches, AWatchIsNoCallInFlight) {
  ledger.Configure({{"team", {.max_in_flight = 1}}}, {});
  const SessionId session = OpenSession("team");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(ledger.BeginCall(session).ok());
    ASSERT_TRUE(ledger.BecomeWatch(session).ok());
  }
  EXPECT_EQ(ledger.look().GetTenant("team")->in_flight, 0u);
  ASSERT_TRUE(ledger.BeginCall(session).ok());
  ExpectDenial(ledger.BecomeWatch(session), Denial::Cause::kDaemonLimit, "team", "", 1, 2, 2);
  ledger.EndCall(session);
  EXPECT_EQ(ledger.CheckInvariants(), absl::OkStatus());
  ledger.EndWatch(session);
  ASSERT_TRUE(ledger.BeginCall(session).ok());
  EXPECT_TRUE(ledger.BecomeWatch(session).ok());
  // Like a call, a watch keeps the session's record until the watch ends.
  ledger.SocketClosed(session);
  ledger.ProcessGone(session);
  EXPECT_TRUE(ledger.TakeForgotten().empty());
  ledger.EndWatch(session);
  ledger.EndWatch(session);
  EXPECT_EQ(ledger.TakeForgotten(), std::vector<SessionId>{session});
}

// --- The numbers of a denial -----------------------------------------------------------

TEST_F(AdmissionTest, WhatIsRetainedDoesNotCountAsUsed) {
  ledger.Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 4 * kGranule);
  Release(session, Acquire(session, 3 * kGranule));
  const absl::Status refused = Ask(session, 5 * kGranule).status();
  ExpectDenial(refused, Denial::Cause::kDeviceLimit, "team", "GPU-1", 5 * kGranule, 4 * kGranule,
               8 * kGranule);
  EXPECT_THAT(HelpOf(refused), HasSubstr("release 2.00 MiB"));
  EXPECT_EQ(Usage("team").retained, 3 * kGranule);  // a denial dooms no segment
}

// `asked` includes segments that could have been reused.
TEST_F(AdmissionTest, AskedIsAllThatWasAskedFor) {
  ledger.Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 4 * kGranule);
  Release(session, Acquire(session, 2 * kGranule));
  ExpectDenial(Ask(session, 2 * kGranule, 3).status(), Denial::Cause::kDeviceLimit, "team", "GPU-1",
               6 * kGranule, 4 * kGranule, 8 * kGranule);
}

// Above a limit that was lowered, more has to be released than was asked for.
TEST_F(AdmissionTest, HelpOfATenantAboveItsLimit) {
  ledger.Configure({{"team", {}}}, {});
  const SessionId session = OpenSession("team");
  Acquire(session, 10 * kGranule);
  SetQuota("team", {.limit_bytes = 4 * kGranule});
  const absl::Status refused = Ask(session, kGranule).status();
  ExpectDenial(refused, Denial::Cause::kDeviceLimit, "team", "GPU-1", kGranule, 10 * kGranule,
               4 * kGranule);
  EXPECT_THAT(HelpOf(refused), HasSubstr("release 14.00 MiB"));
}

TEST_F(AdmissionTest, AskingForMoreThanTheLimit) {
  ledger.Configure({{"team", {.limit_bytes = 4 * kGranule}}}, {});
  const absl::Status refused = Ask(OpenSession("team"), 5 * kGranule).status();
  ExpectDenial(refused, Denial::Cause::kDeviceLimit, "team", "GPU-1", 5 * kGranule, 0,
               4 * kGranule);
  EXPECT_THAT(HelpOf(refused), HasSubstr("ask for less"));
}

// A request that cannot wait is told that the memory exists, and is on its way back.
TEST_F(AdmissionTest, ImpatientWhileMemoryIsOnItsWayBack) {
  ledger.Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  const AcquireSpec spec{.bytes = 5 * kGranule};
  Release(session, Acquire(session, 8 * kGranule));
  const absl::StatusOr<Admission> waits = ledger.BeginAcquire(session, spec);
  ASSERT_TRUE(waits.ok() && waits->waiter) << waits.status();
  const absl::Status refused = ledger.EndWait(*waits->waiter, /*expired=*/true);
  ExpectDenial(refused, Denial::Cause::kDeviceLimit, "team", "GPU-1", 5 * kGranule, 8 * kGranule,
               8 * kGranule);
  EXPECT_THAT(HelpOf(refused), HasSubstr("on its way back"));
  DestroyDoomed();
  EXPECT_TRUE(Granted(Ask(session, spec)));
}

TEST_F(AdmissionTest, TheDriversDenial) {
  const SessionId session = OpenSession("team");
  Acquire(session, kGranule);
  const absl::Status refused = ledger.DriverDenial(session, 0, 5, "CUDA_ERROR_OUT_OF_MEMORY");
  ExpectDenial(refused, Denial::Cause::kDriver, "team", "GPU-1", 5, kGranule, kCapacity);
  EXPECT_THAT(HelpOf(refused), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 1u);
}

// --- What makes room -------------------------------------------------------------------

TEST_F(AdmissionTest, OwnRetainedGoesFirstAndTheOldestOfIt) {
  ledger.Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  const auto first = AcquireOne(session, kGranule);
  const auto second = AcquireOne(session, 2 * kGranule);
  const auto third = AcquireOne(session, 4 * kGranule);
  Release(session, {second});
  Release(session, {first});
  Release(session, {third});
  EXPECT_TRUE(Soon(Ask(session, 3 * kGranule)));  // of 8, 7 are retained: 2 have to go
  EXPECT_THAT(ledger.TakeDoomed(), ElementsAre(second.segment));
  EXPECT_TRUE(Soon(Ask(session, 3 * kGranule)));  // not destroyed yet: nothing more goes
  EXPECT_THAT(ledger.TakeDoomed(), IsEmpty());
  ledger.Destroyed(second.segment);
  EXPECT_TRUE(Granted(Ask(session, 3 * kGranule)));
}

TEST_F(AdmissionTest, ThenTheRetainedOfWhoRetainsMost) {
  const SessionId rich = OpenSession("rich");
  const SessionId poor = OpenSession("poor");
  const SessionId session = OpenSession("team");
  const auto poors = Acquire(poor, 200 * kGranule);
  const auto richs = Acquire(rich, 300 * kGranule);
  const auto own = Acquire(session, 24 * kGranule);
  Acquire(session, 500 * kGranule);
  Release(poor, poors);
  Release(rich, richs);
  Release(session, own);
  EXPECT_TRUE(Soon(Ask(session, 24 * kGranule + 1)));
  EXPECT_THAT(DestroyDoomed(), ElementsAre(own[0].segment, richs[0].segment));
  EXPECT_EQ(Usage("poor").retained, 200 * kGranule);
  Acquire(session, 25 * kGranule);
}

TEST_F(AdmissionTest, OthersRetainedDoesNotHelpAgainstTheOwnLimit) {
  ledger.Configure({{"team", {.limit_bytes = 4 * kGranule}}}, {});
  const SessionId other = OpenSession("other");
  Release(other, Acquire(other, 4 * kGranule));
  const SessionId session = OpenSession("team");
  Acquire(session, 4 * kGranule);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, 1).status()));
  EXPECT_EQ(Usage("other").retained, 4 * kGranule);
}

TEST_F(AdmissionTest, OwnRetainedOfOtherDevicesGoesForTotalsAndCounts) {
  ledger.Configure({{"team", {.total_limit_bytes = 8 * kGranule, .max_segments = 3}}}, {});
  const SessionId session = OpenSession("team");
  const auto kept = Acquire(session, 4 * kGranule, 1, "GPU-2");
  Acquire(session, 2 * kGranule, 2);
  Release(session, kept);
  EXPECT_TRUE(Soon(Ask(session, kGranule)));
  EXPECT_THAT(DestroyDoomed(), ElementsAre(kept[0].segment));
  Acquire(session, kGranule);
}

TEST_F(AdmissionTest, ReusesAnExactFitAndMakesTheRest) {
  ledger.Configure({{"team", {.limit_bytes = 8 * kGranule}}}, {});
  const SessionId session = OpenSession("team");
  const auto kept = Acquire(session, 2 * kGranule, 2);
  Release(session, kept);
  const auto items = Acquire(session, 2 * kGranule - 1, 3);
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].segment, kept[0].segment);
  EXPECT_EQ(items[1].segment, kept[1].segment);
  EXPECT_TRUE(items[0].reused && items[1].reused && items[2].fresh);
  EXPECT_FALSE(items[0].fresh || items[1].fresh || items[2].reused);
  EXPECT_TRUE(ledger.look().Describe(items[0]).reused);
}

// The tenant gets nothing while it is above its limit, not even what it retained.
TEST_F(AdmissionTest, NoReuseAboveALoweredLimit) {
  ledger.Configure({{"team", {}}}, {});
  const SessionId session = OpenSession("team");
  Release(session, Acquire(session, 2 * kGranule, 4));
  SetQuota("team", {.limit_bytes = 4 * kGranule});
  EXPECT_EQ(Usage("team").retained, 4 * kGranule);
  EXPECT_EQ(Usage("team").charged, 8 * kGranule);  // two are on their way back
  EXPECT_TRUE(Soon(Ask(session, 2 * kGranule, 2)));
  EXPECT_EQ(DestroyDoomed().size(), 2u);
  EXPECT_TRUE(Acquire(session, 2 * kGranule, 2)[1].reused);
}

TEST_F(AdmissionTest, WhatIsReleasedAboveALoweredTotalIsNotKept) {
  ledger.Configure({{"team", {}}}, {});
  const SessionId session = OpenSession("team");
  const auto items = Acquire(session, 2 * kGranule, 4);
  SetQuota("team", {.total_limit_bytes = 4 * kGranule});
  Release(session, {items[0], items[1]});
  EXPECT_EQ(Usage("team").retained, 0u);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, 2 * kGranule).status()));
  SetQuota("team", {.max_segments = 1});
  Release(session, {items[2]});
  EXPECT_EQ(Usage("team").retained, 0u);
  Release(session, {items[3]});  // the one that the limit allows
  EXPECT_EQ(Usage("team").retained, 2 * kGranule);
}

TEST_F(AdmissionTest, ALowerBoundOnWhatIsRetainedTakesEffectAtOnce) {
  ledger.Configure({{"team", {}}}, {});
  const SessionId session = OpenSession("team");
  Release(session, Acquire(session, 2 * kGranule, 4));
  SetQuota("team", {.max_retained_bytes = 5 * kGranule});
  EXPECT_EQ(Usage("team").retained, 4 * kGranule);
  SetQuota("team", {.max_retained_bytes = 5 * kGranule, .device_max_retained = {{"GPU-1", 0}}});
  EXPECT_EQ(Usage("team").retained, 0u);
  EXPECT_EQ(DestroyDoomed().size(), 4u);
}

TEST_F(AdmissionTest, RoomForTheDriverIsMadeOfOwnRetainedFirst) {
  const SessionId other = OpenSession("other");
  const auto others = Acquire(other, 8 * kGranule);
  Release(other, others);
  const SessionId session = OpenSession("team");
  const auto own = Acquire(session, 2 * kGranule);
  Release(session, own);
  EXPECT_TRUE(ledger.MakeRoomOnDevice(session, 0, 2 * kGranule));
  EXPECT_THAT(ledger.TakeDoomed(), ElementsAre(own[0].segment));
  EXPECT_TRUE(ledger.MakeRoomOnDevice(session, 0, 2 * kGranule + 1));
  EXPECT_THAT(ledger.TakeDoomed(), ElementsAre(others[0].segment));
  ledger.Destroyed(own[0].segment);
  EXPECT_TRUE(ledger.MakeRoomOnDevice(session, 0, 1));  // the other tenant's is still releasing
  ledger.Destroyed(others[0].segment);
  EXPECT_FALSE(ledger.MakeRoomOnDevice(session, 0, 1));
}

class FewLeases : public LedgerFixture {
 protected:
  FewLeases() : LedgerFixture({.max_leases_per_session = 3}) {}
};

TEST_F(FewLeases, OneMoreLeaseThanASessionMayHoldIsDenied) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const LeaseId lease = Acquire(session, kGranule)[0].lease;
  const Secret ticket = *ledger.Share(session, lease, TicketScope::kTenant, NewSecret());
  for (int i = 0; i < 2; ++i) {
    const auto operation = ledger.BeginOpen(session, {ticket});
    ASSERT_TRUE(operation.ok()) << operation.status();
    ASSERT_TRUE(ledger.Commit(*operation).ok());
  }
  const absl::Status more = ledger.BeginOpen(session, {ticket}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(more)) << more;
  EXPECT_EQ(DenialOf(more)->cause, Denial::Cause::kDaemonLimit);
  EXPECT_EQ(DenialOf(more)->used, 3u);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, kGranule).status()));
  // It is a bound of the session, not of its tenant.
  EXPECT_EQ(Acquire(other, kGranule, 3).size(), 3u);
  ASSERT_TRUE(ledger.Release(session, {lease}).ok());
  EXPECT_EQ(Acquire(session, kGranule).size(), 1u);
}

// Several requests of one session may each be below the bound, and together above it.
TEST_F(FewLeases, NorIsItGrantedToWhoHasWaitedForIt) {
  const SessionId session = OpenSession("team"), other = OpenSession("other");
  const auto held = Acquire(other, kCapacity);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(ledger.BeginCall(session).ok());
    const auto admission = ledger.BeginAcquire(
        session, {.device_uuid = "GPU-1", .bytes = kGranule, .count = 2, .waits = true});
    ASSERT_TRUE(admission.ok() && admission->waiter) << admission.status();
  }
  Release(other, held);
  EXPECT_THAT(ledger.AdmitWaiting(), ::testing::IsEmpty());
  DestroyDoomed();
  const auto admitted = ledger.AdmitWaiting();
  ASSERT_EQ(admitted.size(), 2u);
  ASSERT_TRUE(admitted[0].operation.ok()) << admitted[0].operation.status();
  Finish(*admitted[0].operation);
  ExpectDenial(admitted[1].operation.status(), Denial::Cause::kDaemonLimit, "team", "", 2, 2, 3);
  EXPECT_EQ(ledger.look().GetTenant("team")->waiting, 0u);
}

class FewLeasesInAll : public LedgerFixture {
 protected:
  FewLeasesInAll() : LedgerFixture({.max_leases_per_tenant = 4, .max_leases = 6}) {}
};

TEST_F(FewLeasesInAll, ATenantHoldsOnlySoMany) {
  const SessionId session = OpenSession("team"), other = OpenSession("team");
  const Operation::Item item = AcquireOne(session, kGranule);
  const Secret ticket = Share(session, item.lease);
  // Leases of a pending operation count, too.
  const auto opening = ledger.BeginOpen(session, {ticket, ticket});
  ASSERT_TRUE(opening.ok()) << opening.status();
  const auto denied = [&] { return ledger.BeginOpen(other, {ticket, ticket}).status(); };
  ExpectDenial(denied(), Denial::Cause::kDaemonLimit, "team", "", 2, 3, 4);
  ledger.Abort(*opening, /*handed_over=*/false);
  OpenTicket(other, ticket);
  OpenTicket(other, ticket);
  ExpectDenial(denied(), Denial::Cause::kDaemonLimit, "team", "", 2, 3, 4);
  EXPECT_EQ(HelpOf(denied()).substr(0, 15), "a tenant holds ");
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(session, kGranule, 2).status()));
  // A session that ends during a hand-over never had the lease.
  const auto late = ledger.BeginOpen(other, {ticket});
  ASSERT_TRUE(late.ok()) << late.status();
  ledger.SocketClosed(other);
  EXPECT_TRUE(absl::IsAborted(ledger.Commit(*late)));
  EXPECT_TRUE(ledger.BeginOpen(session, {ticket, ticket, ticket}).ok());
}

TEST_F(FewLeasesInAll, AllTenantsHoldOnlySoMany) {
  const SessionId a = OpenSession("a"), b = OpenSession("b");
  Acquire(a, kGranule, 4);
  const auto of_b = Acquire(b, kGranule, 1);
  ExpectDenial(Ask(b, kGranule, 2).status(), Denial::Cause::kDaemonLimit, "b", "", 2, 5, 6);
  Release(b, of_b);
  EXPECT_EQ(Acquire(b, kGranule, 2).size(), 2u);
}

// --- Requests that make no sense -------------------------------------------------------

TEST_F(AdmissionTest, Nonsense) {
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
  EXPECT_TRUE(absl::IsUnimplemented(
      ledger.BeginAcquire(session, {.bytes = 1, .kind = static_cast<Kind>(9)}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ledger.BeginOpen(session, {}).status()));
  const std::vector<Secret> many(kMaxSegmentsPerCall + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ledger.BeginOpen(session, many).status()));
  EXPECT_EQ(ledger.state().segments.size(), 0u);
  EXPECT_EQ(ledger.look().GetTenant("team")->denials, 0u);  // invalid, so not a denial
  EXPECT_EQ(Acquire(session, 1, kMaxSegmentsPerCall).size(), kMaxSegmentsPerCall);
}

}  // namespace
}  // namespace gpumemd
