// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/peer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/testing/descriptors_left.h"
#include "common/unique_fd.h"

namespace gpumemd {
namespace {

TEST(ParseStartTime, IsCountedFromTheEndOfTheName) {
  const std::string rest = " S 1 2 2 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 8675309 1000 300\n";
  EXPECT_EQ(ParseStartTime("4242 (sh)" + rest), 8675309u);
  EXPECT_EQ(ParseStartTime("4242 (a) b (c) 1 2)" + rest), 8675309u);
  EXPECT_EQ(ParseStartTime(""), 0u);
  EXPECT_EQ(ParseStartTime("4242 (sh) S 1 2"), 0u);
}

TEST(PidNamespacesOf, CountsNumbers) {
  EXPECT_EQ(PidNamespacesOf("Name:\tsh\nPid:\t7\nNSpid:\t7\nNSpgid:\t7\t1\n"), 1u);
  EXPECT_EQ(PidNamespacesOf("Name:\tNSpid: 1 2 3\nNSpid:\t4711\t12\t1\n"), 3u);
  EXPECT_EQ(PidNamespacesOf("Name:\tsh\n"), 0u);
  EXPECT_EQ(PidNamespacesOf(""), 0u);
}

TEST(IdentifyPeer, KnowsItsPeer) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  auto peer = IdentifyPeer(ends[0]);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_TRUE(CheckPidNamespace(ends[0]).ok()) << CheckPidNamespace(ends[0]);
  EXPECT_EQ(peer->identity.pid, getpid());
  EXPECT_EQ(peer->identity.uid, geteuid());
  EXPECT_EQ(peer->identity.gid, getegid());
  EXPECT_GT(peer->identity.start_time, 0u);
  EXPECT_FALSE(peer->command.empty());
  pollfd alive{peer->pidfd.get(), POLLIN, 0};
  EXPECT_EQ(poll(&alive, 1, 0), 0);
  close(ends[0]);
  close(ends[1]);
}

// The two ends of a socket, and the peer's identity at the first.
struct Ends {
  Ends() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) abort();
    here = gpumem::UniqueFd(ends[0]);
    there = gpumem::UniqueFd(ends[1]);
  }
  gpumem::UniqueFd here, there;
};

TEST(IdentifyPeer, KnowsItsCgroup) {
  const Ends ends;
  std::ifstream file("/proc/self/cgroup");
  std::stringstream text;
  text << file.rdbuf();
  auto peer = IdentifyPeer(ends.here.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  const Cgroup expected = text.str().empty() ? Cgroup::Unknown("") : Cgroup::Parse(text.str());
  EXPECT_EQ(peer->identity.cgroup.Value(CgroupFact::kPath), expected.Value(CgroupFact::kPath));
  EXPECT_EQ(peer->identity.cgroup.unknown().empty(), expected.unknown().empty());
}

TEST(IdentifyPeer, ByNumberTheCgroupCountsOnlyOfWhoWasThereBefore) {
  const Ends ends;
  // This process has long been running.
  auto peer = IdentifyPeer(ends.here.get(), {.queue_empty_at = BootTime(), .by_number = true});
  ASSERT_TRUE(peer.ok()) << peer.status();
  const int64_t began =
      static_cast<int64_t>(peer->identity.start_time) * (1'000'000'000 / sysconf(_SC_CLK_TCK));
  for (const int64_t queue_empty_at : {int64_t{0}, int64_t{1}, began - 1, began}) {
    auto doubtful =
        IdentifyPeer(ends.here.get(), {.queue_empty_at = queue_empty_at, .by_number = true});
    ASSERT_TRUE(doubtful.ok()) << doubtful.status();
    EXPECT_EQ(doubtful->identity.cgroup.unknown(),
              absl::StrCat("this kernel is older than 6.5, and cannot confirm that process ",
                           getpid(), ", which has just started, is the process that connected"));
    EXPECT_EQ(doubtful->identity.uid, geteuid());
    EXPECT_FALSE(doubtful->certain);
  }
  const int64_t tick = 1'000'000'000 / sysconf(_SC_CLK_TCK);
  peer = IdentifyPeer(ends.here.get(), {.queue_empty_at = began + tick, .by_number = true});
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_TRUE(peer->certain);
  EXPECT_EQ(peer->identity.cgroup.Value(CgroupFact::kPath),
            IdentifyPeer(ends.here.get())->identity.cgroup.Value(CgroupFact::kPath));
}

TEST(IdentifyPeer, AProcessThatHasEndedIsRefused) {
  for (const bool by_number : {false, true}) {
    if (!by_number && !KernelHasPeerPidfd()) continue;
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{.sun_family = AF_UNIX};
    // An abstract name: no file to remove.
    const std::string name = absl::StrCat("gpumem-peer-test-", getpid(), "-", BootTime());
    memcpy(address.sun_path + 1, name.data(), name.size());
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    const pid_t child = fork();
    if (child == 0) {
      const int end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      _exit(connect(end, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? 0 : 1);
    }
    const gpumem::UniqueFd accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    siginfo_t how{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &how, WEXITED | WNOWAIT), 0);
    ASSERT_EQ(how.si_status, 0);
    // A zombie has its number still; then it is reaped.
    EXPECT_EQ(IdentifyPeer(accepted.get(), {.by_number = by_number}).status().code(),
              absl::StatusCode::kUnavailable);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_FALSE(IdentifyPeer(accepted.get(), {.by_number = by_number}).ok());
    close(listener);
  }
}

// A process of which nothing can be read has neither ended, nor has it no cgroup.
TEST(Peers, AreNotGuessedWithoutDescriptors) {
  const Ends ends;
  const uint64_t start_time = StartTimeOf(getpid());
  const auto all = IdentifyPeer(ends.here.get());
  ASSERT_TRUE(all.ok()) << all.status();
  for (const rlim_t left : {0, 1}) {
    const gpumem::testing::DescriptorsLeft few(left);
    EXPECT_TRUE(absl::IsResourceExhausted(IdentifyPeer(ends.here.get()).status())) << left;
    EXPECT_TRUE(absl::IsResourceExhausted(CheckPidNamespace(ends.here.get()))) << left;
    EXPECT_TRUE(absl::IsResourceExhausted(FindPeer(getpid(), start_time).status())) << left;
  }
  const gpumem::testing::DescriptorsLeft few(2);
  auto peer = IdentifyPeer(ends.here.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  peer->pidfd.reset();
  EXPECT_EQ(peer->identity.start_time, start_time);
  EXPECT_EQ(peer->identity.cgroup.Value(CgroupFact::kPath),
            all->identity.cgroup.Value(CgroupFact::kPath));
  EXPECT_TRUE(FindPeer(getpid(), start_time).ok());
  EXPECT_TRUE(absl::IsNotFound(FindPeer(getpid(), start_time + 1).status()));
  EXPECT_TRUE(CheckPidNamespace(ends.here.get()).ok());
}

// Where /proc hid it, it may be another by now. That it has ended would be worse to believe: it may
// have memory mapped.
TEST(Peers, OfUnknownStartTimesAreFoundButNotCertain) {
  const auto hidden = FindPeer(getpid(), 0);
  ASSERT_TRUE(hidden.ok()) << hidden.status();
  EXPECT_FALSE(hidden->certain);
  EXPECT_EQ(hidden->identity.pid, getpid());
  const auto shown = FindPeer(getpid(), StartTimeOf(getpid()));
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_TRUE(shown->certain);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t how{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &how, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(absl::IsNotFound(FindPeer(child, 0).status())) << "a zombie";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(absl::IsNotFound(FindPeer(child, 0).status()));
}

TEST(SignalProcess, ReachesTheProcessOrNoOther) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const gpumem::UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(pidfd.valid());
  EXPECT_TRUE(SignalProcess(pidfd.get(), SIGKILL).ok());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(SignalProcess(pidfd.get(), SIGKILL).code(), absl::StatusCode::kNotFound);
}

TEST(IdentifyPeer, RefusesWhatIsNoUnixSocket) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_FALSE(IdentifyPeer(pipe_ends[0]).ok());
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace gpumemd
