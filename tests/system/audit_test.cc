// The audit of a real daemon: each event once, with its actor, and in its documented form
// (docs/audit.md, which a unit test compares with AuditKinds).
#include "daemon/core/audit/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/kept_daemon.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::Hear;
using ::testing::IsEmpty;
using testing::KeptDaemon;
using testing::kParentChannel;
using ::testing::Not;
using testing::Say;
using Json = nlohmann::json;

constexpr uint64_t kMiB = uint64_t{1} << 20;

constexpr char kConfig[] = R"([host]
device_bytes = "64MiB"
[daemon]
drain_timeout = "200ms"
revocation_grace = "50ms"
revocation_kill_after = "50ms"
[audit]
output = "json"
path = "PATH"
[[tenant]]
name = "team"
limit = "32MiB"
[[tenant]]
name = "urgent"
priority = 5
[[tenant]]
name = "low"
[[rule]]
tenant = "team"
default = true
[[rule]]
tenant = "urgent"
default = true
[[rule]]
tenant = "low"
default = true
)";

// Lines of an audit, as they come.
class Audit {
 public:
  Audit() {
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~Audit() { std::filesystem::remove_all(folder_); }
  Audit(const Audit&) = delete;
  Audit& operator=(const Audit&) = delete;

  std::string path() const { return folder_ + "/audit.json"; }
  std::string Config(const std::string& text = kConfig) const {
    return absl::StrReplaceAll(text, {{"PATH", path()}});
  }
  std::string text() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // Returns all lines written by now.
  std::vector<Json> Lines() const {
    std::vector<Json> lines;
    std::ifstream file(path());
    for (std::string line; std::getline(file, line);) {
      if (file.eof()) break;  // it is being written
      lines.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
      EXPECT_TRUE(lines.back().is_object()) << line;
    }
    return lines;
  }
  std::vector<Json> Of(const std::string& event) const {
    std::vector<Json> found;
    for (Json& line : Lines()) {
      if (line["event"] == event) found.push_back(std::move(line));
    }
    return found;
  }
  // Returns the only one of its kind, now or soon.
  Json One(const std::string& event) const {
    EXPECT_TRUE(Eventually([&] { return !Of(event).empty(); })) << event << "\n" << text();
    const std::vector<Json> found = Of(event);
    EXPECT_EQ(found.size(), 1u) << event << "\n" << text();
    return found.empty() ? Json::object() : found.front();
  }
  bool Await(const std::string& event, size_t count) const {
    return Eventually([&] { return Of(event).size() >= count; });
  }
  // Expects that each line has exactly the fields of its event, and that none is missing.
  void Check() const {
    uint64_t number = 0;
    for (const Json& line : Lines()) {
      const auto& kinds = gpumemd::AuditKinds();
      const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& each) {
        return std::string(each.name) == line.value("event", "");
      });
      ASSERT_NE(kind, kinds.end()) << line;
      std::vector<std::string> known = {"time", "number", "event", "message"};
      for (absl::string_view field : kind->fields) {
        const std::string name(absl::StripSuffix(field, "?"));
        known.push_back(name);
        if (name == field) {
          EXPECT_TRUE(line.contains(name)) << name << " is not in " << line;
        }
      }
      for (const auto& [name, value] : line.items()) {
        EXPECT_THAT(known, ::testing::Contains(name)) << line;
      }
      const uint64_t its = line.value("number", uint64_t{0});
      EXPECT_TRUE(its == number + 1 || its == 1) << line;  // 1: of the next daemon
      number = its;
    }
  }

 private:
  std::string folder_;
};

class AuditTest : public ::testing::Test {
 protected:
  void Start(const std::string& config = kConfig) {
    auto daemon = DaemonProcess::Start({.config = audit_.Config(config)});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  // Ends the daemon, so that all is written, and checks the lines.
  void Stop() {
    daemon_->child().Signal(SIGTERM);
    EXPECT_EQ(daemon_->child().Wait(), 0);
    audit_.Check();
  }
  Child Role(const std::string& role, const std::string& tenant, uint64_t mib) {
    Child child = Child::Self({"--role", role, daemon_->runtime_dir(), tenant, absl::StrCat(mib)});
    EXPECT_EQ(Hear(child.channel()), "holding");
    return child;
  }
  Child Ctl(std::vector<std::string> args) {
    args.insert(args.begin(),
                {testing::ProgramPath("gpumemctl"), "--runtime-dir", daemon_->runtime_dir()});
    return Child(args);
  }

  Audit audit_;
  std::unique_ptr<DaemonProcess> daemon_;
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
  const Json session = opened["session"];

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

TEST_F(AuditTest, ItsOwnBeginningAndEnd) {
  Start();
  EXPECT_EQ(audit_.One("started")["backend"], "host");
  EXPECT_THAT(audit_.One("started")["config"].get<std::string>(), HasSubstr("gpumemd.toml"));
  Stop();
  const Json stopped = audit_.One("stopped");
  EXPECT_EQ(stopped["why"], "SIGTERM");
  EXPECT_EQ(stopped["by_pid"], Json::array({getpid()}));
  EXPECT_EQ(stopped["by_uid"], Json::array({getuid()}));
  EXPECT_EQ(audit_.Lines().back(), stopped);
}

TEST_F(AuditTest, WhoChangedAQuotaAndHow) {
  Start();
  // Another operator is connected all the while, and observes.
  v1::Admin::Stub other(testing::ChannelTo(daemon_->Socket("admin.sock")));
  v1::GetStatusResponse status;
  ASSERT_TRUE(other.GetStatus(testing::ContextWith().get(), {}, &status).ok());
  Child set = Ctl({"quota", "set", "team", "--limit", "16MiB"});
  const pid_t setter = set.pid();
  ASSERT_EQ(set.Wait(), 0);
  const Json was_set = audit_.One("quota-set");
  EXPECT_EQ(was_set["tenant"], "team");
  EXPECT_EQ(was_set["by_pid"], Json::array({setter}));
  EXPECT_EQ(was_set["by_uid"], Json::array({geteuid()}));
  EXPECT_THAT(was_set["change"].dump(), HasSubstr(absl::StrCat(" -> ", 16 * kMiB)));
  Child unset = Ctl({"quota", "unset", "team"});
  const pid_t unsetter = unset.pid();
  ASSERT_EQ(unset.Wait(), 0);
  const Json was_unset = audit_.One("quota-unset");
  EXPECT_EQ(was_unset["by_pid"], Json::array({unsetter}));
  // A refused change has not been made.
  ASSERT_NE(Ctl({"quota", "set", "nobody", "--limit", "1MiB"}).Wait(), 0);

  // For a client without a name, the audit lists the processes of all such clients.
  v1::Admin::Stub third(testing::ChannelTo(daemon_->Socket("admin.sock")));
  ASSERT_TRUE(third.Drain(testing::ContextWith().get(), {}, &status).ok());
  EXPECT_EQ(audit_.One("draining")["by_pid"], Json::array({getpid()}));
  v1::DrainRequest resume;
  resume.set_resume(true);
  ASSERT_TRUE(third.Drain(testing::ContextWith().get(), resume, &status).ok());
  audit_.One("admitting");
  v1::TrimResponse trimmed;
  ASSERT_TRUE(third.Trim(testing::ContextWith().get(), {}, &trimmed).ok());
  EXPECT_EQ(audit_.One("trimmed")["bytes"], 0);
  Stop();
  EXPECT_EQ(audit_.Of("quota-set").size(), 1u);
}

TEST_F(AuditTest, ReloadsByWhomAndWhatTheyChanged) {
  Start();
  daemon_->Reconfigure(audit_.Config(absl::StrReplaceAll(kConfig, {{"32MiB", "24MiB"}})));
  const Json reloaded = audit_.One("reloaded");
  EXPECT_EQ(reloaded["by_pid"], Json::array({getpid()}));
  EXPECT_THAT(reloaded["change"].dump(), HasSubstr("changed limit"));
  daemon_->Reconfigure("[nonsense]\n");
  const Json refused = audit_.One("reload-refused");
  EXPECT_THAT(refused["why"].get<std::string>(), HasSubstr("nonsense"));
  EXPECT_EQ(refused["by_pid"], Json::array({getpid()}));
  Child ctl = Ctl({"reload"});
  const pid_t pid = ctl.pid();
  EXPECT_NE(ctl.Wait(), 0);
  ASSERT_TRUE(audit_.Await("reload-refused", 2));
  EXPECT_EQ(audit_.Of("reload-refused")[1]["by_pid"], Json::array({pid}));
  Stop();
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

TEST_F(AuditTest, MemoryThatIsTakenBackByForce) {
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

TEST_F(AuditTest, MemoryThatNobodyWantsBackAnyMore) {
  // The holder would be killed some time after the waiter has gone.
  Start(absl::StrReplaceAll(kConfig,
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
  EXPECT_THAT(ended["why"].get<std::string>(), HasSubstr("nobody waits"));
  EXPECT_THAT(audit_.Of("signalled"), IsEmpty());
  deaf.Signal(SIGKILL);
  deaf.Wait();
  Stop();
}

TEST_F(AuditTest, WhoChangedAPoolAndHow) {
  Start();
  auto team = daemon_->Connect("team");
  ASSERT_TRUE(team.ok()) << team.status();
  auto segment = (*team)->Acquire({.bytes = 4 * kMiB, .kind = Kind::kMempool});
  ASSERT_TRUE(segment.ok()) << segment.status();
  Child set = Ctl({"pool", "set", "team", "--release-threshold", "1MiB"});
  const pid_t setter = set.pid();
  EXPECT_EQ(set.Wait(), 0);
  const Json changed = audit_.One("pool-set");
  EXPECT_EQ(changed["tenant"], "team");
  EXPECT_EQ(changed["by_uid"], Json::array({getuid()}));
  EXPECT_EQ(changed["by_pid"], Json::array({setter}));
  EXPECT_THAT(changed["change"].dump(), HasSubstr("release_threshold"));
  Child trim = Ctl({"pool", "trim", "team"});
  const pid_t trimmer = trim.pid();
  EXPECT_EQ(trim.Wait(), 0);
  const Json trimmed = audit_.One("pool-trimmed");
  EXPECT_EQ(trimmed["tenant"], "team");
  EXPECT_EQ(trimmed["by_pid"], Json::array({trimmer}));
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
  Start(absl::StrReplaceAll(kConfig, {{"[audit]\n", "[audit]\nper_second = 0\n"}}));
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

TEST_F(AuditTest, GrantsCanBeLeftOut) {
  Start(absl::StrReplaceAll(kConfig, {{"[audit]\n", "[audit]\ngrants = false\n"}}));
  auto client = daemon_->Connect("team");
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->Acquire({.bytes = 1}).ok());
  client->reset();
  Stop();
  EXPECT_EQ(audit_.Of("session-opened").size(), 1u);
  EXPECT_THAT(audit_.Of("granted"), IsEmpty());
  EXPECT_THAT(audit_.Of("released"), IsEmpty());
}

TEST_F(AuditTest, WithoutAFileItGoesToStandardError) {
  Start(absl::StrReplaceAll(kConfig, {{"path = \"PATH\"\n", ""}}));
  EXPECT_TRUE(
      Eventually([&] { return absl::StrContains(daemon_->Log(), "\"event\":\"started\""); }));
  daemon_->child().Signal(SIGTERM);
  EXPECT_EQ(daemon_->child().Wait(), 0);
  EXPECT_TRUE(absl::StrContains(daemon_->Log(), "\"event\":\"stopped\""));
}

TEST_F(AuditTest, AFileThatWasMovedAwayIsFollowedByAnotherAfterAReload) {
  Start();
  audit_.One("started");
  std::filesystem::rename(audit_.path(), audit_.path() + ".1");
  daemon_->child().Signal(SIGHUP);
  audit_.One("reloaded");
  EXPECT_THAT(audit_.Of("started"), IsEmpty());
}

TEST_F(AuditTest, WhatACrashCostAndWhatNot) {
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
  kill((*kept)->daemon_pid(), SIGSTOP);
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

TEST_F(AuditTest, WhatACrashTookFromOthers) {
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
