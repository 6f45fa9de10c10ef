// SPDX-License-Identifier: Apache-2.0
// The monitor with real processes, a real broker, and a driver that the test controls.
#include "daemon/unbrokered/unbrokered_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/denial.h"
#include "daemon/device/host_device.h"
#include "daemon/device/process_memory.h"
#include "daemon/transport/peer/peer.h"

namespace gpumemd {
namespace unbrokered_monitor_test {

using ::testing::IsEmpty;

using gpumem::kMiB;
constexpr uint64_t kAllowance = 100 * kMiB;
constexpr uint64_t kTolerance = 10 * kMiB;

// For conditions that no call waits for: the condition decides, not the time.
bool Eventually(const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!done()) {
    if (absl::Now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

class Driver : public ProcessMemory {
 public:
  absl::StatusOr<std::vector<ProcessBytes>> Sample(const std::string&) override {
    absl::MutexLock lock(&mutex_);
    ++looks_;
    mutex_.Await(absl::Condition(&answers_));
    return answer_;
  }
  bool counts_mapped() const override { return counts_mapped_; }
  bool pids_are_ours() const override { return pids_are_ours_; }

  void Say(std::vector<ProcessBytes> answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  void Fail(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(status);
  }
  void Hang(bool hang) {
    absl::MutexLock lock(&mutex_);
    answers_ = !hang;
  }
  // Waits until it has been asked so many times more, and one that began later was answered.
  bool WaitForLooks(int more) {
    absl::MutexLock lock(&mutex_);
    const int wanted = looks_ + more + 1;
    const auto enough = [this, wanted]() { return looks_ >= wanted; };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(20));
  }

  bool counts_mapped_ = false;
  bool pids_are_ours_ = true;

 private:
  absl::Mutex mutex_;
  bool answers_ = true;
  int looks_ = 0;
  absl::StatusOr<std::vector<ProcessBytes>> answer_ = std::vector<ProcessBytes>();
};

// A process that waits for signals. It is killed and reaped at its end.
class Process {
 public:
  // A stubborn process reports SIGTERM, and continues.
  explicit Process(bool stubborn = false) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    words_.reset(ends[0]);
    const gpumem::UniqueFd theirs(ends[1]);
    pid_ = fork();
    if (pid_ == 0) {  // only system calls below
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      sigset_t asked;
      sigemptyset(&asked);
      sigaddset(&asked, SIGTERM);
      if (stubborn) sigprocmask(SIG_BLOCK, &asked, nullptr);
      Say(theirs.get());
      while (!stubborn) pause();  // NOLINT(bugprone-infinite-loop): until a signal ends it
      for (int signal; sigwait(&asked, &signal) == 0;) Say(theirs.get());
      _exit(1);
    }
    if (!Speaks()) abort();
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    Wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  pid_t pid() const { return pid_; }
  uint64_t start_time() const { return StartTimeOf(pid_); }
  bool running() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }
  // Waits for its next word.
  bool Speaks() {
    char word;
    return read(words_.get(), &word, 1) == 1;
  }
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

 private:
  static void Say(int ear) {
    if (write(ear, "w", 1) != 1) _exit(1);
  }
  gpumem::UniqueFd words_;
  pid_t pid_ = -1;
};

class UnbrokeredMonitorTest : public ::testing::Test {
 protected:
  UnbrokeredMonitorTest() {
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 64 * kMiB}));
    options.random = [this] {
      Secret secret{};
      secret[0] = ++secrets_;
      return secret;
    };
    broker_ = std::make_unique<Broker>(std::move(options));
    options_.config = {.tolerance = kTolerance,
                       .context_allowance = kAllowance,
                       .interval = absl::Milliseconds(10)};
    options_.process_of = [this](SessionId session) -> absl::StatusOr<gpumem::UniqueFd> {
      const auto sessions = broker_->views().ListSessions("");
      for (const SessionView& view : *sessions) {
        if (view.id != session) continue;
        return gpumem::UniqueFd(
            static_cast<int>(syscall(SYS_pidfd_open, view.details.peer.pid, 0)));
      }
      return absl::NotFoundError("no such session");
    };
  }

  void Start(UnbrokeredReaction reaction = UnbrokeredReaction::kReport) {
    options_.config.reaction = reaction;
    auto monitor = UnbrokeredMonitor::Start(broker_.get(), driver_, options_);
    ASSERT_TRUE(monitor.ok()) << monitor.status();
    monitor_ = *std::move(monitor);
  }

  Broker::NewSession Open(const std::string& tenant, const Process& process) {
    auto session = broker_->OpenSession(
        tenant, {.peer = {.pid = process.pid(), .start_time = process.start_time()}});
    EXPECT_TRUE(session.ok()) << session.status();
    return *session;
  }

  uint64_t UnbrokeredOf(const std::string& tenant) {
    const auto view = broker_->views().GetTenant(tenant);
    return view.ok() ? view->devices.at(0).unbrokered : 0;
  }

  // A segment and, unless it is to stay, its end.
  absl::Status Acquire(const Broker::NewSession& session, bool stay = false) {
    auto call = broker_->Authenticate(
        absl::string_view(reinterpret_cast<const char*>(session.token.data()), 32));
    if (!call.ok()) return call.status();
    const auto leases =
        broker_->Acquire(*call, {.bytes = 2 * kMiB}, absl::Now() + absl::Seconds(20),
                         [](const Broker::Handover&) { return absl::OkStatus(); });
    if (!leases.ok() || stay) return leases.status();
    return broker_->Release(*call, {leases->at(0).lease});
  }

  uint8_t secrets_ = 0;
  std::unique_ptr<Broker> broker_;
  const std::shared_ptr<Driver> driver_ = std::make_shared<Driver>();
  UnbrokeredMonitorOptions options_;
  std::unique_ptr<UnbrokeredMonitor> monitor_;
};

TEST_F(UnbrokeredMonitorTest, ShowsWhatASessionsProcessHasTakenAndWhoHasNoSession) {
  Process worker, stranger;
  const auto session = Open("team", worker);
  Start();
  driver_->Say({{worker.pid(), kAllowance + 7 * kMiB},
                {stranger.pid(), 3 * kMiB},
                {0, kMiB},
                {getpid(), 4 * kMiB}});
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == 7 * kMiB; }));
  const std::vector<DeviceProcess> foreign = monitor_->Foreign();
  ASSERT_EQ(foreign.size(), 2u) << "the daemon itself is not foreign";
  EXPECT_EQ(foreign[0].pid, stranger.pid());
  EXPECT_EQ(foreign[0].bytes, 3 * kMiB);
  EXPECT_EQ(foreign[0].command, CommandOf(getpid()));
  EXPECT_EQ(foreign[1].pid, 0);
  EXPECT_EQ(foreign[1].command, "");
  EXPECT_EQ(broker_->views().ListSessions("team")->at(0).unbrokered, 7 * kMiB);
  EXPECT_EQ(Acquire(session), absl::OkStatus());
  driver_->Say({});
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == 0; }));
  EXPECT_TRUE(worker.running());
}

TEST_F(UnbrokeredMonitorTest, DeniesTheTenantUntilTheUseIsGone) {
  Process worker, colleague;
  Open("team", worker);
  const auto session = Open("team", colleague), other = Open("other", colleague);
  Start(UnbrokeredReaction::kDenyNew);
  // Within the tolerance it is only shown.
  driver_->Say({{worker.pid(), kAllowance + kTolerance}});
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == kTolerance; }));
  ASSERT_TRUE(driver_->WaitForLooks(3));
  EXPECT_EQ(Acquire(session), absl::OkStatus());
  driver_->Say({{worker.pid(), kAllowance + kTolerance + 1}});
  ASSERT_TRUE(Eventually([&] { return !Acquire(session).ok(); }));
  const absl::Status denied = Acquire(session);
  ASSERT_TRUE(DenialOf(denied).has_value()) << denied;
  EXPECT_EQ(DenialOf(denied)->cause, Denial::Cause::kUnbrokered) << denied;
  EXPECT_EQ(Acquire(other), absl::OkStatus());
  driver_->Say({{worker.pid(), kAllowance}});
  ASSERT_TRUE(Eventually([&] { return Acquire(session).ok(); }));
  EXPECT_TRUE(worker.running());
}

TEST_F(UnbrokeredMonitorTest, WhoDoesNotEndIsKilledAndNobodyElse) {
  options_.kill_after = absl::Milliseconds(500);
  Process tame, stubborn(/*stubborn=*/true), innocent;
  Open("team", tame);
  const auto of_stubborn = Open("team", stubborn);
  Open("team", innocent);
  Start(UnbrokeredReaction::kTerminate);
  driver_->Say({{tame.pid(), kAllowance + 2 * kTolerance},
                {stubborn.pid(), kAllowance + 2 * kTolerance},
                {innocent.pid(), kAllowance + kTolerance}});
  EXPECT_EQ(tame.Wait(), SIGTERM);
  ASSERT_TRUE(stubborn.Speaks());
  // Neither leaving the broker nor giving the memory back after that helps.
  broker_->SocketClosed(of_stubborn.id);
  driver_->Say({{innocent.pid(), kAllowance + kTolerance}});
  EXPECT_EQ(stubborn.Wait(), SIGKILL);
  ASSERT_TRUE(driver_->WaitForLooks(3));
  EXPECT_TRUE(innocent.running());
}

TEST_F(UnbrokeredMonitorTest, WhoeverIsForgivenStartsAnew) {
  Process stubborn(/*stubborn=*/true);
  Open("team", stubborn);
  Start(UnbrokeredReaction::kTerminate);
  driver_->Say({{stubborn.pid(), kAllowance + 2 * kTolerance}});
  ASSERT_TRUE(stubborn.Speaks());
  UnbrokeredConfig config = options_.config;
  config.reaction = UnbrokeredReaction::kReport;
  monitor_->Configure(config);
  ASSERT_TRUE(driver_->WaitForLooks(2));
  // The process gets SIGTERM again: the earlier termination is not completed by SIGKILL.
  config.reaction = UnbrokeredReaction::kTerminate;
  monitor_->Configure(config);
  EXPECT_TRUE(stubborn.Speaks());
  EXPECT_TRUE(stubborn.running());
}

TEST_F(UnbrokeredMonitorTest, ASecondProcessWithThePidIsNobodyOfOurs) {
  Process worker;
  auto session = broker_->OpenSession(
      "team", {.peer = {.pid = worker.pid(), .start_time = worker.start_time() - 1}});
  ASSERT_TRUE(session.ok());
  Start(UnbrokeredReaction::kTerminate);
  driver_->Say({{worker.pid(), kAllowance + 2 * kTolerance}});
  ASSERT_TRUE(Eventually([&] { return monitor_->Foreign().size() == 1; }));
  ASSERT_TRUE(driver_->WaitForLooks(3));
  EXPECT_EQ(UnbrokeredOf("team"), 0u);
  EXPECT_TRUE(worker.running());
}

TEST_F(UnbrokeredMonitorTest, NumbersOfAnotherNamespaceAccuseNobody) {
  driver_->pids_are_ours_ = false;
  Process worker, gone;
  const pid_t pid_of_nobody = gone.pid();
  kill(gone.pid(), SIGKILL);
  gone.Wait();
  Open("team", worker);
  driver_->Say({{worker.pid(), kAllowance + 2 * kTolerance}, {pid_of_nobody, kMiB}});
  Start(UnbrokeredReaction::kTerminate);
  ASSERT_TRUE(Eventually([&] { return monitor_->Foreign().size() == 2; }));
  ASSERT_TRUE(driver_->WaitForLooks(3));
  for (const DeviceProcess& process : monitor_->Foreign()) EXPECT_EQ(process.pid, 0);
  EXPECT_EQ(UnbrokeredOf("team"), 0u);
  EXPECT_TRUE(worker.running());
  // If all of them are found here, they count as the daemon's namespace's.
  driver_->Say({{worker.pid(), kAllowance + 2 * kTolerance}});
  EXPECT_EQ(worker.Wait(), SIGTERM);
}

TEST_F(UnbrokeredMonitorTest, WhatIsMappedOfTheBrokersIsNotUnbrokered) {
  driver_->counts_mapped_ = true;
  Process worker;
  const auto session = Open("team", worker);
  ASSERT_EQ(Acquire(session, /*stay=*/true), absl::OkStatus());
  Start();
  driver_->Say({{worker.pid(), kAllowance + 5 * kMiB}});
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == 3 * kMiB; }));
}

TEST_F(UnbrokeredMonitorTest, ADriverThatSaysNothingAccusesNobody) {
  Process worker;
  Open("team", worker);
  Start();
  driver_->Say({{worker.pid(), 2 * kAllowance}});
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == kAllowance; }));
  driver_->Fail(absl::UnavailableError("GPU is lost"));
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == 0; }));
}

TEST_F(UnbrokeredMonitorTest, AChangeOfTheConfigurationCountsAtOnce) {
  Process worker;
  Open("team", worker);
  driver_->Say({{worker.pid(), 2 * kAllowance}});
  options_.config.interval = absl::ZeroDuration();
  Start();
  EXPECT_EQ(UnbrokeredOf("team"), 0u);
  UnbrokeredConfig config = options_.config;
  config.interval = absl::Hours(1);
  config.context_allowance = 0;
  monitor_->Configure(config);
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == 2 * kAllowance; }));
  config.interval = absl::ZeroDuration();
  monitor_->Configure(config);
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == 0; }));
}

TEST_F(UnbrokeredMonitorTest, ADriverThatHangsHoldsUpNobody) {
  auto driver = std::make_shared<Driver>();
  const std::weak_ptr<Driver> left_behind = driver;
  driver->Hang(true);
  options_.patience = absl::Milliseconds(10);
  auto monitor = UnbrokeredMonitor::Start(broker_.get(), driver, options_);
  ASSERT_TRUE(monitor.ok());
  EXPECT_THAT((*monitor)->Foreign(), IsEmpty());
  (*monitor)->Configure({});
  monitor->reset();
  broker_.reset();
  // When it returns there is no broker any more, and no thread uses one.
  driver->Hang(false);
  driver.reset();
  EXPECT_TRUE(Eventually([&] { return left_behind.expired(); }));
}

}  // namespace unbrokered_monitor_test
}  // namespace gpumemd
