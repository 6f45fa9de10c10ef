// SPDX-License-Identifier: Apache-2.0
// The shipped units under the machine's real systemd, when things go wrong: the daemon is killed,
// stopped, stuck, or not allowed to do what it should. service_test.cc has the rest.
//
//   GPUMEM_CRASHES  how often it is killed at random (CI: 20; by hand: 300)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/installed_service.h"

namespace gpumem {
namespace {

using testing::CheckWeights;
using testing::Child;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::Hear;
using testing::InstalledService;
using testing::kParentChannel;
using ::testing::Not;
using testing::PatientOptions;
using testing::Say;

constexpr char kRuntimeDir[] = "/run/gpumem";
// A file that the daemon may write, and that no other program reads.
constexpr char kFailpointFile[] = "/run/gpumem/failpoint";

class ServiceCrashTest : public ::testing::Test {
 protected:
  void Start(const InstalledService::Options& options) {
    InstalledService::Options noting = options;
    absl::StrAppend(&noting.service_lines,
                    "\nExecStopPost=/bin/sh -c 'echo $$SERVICE_RESULT >>/run/gpumem/results'");
    auto service = InstalledService::Install(noting);
    if (absl::IsFailedPrecondition(service.status())) GTEST_SKIP() << service.status().message();
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    const auto started = service_->Systemctl({"start", "gpumemd"});
    ASSERT_EQ(started.code, 0) << started.output << service_->machine().Log() << service_->Log();
  }
  void Publish() {
    const auto published = service_->Role({"publish"});
    EXPECT_EQ(published.code, 0) << published.output << service_->Log();
  }
  void ExpectThePublication() {
    const auto checked = service_->Role({"check"});
    EXPECT_EQ(checked.code, 0) << checked.output << service_->Log();
  }
  // Has the daemon that is started next hang there.
  void HangAt(const std::string& failpoint) {
    EXPECT_EQ(service_
                  ->Shell(absl::StrCat("echo '", failpoint, " 1 hang' >", kFailpointFile,
                                       ".new; chown gpumem ", kFailpointFile, ".new; mv ",
                                       kFailpointFile, ".new ", kFailpointFile))
                  .code,
              0);
  }
  // One word for each, of systemd.exec(5), $SERVICE_RESULT.
  std::string HowItsDaemonsEnded() const {
    return service_->Shell("cat /run/gpumem/results").output;
  }
  bool Restarted(int times) const {
    return Eventually([&] {
      int restarts = 0;
      return absl::SimpleAtoi(service_->Property("NRestarts"), &restarts) && restarts >= times &&
             service_->Property("ActiveState") == "active";
    });
  }

  std::unique_ptr<InstalledService> service_;
};

TEST_F(ServiceCrashTest, TheWatchdogKillsOneThatIsStopped) {
  Start({.service_lines = "WatchdogSec=1s"});
  if (IsSkipped()) return;
  Publish();
  const pid_t pid = service_->MainPid();
  EXPECT_EQ(service_->Shell(absl::StrCat("kill -STOP ", pid)).code, 0);
  EXPECT_TRUE(Restarted(1)) << service_->Log();
  EXPECT_NE(service_->MainPid(), pid);
  EXPECT_EQ(HowItsDaemonsEnded(), "watchdog\n");
  ExpectThePublication();
}

TEST_F(ServiceCrashTest, TheWatchdogKillsOneWhoseBrokerIsStuck) {
  Start({.program = "gpumemd_mortal",
         .service_lines =
             absl::StrCat("WatchdogSec=1s\nEnvironment=GPUMEM_FAILPOINT_FILE=", kFailpointFile)});
  if (IsSkipped()) return;
  Publish();
  HangAt("record-after");  // under the broker's mutex
  // A request to the stuck daemon is answered by the next one.
  const auto user = service_->Role({"restart-and-use"});
  EXPECT_EQ(user.code, 0) << user.output << service_->Log();
  EXPECT_TRUE(Restarted(1)) << service_->Log();
  EXPECT_EQ(HowItsDaemonsEnded(), "success\nwatchdog\n");
  ExpectThePublication();
}

TEST_F(ServiceCrashTest, TheWatchdogSparesOneWhoseDriverHangs) {
  Start({.program = "gpumemd_mortal",
         .service_lines =
             absl::StrCat("WatchdogSec=1s\nEnvironment=GPUMEM_FAILPOINT_FILE=", kFailpointFile)});
  if (IsSkipped()) return;
  HangAt("keep-before");  // the place that makes memory, without the mutex
  EXPECT_EQ(service_->Systemctl({"restart", "gpumemd"}).code, 0);
  EXPECT_EQ(service_->Role({"hang"}).code, 0) << service_->Log();
  // It goes on to say that it lives, for longer than the watchdog's time, and serves others.
  const auto heard_us = [&] {
    int64_t us = 0;
    EXPECT_TRUE(absl::SimpleAtoi(service_->Property("WatchdogTimestampMonotonic"), &us));
    return us;
  };
  const int64_t then = heard_us();
  EXPECT_TRUE(Eventually([&] { return heard_us() > then + 2'500'000; }));
  EXPECT_EQ(service_->Property("NRestarts"), "0");
  EXPECT_EQ(service_->Role({"use"}).code, 0);
}

// Revocable memory in its holder's hands, which another tenant needs.
constexpr char kRevocation[] = R"toml(
[daemon]
revocation_grace = "50ms"
revocation_kill_after = "50ms"
[host]
device_bytes = "8MiB"
[tenant_defaults]
limit = "100%"
[[tenant]]
name = "borrower"
revocable = true
[[tenant]]
name = "owner"
guarantee = "100%"
[[rule]]
tenant = "borrower"
uid = 0
[[rule]]
tenant = "owner"
uid = 0
)toml";

TEST_F(ServiceCrashTest, WithoutTheCapabilityItEndsNoHolderAndReportsIt) {
  Start({.config = kRevocation});
  if (IsSkipped()) return;
  EXPECT_THAT(service_->Log(), HasSubstr("kill.conf"));  // already at the start
  const auto outcome = service_->Role({"revoke"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the holder lives"));
  EXPECT_THAT(service_->Log(), HasSubstr("the signal failed"));
  EXPECT_THAT(service_->Log(), HasSubstr("CAP_KILL"));
}

TEST_F(ServiceCrashTest, WithTheDropInItEndsRevokedHolders) {
  std::stringstream drop_in;
  drop_in << std::ifstream("deploy/systemd/drop-ins/kill.conf").rdbuf();
  const std::string text = drop_in.str();
  Start({.config = kRevocation, .service_lines = text.substr(text.find("[Service]\n") + 10)});
  if (IsSkipped()) return;
  EXPECT_THAT(service_->Log(), Not(HasSubstr("kill.conf")));
  const auto outcome = service_->Role({"revoke"});
  EXPECT_EQ(outcome.code, 0) << outcome.output << service_->Log();
  EXPECT_THAT(outcome.output, HasSubstr("the holder was ended"));
}

TEST_F(ServiceCrashTest, KilledAtRandomUnderLoad) {
  const char* wanted = std::getenv("GPUMEM_CRASHES");
  const int crashes = wanted == nullptr ? 20 : std::atoi(wanted);
  Start({.config = "[host]\ndevice_bytes = \"3GiB\"\n"
                   "[tenant_defaults]\nmax_retained = \"16MiB\"\n"});
  if (IsSkipped()) return;
  Publish();
  // As a separate service, since it takes longer than a command may.
  const std::string& folder = service_->machine().folder();
  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  std::ofstream(folder + "/units/load.service")
      << "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\n"
      << "StandardOutput=append:" << folder << "/load.log\nStandardError=append:" << folder
      << "/load.log\nExecStart=" << self << " --role crashes " << crashes << "\n";
  EXPECT_EQ(service_->Systemctl({"daemon-reload"}).code, 0);
  EXPECT_EQ(service_->Systemctl({"start", "--no-block", "load"}).code, 0);
  EXPECT_TRUE(Eventually(
      [&] {
        const std::string state = service_->machine().Property("load", "ActiveState");
        return state == "inactive" || state == "failed";
      },
      absl::Seconds(60) + absl::Seconds(3) * crashes));
  std::stringstream said;
  said << std::ifstream(folder + "/load.log").rdbuf();
  std::cout << said.str();
  EXPECT_EQ(service_->machine().Property("load", "Result"), "success") << service_->Log();
  EXPECT_EQ(service_->Property("NRestarts"), absl::StrCat(crashes));
  ExpectThePublication();
  // Two descriptors for a crate of up to 32 segments; the journal. Nothing is left of the rest.
  int stored = 1000;
  EXPECT_TRUE(absl::SimpleAtoi(service_->Property("NFileDescriptorStore"), &stored));
  EXPECT_LE(stored, 40);
}

// --- Programs that run inside ----------------------------------------------------------

int Fail(const std::string& why) {
  std::cout << why << std::endl;
  return 1;
}

int Publish(Client& client) {
  std::vector<Segment> segments;
  const absl::Status published = testing::PublishWeights(client, segments);
  return published.ok() ? 0 : Fail(published.ToString());
}

int Use(Client& client) {
  auto opened = client.GetUsage();
  return opened.ok() ? 0 : Fail(opened.status().ToString());
}

// Has memory while its daemon is restarted, and afterwards.
int RestartAndUse(Client& client) {
  auto segment = client.Acquire({.bytes = 2 * kMiB});
  if (!segment.ok()) return Fail(segment.status().ToString());
  testing::Stamp(segment->data(), segment->size(), 4711);
  // An idle client, such as this one, does not hold it up: not for its drain_timeout of 10 s.
  const absl::Time before = absl::Now();
  if (std::system("systemctl restart gpumemd") != 0) return Fail("systemctl restart");
  if (absl::Now() - before > absl::Seconds(5)) return Fail("the restart took long");
  auto more = client.Acquire({.bytes = 2 * kMiB});
  if (!more.ok()) return Fail(more.status().ToString());
  if (!testing::HasStamp(segment->data(), segment->size(), 4711)) return Fail("memory changed");
  const absl::Status released = segment->Release();
  return released.ok() ? 0 : Fail(released.ToString());
}

// Leaves behind a request that is never answered.
int Hang(std::unique_ptr<Client> client) {
  auto hung = client->Acquire({.bytes = 2 * kMiB, .timeout = absl::Milliseconds(200)});
  return hung.ok() ? Fail("it was answered") : 0;
}

int Hold() {
  auto client = Client::Connect({.runtime_dir = kRuntimeDir, .tenant = "borrower"});
  if (!client.ok()) return Fail(client.status().ToString());
  auto held = (*client)->Acquire({.bytes = 8 * kMiB});
  Say(kParentChannel, held.ok() ? "holding" : held.status().ToString());
  testing::HearAtLast();
  return 0;
}

int Revoke() {
  Child holder = Child::Self({"--role", "hold"});
  if (const std::string said = Hear(holder.channel()); said != "holding") return Fail(said);
  auto client = Client::Connect({.runtime_dir = kRuntimeDir, .tenant = "owner"});
  if (!client.ok()) return Fail(client.status().ToString());
  auto wanted = (*client)->Acquire({.bytes = 8 * kMiB, .wait = absl::Seconds(2)});
  if (!wanted.ok()) {
    // It was not ended: it still hears.
    Say(holder.channel(), "end");
    if (holder.Wait() != 0) return Fail("the holder was ended, and nothing came of it");
    std::cout << "the holder lives\n";
    return 0;
  }
  if (holder.Wait() < 128) return Fail("the holder was not ended by a signal");
  std::cout << "the holder was ended\n";
  return 0;
}

int Crashes(int crashes) {
  auto client = Client::Connect(PatientOptions(kRuntimeDir));
  if (!client.ok()) return Fail(client.status().ToString());
  std::vector<Child> workers;
  for (int i = 0; i < 4; ++i) {
    workers.push_back(Child::Self({"--role", "work"}));
    if (const std::string said = Hear(workers.back().channel()); said != "working") {
      return Fail(said);
    }
  }
  std::mt19937_64 random(1);
  std::vector<absl::Duration> away;
  for (int i = 0; i < crashes; ++i) {
    // Work goes on for a while of random length: so many calls of ours.
    for (uint64_t calls = random() % 30; calls > 0; --calls) {
      if (auto usage = (*client)->GetUsage(); !usage.ok()) return Fail(usage.status().ToString());
    }
    const absl::Time killed = absl::Now();
    if (std::system("systemctl kill --signal=KILL --kill-whom=main gpumemd") != 0) {
      return Fail("systemctl kill");
    }
    // A new client, which may come while no daemon runs, and a client from before.
    auto late = Client::Connect(PatientOptions(kRuntimeDir));
    if (!late.ok()) return Fail(absl::StrCat("crash ", i, ": ", late.status().ToString()));
    const auto usage = (*client)->GetUsage();
    if (!usage.ok()) return Fail(absl::StrCat("crash ", i, ": ", usage.status().ToString()));
    away.push_back(absl::Now() - killed);
    if (absl::Status checked = i % 10 == 9 ? CheckWeights(**late) : absl::OkStatus();
        !checked.ok()) {
      return Fail(absl::StrCat("crash ", i, ": ", checked.ToString()));
    }
    // A Client that ends while no daemon hears it leaves its session until its process ends.
    late->reset();
    const bool heard = Eventually([&] {
      const auto now = (*client)->GetUsage();
      return now.ok() && now->sessions == 33;
    });
    if (!heard) return Fail(absl::StrCat("crash ", i, ": a session did not end"));
  }
  for (Child& worker : workers) Say(worker.channel(), "stop");
  for (Child& worker : workers) {
    if (const std::string said = Hear(worker.channel()); said != "well done") return Fail(said);
  }
  workers.clear();
  const bool nothing_left = Eventually([&] {
    const auto usage = (*client)->GetUsage();
    return usage.ok() && usage->devices.at(0).leased_bytes == testing::kWeightsBytes &&
           usage->devices.at(0).lingering_bytes == 0 && usage->sessions == 1;
  });
  if (!nothing_left) return Fail("more is held than the publication");
  std::sort(away.begin(), away.end());
  std::cout << crashes << " crashes: served again after " << away[away.size() / 2] << " (median), "
            << away[away.size() * 99 / 100] << " (p99), " << away.back() << " at most\n";
  return 0;
}

int RunRole(const std::vector<std::string>& args) {
  const std::string& role = args.at(0);
  if (role == "work") return testing::RunCrashLoad(kRuntimeDir, 8);
  if (role == "crashes") return Crashes(std::atoi(args.at(1).c_str()));
  if (role == "hold") return Hold();
  if (role == "revoke") return Revoke();
  auto client = Client::Connect(PatientOptions(kRuntimeDir));
  if (!client.ok()) return Fail(client.status().ToString());
  if (role == "publish") return Publish(**client);
  if (role == "hang") return Hang(*std::move(client));
  if (role == "use") return Use(**client);
  if (role == "restart-and-use") return RestartAndUse(**client);
  const absl::Status checked = CheckWeights(**client);
  return checked.ok() ? 0 : Fail(checked.ToString());
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
