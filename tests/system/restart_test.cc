// SPDX-License-Identifier: Apache-2.0
// The daemon is restarted for an upgrade, again and again, while clients call it at every step of
// its end: a real gpumemd under gpumem-keeper on the host backend. Not one call may be refused, and
// no gpumemctl that only reads may fail.
//
//   GPUMEM_RESTARTS  how often it is restarted (CI: 16; restart_long_test: 1000)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/daemon_process.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Eventually;
using testing::Hear;
using testing::KeptDaemon;
using testing::PatientOptions;
using testing::ProgramPath;
using testing::Say;

// Every step of the daemon's end (server.cc).
constexpr const char* kSteps[] = {"stop-begins",   "stop-no-sessions", "stop-parked",
                                  "stop-answered", "stop-unconnected", "stop-frozen",
                                  "stop-no-files", "stop-closed"};
constexpr absl::Duration kPause = absl::Milliseconds(30);

// Error messages from many threads.
class Mistakes {
 public:
  void Add(const std::string& what, const absl::Status& status) {
    std::lock_guard lock(mutex_);
    all_.push_back(absl::StrCat(what, ": ", status.ToString()));
  }
  std::vector<std::string> all() const {
    std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> all_;
};

class RestartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = KeptDaemon::Start({.config = absl::StrCat(R"toml(
[host]
device_bytes = "3GiB"
[[tenant]]
name = "main"
[[tenant]]
name = "small"
limit = "4MiB"
[[rule]]
tenant = "main"
uid = )toml",
                                                            getuid(), R"toml(
[[rule]]
tenant = "small"
uid = )toml",
                                                            getuid(), "\n")});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  std::unique_ptr<Client> Connect(const std::string& tenant) {
    ConnectOptions options = PatientOptions(daemon_->runtime_dir());
    options.tenant = tenant;
    auto client = Client::Connect(options);
    if (client.ok()) return *std::move(client);
    mistakes_.Add("connect", client.status());
    return nullptr;
  }

  std::unique_ptr<KeptDaemon> daemon_;
  Mistakes mistakes_;
};

int Restarts() {
  const char* wanted = std::getenv("GPUMEM_RESTARTS");
  return wanted == nullptr ? 16 : std::atoi(wanted);
}

TEST_F(RestartTest, NoCallIsRefusedAtAnyStep) {
  const int restarts = Restarts();
  std::vector<Child> workers;
  for (int i = 0; i < 2; ++i) {
    workers.push_back(Child::Self({"--role", "work", daemon_->runtime_dir(), "3"}));
    ASSERT_EQ(Hear(workers.back().channel()), "working");
  }
  // Two that wait all the while: for memory of a full tenant, and for a version.
  const std::unique_ptr<Client> holder = Connect("small"), waiter = Connect("small");
  ASSERT_TRUE(holder != nullptr && waiter != nullptr);
  auto held = holder->Acquire({.bytes = 4 * kMiB});
  ASSERT_TRUE(held.ok()) << held.status();
  std::thread waits([&] {
    auto granted = waiter->Acquire({.bytes = 4 * kMiB, .wait = absl::InfiniteDuration()});
    if (!granted.ok()) mistakes_.Add("a wait for memory", granted.status());
  });
  std::thread attaches([&] {
    auto attached = waiter->Attach("later", {.wait_for_version = 1});
    if (!attached.ok()) mistakes_.Add("a wait for a version", attached.status());
  });
  // One that is told of a drain, if there is any.
  auto watch = holder->StartWatch(
      {.draining =
           [&](bool draining) {
             if (draining) mistakes_.Add("a watch", absl::UnavailableError("draining"));
           },
       .ended = [&](const absl::Status& end) { mistakes_.Add("the end of a watch", end); }});
  ASSERT_TRUE(watch.ok()) << watch.status();
  // One that connects all the time.
  std::atomic<bool> stop = false;
  std::atomic<int> sessions = 0;
  std::thread connects([&] {
    while (!stop) {
      const std::unique_ptr<Client> client = Connect("main");
      if (client == nullptr) continue;
      if (auto usage = client->GetUsage(); !usage.ok()) mistakes_.Add("usage", usage.status());
      ++sessions;
    }
  });

  for (int i = 0; i < restarts && mistakes_.all().empty(); ++i) {
    const char* step = kSteps[static_cast<size_t>(i) % std::size(kSteps)];
    SCOPED_TRACE(absl::StrCat("restart ", i, ", slow at ", step));
    // The daemon that comes with this restart takes its time there at the next one.
    daemon_->ArmPause(step, kPause);
    const absl::Status restarted = daemon_->Restart();
    ASSERT_EQ(restarted, absl::OkStatus());
    // All are served by it.
    const int before = sessions;
    EXPECT_TRUE(Eventually([&] { return sessions > before || !mistakes_.all().empty(); }));
    auto usage = holder->GetUsage();
    if (!usage.ok()) mistakes_.Add("usage", usage.status());
  }

  stop = true;
  connects.join();
  EXPECT_EQ(held->Release(), absl::OkStatus());
  waits.join();
  auto published = holder->Acquire({.bytes = 2 * kMiB});
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_TRUE(holder->Publish("later", absl::MakeConstSpan(&*published, 1), {}).ok());
  attaches.join();
  for (Child& worker : workers) Say(worker.channel(), "stop");
  for (Child& worker : workers) EXPECT_EQ(Hear(worker.channel()), "well done");
  watch->reset();
  EXPECT_THAT(mistakes_.all(), ::testing::IsEmpty()) << daemon_->Log();
  std::cout << restarts << " restarts, " << sessions << " sessions begun meanwhile\n";
}

TEST_F(RestartTest, NoGpumemctlThatReadsFails) {
  const std::string look = absl::StrCat("exec ", ProgramPath("gpumemctl"), " --runtime-dir ",
                                        daemon_->runtime_dir(), " status >/dev/null");
  std::atomic<bool> stop = false;
  std::atomic<int> looks = 0;
  std::vector<std::thread> operators;
  for (int i = 0; i < 4; ++i) {
    operators.emplace_back([&] {
      while (!stop) {
        if (const int code = Child({"/bin/sh", "-c", look}).Wait(); code != 0) {
          mistakes_.Add("gpumemctl status", absl::UnknownError(absl::StrCat("exit code ", code)));
        }
        ++looks;
      }
    });
  }
  for (int i = 0; i < Restarts() && mistakes_.all().empty(); ++i) {
    // The waits for this daemon are over, and others have begun.
    const int before = looks;
    EXPECT_TRUE(Eventually([&] { return looks > before + 16; }));
    EXPECT_EQ(daemon_->Restart(), absl::OkStatus());
  }
  stop = true;
  for (std::thread& each : operators) each.join();
  EXPECT_THAT(mistakes_.all(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--role") {
    return gpumem::testing::RunCrashLoad(argv[3], std::atoi(argv[4]));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
