// SPDX-License-Identifier: Apache-2.0
// The daemon's log under attack: floods are told in few lines, and a standard error that no
// process reads holds up no client.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;
using testing::WireSession;

// Sends bytes that are no Hello, and waits for the refusal.
absl::Status BadGreeting(const std::string& socket) {
  WireSession session(socket);
  if (absl::Status sent = session.Send("\xff\xff\xff\xff"); !sent.ok()) return sent;
  return session.Answer();
}

int LinesWith(const std::string& text, absl::string_view part) {
  int lines = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    lines += absl::StrContains(line, part) ? 1 : 0;
  }
  return lines;
}

// Adds up the N of "... and N more like this from uid …".
int SuppressedIn(const std::string& text) {
  int sum = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t at = line.find("... and ");
    int count = 0;
    if (at == absl::string_view::npos || !absl::StrContains(line, " more like this from uid ") ||
        !absl::EndsWith(line, ": refused sessions")) {
      continue;
    }
    line.remove_prefix(at + 8);
    if (absl::SimpleAtoi(line.substr(0, line.find(' ')), &count)) sum += count;
  }
  return sum;
}

TEST(Log, AFloodOfBadGreetingsIsToldInFewLinesThatAddUp) {
  auto daemon = DaemonProcess::Start();
  ASSERT_OK(daemon);
  constexpr int kGreetings = 2000;
  const absl::Time begun = absl::Now();
  for (int i = 0; i < kGreetings; ++i) {
    const absl::Status refused = BadGreeting((*daemon)->Socket("session.sock"));
    ASSERT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  ASSERT_TRUE(Eventually(
      [&] {
        const std::string log = (*daemon)->Log();
        return LinesWith(log, "info: refused ") + SuppressedIn(log) == kGreetings;
      },
      absl::Seconds(60)))
      << (*daemon)->Log();
  // Five in each window of ten seconds, and the line that counts the others.
  const int windows = static_cast<int>((absl::Now() - begun) / absl::Seconds(10)) + 1;
  EXPECT_LE(LinesWith((*daemon)->Log(), "refused"), 6 * windows);
}

// A daemon whose standard error is a pipe that is full from the start.
class DaemonThatIsNotRead {
 public:
  DaemonThatIsNotRead() {
    char dir[] = "/tmp/gpumem-test-XXXXXX";
    dir_ = mkdtemp(dir);
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = UniqueFd(ends[0]);
    const UniqueFd writer(ends[1]);
    const UniqueFd filler(open(absl::StrCat("/proc/self/fd/", writer.get()).c_str(),
                               O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    const std::string page(4096, '.');
    while (write(filler.get(), page.data(), page.size()) > 0) filled_ += page.size();
    const UniqueFd saved(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10));
    dup2(writer.get(), STDERR_FILENO);
    child_ = Child({testing::ProgramPath("gpumemd"), "--backend", "host", "--runtime-dir",
                    runtime_dir(), "--state-dir", dir_ + "/state"});
    dup2(saved.get(), STDERR_FILENO);
  }
  ~DaemonThatIsNotRead() {
    child_ = Child();
    std::filesystem::remove_all(dir_);
  }

  std::string runtime_dir() const { return dir_ + "/run"; }
  std::string session_socket() const { return runtime_dir() + "/session.sock"; }
  Child& child() { return child_; }
  absl::Status OpenSession() const {
    return Client::Connect({.runtime_dir = runtime_dir(), .tenant = "", .name = "bystander"})
        .status();
  }
  // Returns the daemon's output, up to the line that contains `part`. Blocks until then.
  std::string ReadUntil(absl::string_view part) {
    std::string text;
    char bytes[65536];
    while (LinesWith(text, part) == 0 || !absl::EndsWith(text, "\n")) {
      const ssize_t n = read(reader_.get(), bytes, sizeof(bytes));
      if (n <= 0) break;
      text.append(bytes, static_cast<size_t>(n));
    }
    return text;
  }

 private:
  std::string dir_;
  UniqueFd reader_;
  size_t filled_ = 0;
  Child child_;
};

TEST(Log, AStandardErrorThatNoProcessReadsHoldsUpNoClient) {
  DaemonThatIsNotRead daemon;
  ASSERT_TRUE(Eventually([&] { return daemon.OpenSession().ok(); })) << daemon.OpenSession();
  for (int i = 0; i < 600; ++i) {
    const absl::Status refused = BadGreeting(daemon.session_socket());
    ASSERT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
  EXPECT_OK(daemon.OpenSession());
  // Lines that were queued meanwhile come when a process reads them.
  const std::string log = daemon.ReadUntil("more like this from uid");
  EXPECT_EQ(LinesWith(log, " ready: host backend"), 1) << log;
  EXPECT_GE(LinesWith(log, "info: refused "), 5) << log;
  EXPECT_OK(daemon.OpenSession());
}

TEST(Log, AStandardErrorThatNoProcessReadsDoesNotKeepTheDaemonFromStopping) {
  DaemonThatIsNotRead daemon;
  ASSERT_TRUE(Eventually([&] { return daemon.OpenSession().ok(); })) << daemon.OpenSession();
  daemon.child().Signal(SIGTERM);
  EXPECT_EQ(daemon.child().Wait(), 0);
}

}  // namespace
}  // namespace gpumem
