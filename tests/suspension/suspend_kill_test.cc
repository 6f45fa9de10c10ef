// SPDX-License-Identifier: Apache-2.0
// Clients that are killed at each step of a suspension and of a resumption, by their failpoints and
// by those of the daemon; and a copier that outlives its daemon. No byte of the others is lost,
// none is charged twice, and all that the dead had is free again.
//
//   GPUMEM_SUSPEND_KILLS  how many clients are killed at random steps (CI: 24)
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/failpoint.h"
#include "common/unique_fd.h"
#include "daemon/device/context/tier_lock.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/expect_status.h"
#include "tests/support/pattern.h"
#include "tests/suspension/suspend_fixture.h"

namespace gpumem {
namespace {

using testing::Check;
using testing::Child;
using testing::CountFds;
using testing::Eventually;
using testing::Fill;
using testing::Hear;
using testing::kParentChannel;
using testing::MemoryOf;
using testing::PatientOptions;
using testing::Say;

constexpr uint64_t kBytes = 4 * kMiB;
constexpr int kSegments = 3;  // of a worker, beside the one that it shares

// Where a worker is killed that suspends and resumes again and again.
struct Step {
  const char* failpoint;
  bool in_daemon = false;
};
constexpr Step kSteps[] = {
    {"client-suspend-unmapped"}, {"client-resumed"},       {"map-segment"},
    {"suspend-made", true},      {"suspend-copied", true}, {"resume-made", true},
    {"resume-copied", true},     {"deliver-before", true}, {"deliver-after", true},
    {"answer-before", true}};

class SuspendKillTest : public testing::SuspendFixture {
 protected:
  // Memory of a client that lives: one segment in the tier, and one that the workers share.
  void SetUp() override {
    Start();
    kept_ = AcquireFilled(kBytes, 2);
    ASSERT_EQ(kept_.size(), 2u);
    const auto ticket = kept_[1].Share();
    ASSERT_OK(ticket);
    ticket_ = ticket->value;
    ASSERT_OK(client_->Suspend({&kept_[0]}));
    UseAll();  // the keeper makes now what it makes once and keeps
    keeper_fds_ = CountFds(daemon_->keeper_pid());
  }

  // Needs all of the device and of the tier that is not the client's.
  void UseAll() {
    std::unique_ptr<Client> other = Connect();
    auto all = other->Acquire({.bytes = 64 * kMiB - kBytes});
    ASSERT_OK(all);
    EXPECT_OK(Fill(MemoryOf(*all), 77));
    ASSERT_OK(other->Suspend({&*all}));
    EXPECT_EQ(Look(), (Charges{kBytes, 64 * kMiB}));
    ASSERT_OK(other->Resume({&*all}));
    EXPECT_OK(Check(MemoryOf(*all), 77));
    EXPECT_OK(all->Release());
    EXPECT_TRUE(Becomes({kBytes, kBytes}));
  }

  // `moves`: the shared segment moves with the worker's, since the client has suspended it, too.
  void KillAt(const Step& step, int passes, bool moves) {
    SCOPED_TRACE(absl::StrCat(step.failpoint, " ", passes, moves ? ", shared one moves" : ""));
    Child worker = Child::Self({"--role", "work", daemon_->runtime_dir(), ticket_,
                                step.in_daemon ? "" : step.failpoint, absl::StrCat(passes)});
    ASSERT_EQ(Hear(worker.channel()), "ready");
    EXPECT_EQ(Look(), (Charges{(kSegments + 1) * kBytes, kBytes})) << "the shared one counts once";
    if (moves) {
      ASSERT_OK(client_->Suspend({&kept_[1]}));
    }
    if (step.in_daemon) daemon_->ArmTarget(step.failpoint, passes, worker.pid());
    Say(worker.channel(), "go");
    EXPECT_EQ(worker.Wait(), 128 + SIGKILL);
    EXPECT_FALSE(daemon_->IsTargetArmed());

    // All that it had comes back, wherever it was.
    EXPECT_TRUE(Eventually([&] {
      const Charges now = Look();
      return now.device + now.tier == 2 * kBytes;
    })) << ::testing::PrintToString(Look());
    if (moves) {
      ASSERT_OK(client_->Resume({&kept_[1]}));
    }
    EXPECT_OK(Check(MemoryOf(kept_[1]), 2));
    EXPECT_TRUE(Becomes({kBytes, kBytes})) << ::testing::PrintToString(Look());
    ASSERT_OK(client_->Resume({&kept_[0]}));
    EXPECT_OK(Check(MemoryOf(kept_[0]), 1));
    EXPECT_TRUE(Becomes({2 * kBytes, 0})) << ::testing::PrintToString(Look());
    ASSERT_OK(client_->Suspend({&kept_[0]}));
    UseAll();
    const bool back = Eventually([&] {
      const int now = CountFds(daemon_->keeper_pid());
      // The keeper closes what it need not keep some time later: the first look may have counted
      // it.
      return now == (keeper_fds_ = std::min(keeper_fds_, now));
    });
    EXPECT_TRUE(back) << CountFds(daemon_->keeper_pid()) << " descriptors, before " << keeper_fds_;
    ASSERT_FALSE(HasFailure()) << daemon_->Log();
  }

  std::vector<Segment> kept_;
  std::string ticket_;
  int keeper_fds_ = 0;
};

TEST_F(SuspendKillTest, AClientAtEachStep) {
  for (const Step& step : kSteps) {
    for (const bool moves : {false, true}) {
      ASSERT_NO_FATAL_FAILURE(KillAt(step, 1, moves));
    }
  }
  EXPECT_EQ(daemon_->generations(), 1);
}

TEST_F(SuspendKillTest, ClientsAtRandomSteps) {
  const char* const env = std::getenv("GPUMEM_SUSPEND_KILLS");
  const int kills = env == nullptr ? 24 : std::atoi(env);
  std::mt19937 random(11);
  for (int i = 0; i < kills; ++i) {
    const Step& step = kSteps[random() % std::size(kSteps)];
    const int passes = 1 + static_cast<int>(random() % 9);
    ASSERT_NO_FATAL_FAILURE(KillAt(step, passes, random() % 2 == 0));
  }
  EXPECT_EQ(daemon_->generations(), 1);
}

// Returns the path of the daemon's descriptor of the tier's file; empty: it has none.
std::string TierFileOf(pid_t daemon) {
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", daemon, "/fd"))) {
    std::error_code error;
    const std::string file = std::filesystem::read_symlink(entry.path(), error).string();
    if (file.find("gpumem:tier") != std::string::npos) return entry.path().string();
  }
  return "";
}

// The host backend has no copiers: a process stands in for one that does not end.
TEST_F(SuspendKillTest, ACopierThatOutlivesItsDaemonEndsBeforeTheNextOneServes) {
  const std::string file = TierFileOf(daemon_->daemon_pid());
  ASSERT_NE(file, "");
  Child copier = Child::Self({"--role", "copier", file});
  ASSERT_EQ(Hear(copier.channel()), "ready");
  ASSERT_OK(daemon_->Kill());
  siginfo_t ended = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(copier.pid()), &ended, WEXITED | WNOHANG | WNOWAIT), 0);
  EXPECT_EQ(ended.si_pid, copier.pid()) << "the next daemon serves beside it";
  EXPECT_EQ(copier.Wait(), 128 + SIGKILL);
  EXPECT_EQ(Look(), (Charges{kBytes, kBytes}));
  ASSERT_OK(client_->Resume({&kept_[0]}));
  ExpectPatterns(kept_);
}

int HoldTierFile(const std::string& file) {
  prctl(PR_SET_NAME, gpumemd::kContextProcessName);
  const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  gpumemd::TierLock lock;
  if (!fd.valid() || !lock.Hold(fd.get()).ok()) return 1;
  Say(kParentChannel, "ready");
  testing::HearAtLast();
  return 0;
}

// The failpoint at which the worker that runs this kills itself.
struct Own {
  std::string name;
  std::atomic<int> passes{0};
};
Own own;

int Work(const std::vector<std::string>& args) {
  auto client = Client::Connect(PatientOptions(args.at(0)));
  if (!client.ok()) return 1;
  auto segments = (*client)->AcquireMany({.bytes = kBytes}, kSegments);
  auto shared = (*client)->Open(args.at(1));
  if (!segments.ok() || !shared.ok()) return 2;
  std::vector<Segment*> all = {&*shared};
  for (int i = 0; i < kSegments; ++i) {
    Segment& segment = (*segments)[static_cast<size_t>(i)];
    if (!Fill(MemoryOf(segment), 100 + static_cast<uint64_t>(i)).ok()) return 3;
    all.push_back(&segment);
  }
  Say(kParentChannel, "ready");
  if (Hear(kParentChannel) != "go") return 4;
  own.name = args.at(2);
  own.passes = std::atoi(args.at(3).c_str());
  failpoint_hook = [](const char* name) {
    if (own.name == name && --own.passes == 0) kill(getpid(), SIGKILL);
  };
  while (true) {
    if (!(*client)->Suspend(all).ok()) return 5;
    if (!(*client)->Resume(all).ok()) return 6;
    if (!Check(MemoryOf(*shared), 2).ok()) return 7;
    for (int i = 0; i < kSegments; ++i) {
      const Segment& segment = (*segments)[static_cast<size_t>(i)];
      if (!Check(MemoryOf(segment), 100 + static_cast<uint64_t>(i)).ok()) return 8;
    }
  }
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[2]) == "copier") return gpumem::HoldTierFile(argv[3]);
  if (argc > 3 && std::string(argv[1]) == "--role") {
    return gpumem::Work(std::vector<std::string>(argv + 3, argv + argc));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
