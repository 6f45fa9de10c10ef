// SPDX-License-Identifier: Apache-2.0
// The audit of a real daemon and its clients: each event once, with its actor, and in its
// documented form (docs/reference/audit.md, which a unit test compares with AuditKinds).
// audit_operator_test.cc has the operators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/kept_daemon.h"
#include "tests/support/wire.h"
#include "tests/system/testing/audit_fixture.h"

namespace gpumem {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::Hear;
using ::testing::IsEmpty;
using testing::Json;
using testing::kAuditConfig;
using testing::KeptDaemon;
using testing::kParentChannel;
using ::testing::Not;
using testing::Say;

class AuditTest : public testing::AuditTest {
 protected:
  // Starts this program in a role (RunRole of audit_test.cc).
  Child Role(const std::string& role, const std::string& tenant, uint64_t mib) {
    Child child = Child::Self({"--role", role, daemon_->runtime_dir(), tenant, absl::StrCat(mib)});
    EXPECT_EQ(Hear(child.channel()), "holding");
    return child;
  }
};

TEST_F(AuditTest, AWorkerFromItsBeginningToItsDeath) {
  Start();
  Child worker = Role("worker", "team", 4);
  const Json opened = audit_.One("session-opened");
  EXPECT_EQ(opened["tenant"], "team");
  EXPECT_EQ(opened["pid"], worker.pid());
  EXPECT_EQ(opened["uid"], geteuid());
  EXPECT_EQ(opened["client"], "a \"worker\"");
  EXPECT_EQ(opened["command"], "exe");  // of /proc/self/exe
  const Json& session = opened["session"];

  const Json denied = audit_.One("denied");
  EXPECT_EQ(denied["session"], session);
  EXPECT_EQ(denied["cause"], "device-limit");
  EXPECT_EQ(denied["asked"], 64 * kMiB);
  EXPECT_EQ(denied["limit"], 32 * kMiB);
  EXPECT_EQ(denied["used"], 8 * kMiB);

  EXPECT_TRUE(audit_.Await("released", 1));
  const std::vector<Json> granted = audit_.Of("granted");
  ASSERT_EQ(granted.size(), 2u) << audit_.text();
  for (const Json& each : granted) {
    EXPECT_EQ(each["session"], session);
    EXPECT_EQ(each["bytes"], 4 * kMiB);
    EXPECT_EQ(each["call"], "acquire");
    EXPECT_EQ(each["lease"].size(), 1u);
  }
  const Json released = audit_.One("released");
  EXPECT_EQ(released["lease"], granted[1]["lease"]);
  EXPECT_EQ(released["segment"], granted[1]["segment"]);

  const pid_t pid = worker.pid();
  worker.Signal(SIGKILL);
  worker.Wait();
  const Json reclaimed = audit_.One("reclaimed");
  EXPECT_EQ(reclaimed["pid"], pid);
  EXPECT_EQ(reclaimed["tenant"], "team");
  EXPECT_EQ(reclaimed["bytes"], 4 * kMiB);
  EXPECT_EQ(reclaimed["segment"], granted[0]["segment"]);
  const Json ended = audit_.One("session-ended");
  EXPECT_EQ(ended["session"], session);
  EXPECT_EQ(ended["bytes"], 4 * kMiB);
  Stop();
  EXPECT_EQ(audit_.Of("session-opened").size(), 1u);
  EXPECT_EQ(audit_.Of("granted").size(), 2u);
  EXPECT_EQ(audit_.Of("denied").size(), 1u);
}

TEST_F(AuditTest, AFloodOfDenialsIsCounted) {
  Start();
  auto client = daemon_->Connect("team");
  ASSERT_TRUE(client.ok()) << client.status();
  constexpr uint64_t kDenials = 300;
  for (uint64_t i = 0; i < kDenials; ++i) {
    ASSERT_FALSE((*client)->Acquire({.bytes = 60 * kMiB}).ok());
  }
  client->reset();
  Stop();
  uint64_t told = audit_.Of("denied").size();
  EXPECT_LT(told, kDenials);
  EXPECT_GE(told, 20u);
  ASSERT_THAT(audit_.Of("suppressed"), ::testing::Not(IsEmpty()));
  for (const Json& line : audit_.Of("suppressed")) {
    EXPECT_EQ(line["tenant"], "team");
    EXPECT_EQ(line["of"], "denied");
    told += line["count"].get<uint64_t>();
  }
  EXPECT_EQ(told, kDenials);
  EXPECT_EQ(audit_.Of("session-ended").size(), 1u);
}

TEST_F(AuditTest, WhoIsAdmittedByNoRuleIsRefused) {
  Start();
  EXPECT_FALSE(daemon_->Connect("nobody", "a stranger").ok());
  const Json refused = audit_.One("refused");
  EXPECT_EQ(refused["pid"], getpid());
  EXPECT_EQ(refused["uid"], geteuid());
  EXPECT_EQ(refused["client"], "a stranger");
  EXPECT_EQ(refused["call"], "connect");
  Stop();
  EXPECT_THAT(audit_.Of("session-opened"), IsEmpty());
}

TEST_F(AuditTest, ARevocationSignalsADeafHolder) {
  Start();
  Child deaf = Role("deaf", "low", 60);
  const pid_t pid = deaf.pid();
  auto urgent = daemon_->Connect("urgent");
  ASSERT_TRUE(urgent.ok()) << urgent.status();
  auto segment = (*urgent)->Acquire({.bytes = 60 * kMiB, .wait = absl::Seconds(30)});
  ASSERT_TRUE(segment.ok()) << segment.status();
  deaf.Wait();
  const Json revoking = audit_.One("revoking");
  EXPECT_EQ(revoking["tenant"], "low");
  EXPECT_EQ(revoking["bytes"], 60 * kMiB);
  EXPECT_THAT(revoking["why"].get<std::string>(), HasSubstr("tenant urgent"));
  EXPECT_TRUE(audit_.Await("signalled", 2));
  const std::vector<Json> signals = audit_.Of("signalled");
  ASSERT_EQ(signals.size(), 2u);
  EXPECT_EQ(signals[0]["signal"], "SIGTERM");
  EXPECT_EQ(signals[1]["signal"], "SIGKILL");
  EXPECT_EQ(signals[1]["pid"], pid);
  EXPECT_EQ(signals[1]["tenant"], "low");
  EXPECT_EQ(audit_.One("revoked")["segment"], revoking["segment"]);
  EXPECT_EQ(audit_.One("reclaimed")["pid"], pid);
  Stop();
}

TEST_F(AuditTest, ARevocationEndsWhenItsWaiterGivesUp) {
  // The holder would be killed some time after the waiter has gone.
  Start(absl::StrReplaceAll(kAuditConfig,
                            {{"revocation_grace = \"50ms\"", "revocation_grace = \"500ms\""}}));
  Child deaf = Role("deaf", "low", 60);
  auto urgent = daemon_->Connect("urgent");
  ASSERT_TRUE(urgent.ok()) << urgent.status();
  const CancelToken cancel;
  std::thread waiter([&] {
    EXPECT_EQ((*urgent)
                  ->Acquire({.bytes = 60 * kMiB, .wait = absl::Seconds(30), .cancel = cancel})
                  .status()
                  .code(),
              absl::StatusCode::kCancelled);
  });
  const Json revoking = audit_.One("revoking");
  cancel.Cancel();
  waiter.join();
  const Json ended = audit_.One("revocation-ended");
  EXPECT_EQ(ended["segment"], revoking["segment"]);
  EXPECT_EQ(ended["tenant"], "low");
  EXPECT_EQ(ended["bytes"], 60 * kMiB);
  EXPECT_THAT(ended["why"].get<std::string>(), HasSubstr("no request waits"));
  EXPECT_THAT(audit_.Of("signalled"), IsEmpty());
  deaf.Signal(SIGKILL);
  deaf.Wait();
  Stop();
}

TEST_F(AuditTest, ATicketOfAnotherTenantIsRefused) {
  Start();
  auto team = daemon_->Connect("team");
  auto low = daemon_->Connect("low");
  ASSERT_TRUE(team.ok() && low.ok());
  auto segment = (*team)->Acquire({.bytes = 4 * kMiB});
  ASSERT_TRUE(segment.ok()) << segment.status();
  const auto ticket = segment->Share();
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_FALSE((*low)->Open(ticket->value).ok());
  const Json refused = audit_.One("refused");
  EXPECT_EQ(refused["tenant"], "low");
  EXPECT_EQ(refused["pid"], getpid());
  EXPECT_EQ(refused["call"], "open");
  EXPECT_THAT(audit_.text(), Not(HasSubstr(ticket->value)));
  Stop();
}

TEST_F(AuditTest, ThereIsNoSecretInIt) {
  Start(absl::StrReplaceAll(kAuditConfig, {{"[audit]\n", "[audit]\nper_second = 0\n"}}));
  testing::WireSession session(daemon_->Socket("session.sock"));
  ASSERT_TRUE(session.Greet(testing::HelloOf("team")).ok());
  v1::Broker::Stub broker(session.TakeChannel());
  v1::AcquireRequest request;
  request.set_bytes(1);
  const auto acquired =
      testing::CallBroker(broker, &v1::Broker::Stub::Acquire, request, session.token());
  ASSERT_TRUE(acquired.ok()) << acquired.status();
  v1::ShareRequest share;
  share.set_lease_id(acquired->leases(0).lease_id());
  const auto shared = testing::CallBroker(broker, &v1::Broker::Stub::Share, share, session.token());
  ASSERT_TRUE(shared.ok()) << shared.status();
  session.Close();
  EXPECT_TRUE(audit_.Await("session-ended", 1));
  Stop();
  const std::string text = audit_.text();
  for (const std::string& secret : {session.token(), shared->ticket()}) {
    ASSERT_GE(secret.size(), 8u);
    EXPECT_EQ(text.find(secret), std::string::npos);
    EXPECT_EQ(text.find(absl::BytesToHexString(secret)), std::string::npos);
    EXPECT_EQ(text.find(absl::Base64Escape(secret)), std::string::npos);
  }
}

TEST_F(AuditTest, AfterACrashEndedAndResumedSessionsAreTold) {
  auto kept = KeptDaemon::Start({.config = audit_.Config()});
  ASSERT_TRUE(kept.ok()) << kept.status();
  const auto role = [&](const std::string& name, const std::string& tenant) {
    Child child = Child::Self({"--role", name, (*kept)->runtime_dir(), tenant, "4"});
    EXPECT_EQ(Hear(child.channel()), "holding");
    return child;
  };
  Child lives = role("worker", "team");
  Child dies = role("worker", "low");
  const pid_t living = lives.pid(), dead = dies.pid();
  ASSERT_TRUE(audit_.Await("session-opened", 2));
  ASSERT_TRUE(audit_.Await("released", 2));
  // It ends while there is no daemon: its death is found out by the next.
  ASSERT_TRUE((*kept)->Freeze());
  dies.Signal(SIGKILL);
  dies.Wait();
  ASSERT_TRUE((*kept)->Kill().ok()) << (*kept)->Log();
  const Json restored = audit_.One("restored");
  EXPECT_EQ(restored["generation"], 2);
  EXPECT_EQ(restored["sessions"], 1);
  EXPECT_EQ(restored["gone"], 1);
  const Json ended = audit_.One("session-ended");
  EXPECT_EQ(ended["pid"], dead);
  EXPECT_EQ(ended["tenant"], "low");
  EXPECT_EQ(ended["bytes"], 4 * kMiB);
  // It comes back with its next call.
  Say(lives.channel(), "ask");
  EXPECT_EQ(Hear(lives.channel()), "asked");
  const Json resumed = audit_.One("session-resumed");
  EXPECT_EQ(resumed.value("pid", 0), living);
  EXPECT_EQ(audit_.Of("started").size(), 2u);
  EXPECT_THAT(audit_.Of("stopped"), IsEmpty());
  EXPECT_THAT(audit_.Of("lost"), IsEmpty());
  audit_.Check();
}

TEST_F(AuditTest, MemoryLostInACrashIsTold) {
  auto kept = KeptDaemon::Start({.config = audit_.Config()});
  ASSERT_TRUE(kept.ok()) << kept.status();
  auto team = Client::Connect({.runtime_dir = (*kept)->runtime_dir(), .tenant = "team"});
  ASSERT_TRUE(team.ok()) << team.status();
  auto segment = (*team)->Acquire({.bytes = 4 * kMiB, .kind = Kind::kMempool});
  ASSERT_TRUE(segment.ok()) << segment.status();
  ASSERT_TRUE((*kept)->Kill().ok()) << (*kept)->Log();
  ASSERT_TRUE((*team)->GetUsage().ok());
  const Json lost = audit_.One("lost");
  EXPECT_EQ(lost["tenant"], "team");
  EXPECT_EQ(lost["kind"], "mempool");
  EXPECT_EQ(lost["bytes"], 4 * kMiB);
  EXPECT_EQ(lost["holder"].size(), 1u);
  EXPECT_THAT(lost["why"].get<std::string>(), HasSubstr("CUDA context"));
  audit_.Check();
}

int RunRole(const std::vector<std::string>& args) {
  const std::string& role = args.at(0);
  const uint64_t bytes = std::stoull(args.at(3)) * kMiB;
  if (role == "deaf") signal(SIGTERM, SIG_IGN);
  auto client =
      Client::Connect({.runtime_dir = args.at(1), .tenant = args.at(2), .name = "a \"worker\""});
  if (!client.ok()) return 2;
  auto held = (*client)->Acquire({.bytes = bytes, .revocable = role == "deaf"});
  if (!held.ok()) return 2;
  if (role == "worker") {
    auto released = (*client)->Acquire({.bytes = bytes});
    if (!released.ok()) return 2;
    if ((*client)->Acquire({.bytes = 16 * bytes}).ok()) return 2;
    if (!released->Release().ok()) return 2;
  }
  Say(kParentChannel, "holding");
  while (true) {
    Hear(kParentChannel);
    (void)(*client)->GetUsage();
    Say(kParentChannel, "asked");
  }
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--role") {
    return gpumem::RunRole(std::vector<std::string>(argv + 2, argv + argc));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
