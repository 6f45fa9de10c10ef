// SPDX-License-Identifier: Apache-2.0
// A reused pid is never taken for the process that had it before.
//
// In a separate PID namespace the test gives one number to two processes, over and over. The first
// connects to the session socket and dies at once; a third process keeps its connection open. The
// second gets the number before the daemon looks. It has another user, group, name and (if this
// machine allows it) control group. Whatever the daemon concludes, it must bill neither process for
// the other, nor as a mixture of both.
//
// 1,000 times; as often as GPUMEM_PID_REUSES says, if set (10,000 in a release's tests).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "daemon/transport/peer/peer.h"
#include "tests/support/child.h"
#include "tests/support/wire.h"
#include "tests/system/testing/numbered_process.h"
#include "tests/system/testing/pid_reuse_conductor.h"

namespace gpumem {
namespace {

using testing::AddressOf;
using testing::Child;
using testing::Conductor;
using testing::Connected;
using testing::kNumber;
using testing::NewEnd;
using testing::Part;
using testing::Reap;
using testing::Start;

constexpr int kChannel = 3;

// --- In the namespace ------------------------------------------------------------------

// Sends the report to the test: "skip: …", "wrong: …", or "done: …".
void Say(const std::string& report) {
  (void)SendMessage(kChannel, report, {}, absl::Now() + testing::kAnswerTime);
}

// As with a kernel before 6.5: the daemon's own reading, of a listener in this process.
std::string RunByNumber(int rounds) {
  const std::string path = absl::StrCat("/tmp/gpumem-pids-", absl::ToUnixMicros(absl::Now()));
  const sockaddr_un address = AddressOf(path);
  const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), 4) != 0) {
    return absl::StrCat("wrong: ", strerror(errno));
  }
  const Part first{"first", 1001, ""}, second{"second", 1002, ""};
  const UniqueFd nobody = NewEnd();
  std::string report;
  for (int round = 0; round < rounds && report.empty(); ++round) {
    const int64_t queue_empty_at = gpumemd::BootTime();
    if (accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC) >= 0) report = "wrong: who is it?";
    const UniqueFd end = NewEnd();
    if (Start(first, false, end.get(), address, {}) != kNumber || !Reap()) {
      report = absl::StrCat("skip: this kernel gives out no number that is asked for: ",
                            strerror(errno));
      break;
    }
    const UniqueFd second_end = NewEnd();
    if (Start(second, false, second_end.get(), address, {.stays = true}) != kNumber ||
        !Connected(second_end.get())) {
      report = "wrong: the second process failed";
      break;
    }
    const UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    auto peer = gpumemd::IdentifyPeer(accepted.get(),
                                      {.queue_empty_at = queue_empty_at, .by_number = true});
    // It cannot know better than that the number is taken; so it says that it does not know.
    if (peer.ok() && peer->identity.cgroup.unknown().empty()) {
      report = absl::StrCat("wrong: in round ", round, " the second process's group was believed");
    }
    const UniqueFd rest(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    testing::Kill();
  }
  unlink(path.c_str());
  return report.empty() ? absl::StrCat("done: ", rounds, " rounds by number") : report;
}

// Process 1 of the namespace.
int BeFirst(const std::string& what, int rounds) {
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", 0, nullptr) != 0) {
    Say(absl::StrCat("skip: this machine mounts no /proc for a PID namespace: ", strerror(errno)));
    return 0;
  }
  Say(what == "daemon" ? Conductor(rounds).Run() : RunByNumber(rounds));
  return 0;
}

bool WriteText(const char* path, const std::string& text) {
  const UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
  return file.valid() &&
         write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

int RunRole(const std::string& what, int rounds) {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (uid != 0) {
    if (unshare(CLONE_NEWUSER) != 0 || !WriteText("/proc/self/setgroups", "deny") ||
        !WriteText("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1")) ||
        !WriteText("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1"))) {
      Say(absl::StrCat("skip: this user may make no user namespace: ", strerror(errno)));
      return 0;
    }
  }
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
    Say(absl::StrCat("skip: this user may make no PID namespace: ", strerror(errno)));
    return 0;
  }
  const pid_t first = fork();
  if (first == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // and all of its namespace with it
    _exit(BeFirst(what, rounds));
  }
  int status = 0;
  waitpid(first, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

namespace {

std::string ReportOf(const std::string& what, const std::string& rounds) {
  Child child = Child::Self({"--role", what, rounds});
  auto report = ReceiveMessage(child.channel(), absl::Now() + absl::Minutes(5));
  EXPECT_EQ(child.Wait(), 0);
  return report.ok() ? report->bytes : report.status().ToString();
}

class PidReuseTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PidReuseTest, AProcessIsNotTakenForTheFormerOneOfItsPid) {
  const char* wanted = std::getenv("GPUMEM_PID_REUSES");
  const std::string report = ReportOf(GetParam(), wanted != nullptr ? wanted : "1000");
  if (absl::StartsWith(report, "skip: ")) GTEST_SKIP() << report.substr(strlen("skip: "));
  EXPECT_TRUE(absl::StartsWith(report, "done: ")) << report;
  RecordProperty("report", report);
  printf("%s\n", report.c_str());
}

INSTANTIATE_TEST_SUITE_P(Ways, PidReuseTest, ::testing::Values("daemon", "by-number"),
                         [](const auto& way) {
                           return std::string(way.param) == "daemon" ? "RealDaemon"
                                                                     : "KernelBefore65";
                         });

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  int rounds = 0;
  if (argc == 4 && std::string(argv[1]) == "--role" && absl::SimpleAtoi(argv[3], &rounds)) {
    return gpumem::RunRole(argv[2], rounds);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
