// SPDX-License-Identifier: Apache-2.0
// One case for each way in which a user could hold up or wedge the clients of others. arena.h has
// the bounds for all of them, docs/security.md the results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/hostile/arena.h"
#include "tests/support/child.h"

namespace gpumem::hostile {
namespace {

using Hostile = Arena;
using testing::Hear;
using testing::Say;

// The measure of the machine: as many processes as attackers have, which leave the daemon alone.
TEST_F(Hostile, Control) { Survive({.needs_users = false}, {{.attack = "spin", .processes = 4}}); }

// --- gRPC ----------------------------------------------------------------------------------------

TEST_F(Hostile, HalfSentRequests) {
  Survive({}, {{.attack = "half-sent", .processes = 2, .one_user = true}});
}

// A client whose connection was closed under it goes on with its session.
TEST_F(Hostile, ClosedConnections) {
  Start({.needs_users = false});
  if (IsSkipped() || HasFatalFailure()) return;
  for (int i = 0; i < 5; ++i) {
    Say(bystander_.channel(), "cut");
    ASSERT_EQ(Hear(bystander_.channel()), "cut");
    absl::SleepFor(absl::Milliseconds(100));  // some calls
    const Latencies after = EndPhase();
    ASSERT_EQ(after.failed, 0u) << after.first_error;
    EXPECT_GT(after.calls, 0u);
    figures_["cuts"].push_back(nlohmann::json::parse(after.ToJson()));
  }
}

TEST_F(Hostile, UnreadSettings) {
  Survive({.descriptors = 4096}, {{.attack = "settings-flood", .processes = 3, .one_user = true},
                                  {.attack = "ping-flood", .processes = 1}});
}

// Also by viewers, of whom one has many connections.
TEST_F(Hostile, RapidReset) {
  Survive({}, {{.attack = "rapid-reset", .processes = 2},
               {.attack = "view-reset", .processes = 1, .as_operator = true}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("view-reset", "resets"), 0u);
  EXPECT_GT(Counted("view-reset", "closed"), 0u);
}

TEST_F(Hostile, ViewersThatHangUp) {
  Survive({}, {{.attack = "view-hang-up", .processes = 1, .as_operator = true}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("view-hang-up", "calls"), 0u);
}

TEST_F(Hostile, EndlessHeaders) {
  Survive({}, {{.attack = "endless-headers", .processes = 2, .one_user = true}});
}

TEST_F(Hostile, CompressedRequests) {
  Survive({}, {{.attack = "compressed-requests", .processes = 2, .one_user = true}});
}

TEST_F(Hostile, WrongHeaders) { Survive({}, {{.attack = "wrong-headers", .processes = 2}}); }

TEST_F(Hostile, CallStorm) { Survive({}, {{.attack = "call-storm", .processes = 2}}); }

// Clients can keep the daemon's threads from sleeping; for half of a processor's time at most.
TEST_F(Hostile, SpinningThreads) {
  const absl::Time start = absl::Now();
  Survive({.daemon = "spin = \"50,always\"\n", .needs_users = false},
          {{.attack = "tickle", .processes = 2, .one_user = true}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("tickle", "calls"), 0u);
  EXPECT_LE(Metric("gpumem_spin_seconds_total "),
            0.5 * absl::ToDoubleSeconds(absl::Now() - start) + 0.2);
}

TEST_F(Hostile, LaneStorm) {
  Survive({}, {{.attack = "lane-storm", .processes = 2}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("lane-storm", "answers"), 0u);
  EXPECT_GT(Counted("lane-storm", "closed"), 0u);
}

// --- The broker ----------------------------------------------------------------------------------

TEST_F(Hostile, ManyLeases) {
  Survive({}, {{.attack = "leases", .processes = 2, .one_user = true},
               {.attack = "attach", .processes = 1}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("leases", "leases"), 0u);
  EXPECT_GT(Counted("attach", "attached"), 0u);
}

TEST_F(Hostile, ReleaseOfManyIds) {
  Survive({.needs_users = false}, {{.attack = "release", .processes = 2}});
}

TEST_F(Hostile, ReconcileOfManyIds) {
  Survive({.needs_users = false}, {{.attack = "reconcile", .processes = 2}});
}

TEST_F(Hostile, ManyWaiters) {
  Survive({.tenant_defaults = "limit = \"100%\"\n", .device = "1"},
          {{.attack = "release-slowly", .processes = 1}, {.attack = "wait", .processes = 16}});
  if (pid_ == 0) return;
  EXPECT_EQ(Counted("release-slowly", "holds"), 1u);
  EXPECT_GT(Counted("release-slowly", "releases"), 0u);
  EXPECT_GT(Counted("wait", "waiting"), 0u);
}

// Their memory has a place in the host tier, which is small.
TEST_F(Hostile, SuspendAndResume) {
  Survive({.more = "[tier]\ncapacity = \"64MiB\"\n"}, {{.attack = "suspend", .processes = 3}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("suspend", "moved_bytes"), 0u);
  EXPECT_GT(Counted("suspend", "calls"), 0u);
}

// Their host memory is small.
TEST_F(Hostile, ExchangeOfLeases) {
  Survive({.more = "[pinned]\ncapacity = \"64MiB\"\n"}, {{.attack = "exchange", .processes = 3}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("exchange", "exchanged"), 0u);
  EXPECT_GT(Counted("exchange", "calls"), 0u);
}

// They may be asked to suspend, and say a thousand times a second that they are active.
TEST_F(Hostile, ReportsOfActivity) {
  Survive({.more = "[tier]\ncapacity = \"64MiB\"\n"}, {{.attack = "report-flood", .processes = 3}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("report-flood", "reports"), 0u);
}

// They offer to be suspended, and are not, while others wait for their memory.
TEST_F(Hostile, IgnoredSuspensions) {
  Survive({.daemon = "suspension_grace = \"100ms\"\n",
           .tenant_defaults = "limit = \"100%\"\nmin_residence = \"0s\"\n",
           .more = "[tier]\ncapacity = \"90%\"\nhuge_pages = false\n",
           .device = "1"},
          {{.attack = "ignore-suspensions", .processes = 2}, {.attack = "wait", .processes = 4}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("ignore-suspensions", "holds"), 0u);
  // A small machine has no room for their memory in the tier, so that no session is asked.
  if (Metric("gpumem_device_capacity_bytes{device=\"TIER") > 13.0e9) {
    EXPECT_GT(Metric("gpumem_suspension_requests_ended_total{result=\"ignored\"}"), 0);
  }
}

// Four users publish, and attach to what an operator suspends meanwhile, also each other's. Each
// attach brings memory back, and the tier has room for half of what they publish.
TEST_F(Hostile, SuspendedPublications) {
  Survive({.more = "[tier]\ncapacity = \"16MiB\"\n"},
          {{.attack = "publication-storm", .processes = 4},
           {.attack = "suspend-publications", .processes = 1, .as_operator = true}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("suspend-publications", "moved_segments"), 0u);
  EXPECT_GT(Counted("publication-storm", "attached"), 0u);
  EXPECT_EQ(Counted("publication-storm", "done_as_operator"), 0u);
}

// They open pages of their tenants' memory again and again, and try to change them.
TEST_F(Hostile, PageStorm) {
  Survive({}, {{.attack = "page-storm", .processes = 4}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("page-storm", "pages"), 0u);
  EXPECT_EQ(Counted("page-storm", "undelivered"), 0u);
  EXPECT_EQ(Counted("page-storm", "changed"), 0u);
}

// They charge themselves for memory of the CUDA driver as often as they may, and reach for what
// needs memory of the daemon.
TEST_F(Hostile, DriverStorm) {
  Survive({}, {{.attack = "driver-storm", .processes = 4}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("driver-storm", "charges"), 0u);
  for (const char* what : {"with_memory", "tagged", "shared", "published", "suspended"}) {
    EXPECT_EQ(Counted("driver-storm", what), 0u) << what;
  }
}

// Users tell the daemon of pods, which only operators may; an operator tells it of as many as it
// may and more, over and over.
TEST_F(Hostile, FactsOfPods) {
  Survive({}, {{.attack = "fact-flood", .processes = 3},
               {.attack = "tell-pods", .processes = 1, .as_operator = true}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("fact-flood", "tried"), 0u);
  EXPECT_EQ(Counted("fact-flood", "told"), 0u);
  EXPECT_GT(Counted("tell-pods", "told"), 0u);
  EXPECT_GT(Counted("tell-pods", "refused"), 0u);
  EXPECT_EQ(Counted("tell-pods", "nonsense"), 0u);
}

// Viewers take all that the view socket has, and try to change something; another user tries to be
// one. Operators have the same uid as these viewers here, and do not notice.
TEST_F(Hostile, Viewers) {
  Survive({}, {{.attack = "view-storm", .processes = 2, .as_operator = true},
               {.attack = "view-storm", .processes = 1}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("view-storm", "shown"), 0u);
  EXPECT_GT(Counted("view-storm", "connections"), 0u);
  EXPECT_GT(Counted("view-storm", "turned_away"), 0u);
  EXPECT_GT(Counted("view-storm", "tried"), 0u);
  EXPECT_EQ(Counted("view-storm", "changed"), 0u);
}

// Operators trace the daemon without a break while calls flood it: one of them does not read its
// trace, others come while a trace runs, or leave in the middle. Users may not trace.
TEST_F(Hostile, Traces) {
  Survive({}, {{.attack = "call-storm", .processes = 2},
               {.attack = "trace-storm", .processes = 2, .as_operator = true},
               {.attack = "trace-storm", .processes = 1}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("trace-storm", "traced"), 0u);
  EXPECT_GT(Counted("trace-storm", "refused"), 0u);
}

// They make tenants without end, with odd names, and reach for those of others.
TEST_F(Hostile, TenantStorm) {
  Survive({}, {{.attack = "tenant-storm", .processes = 4}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("tenant-storm", "made"), 0u);
  for (const char* what :
       {"over_limit", "odd_names", "others_changed", "others_ended", "others_entered"}) {
    EXPECT_EQ(Counted("tenant-storm", what), 0u) << what;
  }
}

// They leave tenants behind without end, and reach for more than they may have.
TEST_F(Hostile, LastingTenantStorm) {
  Survive({}, {{.attack = "lasting-tenant-storm", .processes = 4}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("lasting-tenant-storm", "made"), 0u);
  EXPECT_GT(Counted("lasting-tenant-storm", "inside"), 0u);
  for (const char* what :
       {"over_limit", "odd_names", "more", "changed_by_create", "widened", "reborn",
        "entered_ended", "others_changed", "others_ended", "others_entered", "others_listed"}) {
    EXPECT_EQ(Counted("lasting-tenant-storm", what), 0u) << what;
  }
}

// They claim what they never publish, and wait for each other's claims.
TEST_F(Hostile, Claims) {
  Survive({}, {{.attack = "claim-storm", .processes = 4}});
  if (pid_ == 0) return;
  EXPECT_GT(Counted("claim-storm", "claims"), 0u);
  EXPECT_GT(Counted("claim-storm", "passed_on"), 0u);
  EXPECT_EQ(Counted("claim-storm", "over_limit"), 0u);
}

// --- Sessions ------------------------------------------------------------------------------------

TEST_F(Hostile, BadGreetings) {
  Survive({.more = "[audit]\noutput = \"off\"\n"}, {{.attack = "bad-greetings", .processes = 2}});
  // A line for each would fill the machine's disk, and hide other lines of the log.
  EXPECT_LE(figures_.value("log_lines", 0.0), 100 * figures_.value("attack_seconds", 0.0));
}

TEST_F(Hostile, BadGreetingsWhenTheLogIsNotRead) {
  Survive({.log_is_read = false}, {{.attack = "bad-greetings", .processes = 2}});
}

// Sixteen users ask for four times as many sessions as there are.
TEST_F(Hostile, AllSessionsTaken) {
  Survive({.daemon = "max_sessions = 1024\n"}, {{.attack = "take-sessions", .processes = 16}});
}

TEST_F(Hostile, ClientsThatDoNotRead) { Survive({}, {{.attack = "never-read", .processes = 8}}); }

TEST_F(Hostile, SessionsThatMoveOverAndOver) {
  Survive({}, {{.attack = "resume", .processes = 4}});
}

TEST_F(Hostile, SilenceAndGarbage) {
  Survive({}, {{.attack = "say-nothing", .processes = 2}, {.attack = "garbage", .processes = 2}});
}

}  // namespace
}  // namespace gpumem::hostile

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (!args.empty() && args[0] == "--role") {
    return gpumem::hostile::RunRole({args.begin() + 1, args.end()});
  }
  return gpumem::hostile::InOwnSession([&] {
    ::testing::InitGoogleMock(&argc, argv);
    return RUN_ALL_TESTS();
  });
}
