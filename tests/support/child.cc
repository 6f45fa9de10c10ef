// SPDX-License-Identifier: Apache-2.0
#include "tests/support/child.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"

namespace gpumem::testing {
namespace {

constexpr absl::Duration kWordTime = absl::Seconds(60);

// Everything that allocates happens before fork(): the child may only make system calls.
pid_t Spawn(const std::vector<std::string>& args,
            const std::vector<std::pair<std::string, std::string>>& more_env, int channel) {
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<absl::string_view, absl::string_view> split =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    bool replaced = absl::StartsWith(split.first, "GTEST_");
    for (const auto& [name, value] : more_env) replaced = replaced || name == split.first;
    if (!replaced) env.emplace_back(*entry);
  }
  for (const auto& [name, value] : more_env) env.push_back(absl::StrCat(name, "=", value));
  std::vector<char*> argv, envp;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  for (const std::string& entry : env) envp.push_back(const_cast<char*>(entry.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (channel >= 0) {
    if (channel == kParentChannel) {
      fcntl(channel, F_SETFD, 0);
    } else {
      dup2(channel, kParentChannel);
    }
  }
  execve(argv[0], argv.data(), envp.data());
  dprintf(STDERR_FILENO, "cannot run %s\n", argv[0]);
  _exit(127);
}

}  // namespace

Child::Child(std::vector<std::string> args, std::vector<std::pair<std::string, std::string>> env)
    : pid_(Spawn(args, env, -1)) {}

Child Child::Self(std::vector<std::string> args) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) abort();
  UniqueFd theirs(ends[1]);
  args.insert(args.begin(), "/proc/self/exe");
  Child child;
  child.channel_ = UniqueFd(ends[0]);
  child.pid_ = Spawn(args, {}, theirs.get());
  return child;
}

Child::Child(Child&& other) noexcept { *this = std::move(other); }

Child& Child::operator=(Child&& other) noexcept {
  if (this == &other) return *this;
  if (running()) {
    Signal(SIGKILL);
    Wait();
  }
  pid_ = std::exchange(other.pid_, -1);
  channel_ = std::move(other.channel_);
  return *this;
}

Child::~Child() {
  if (!running()) return;
  Signal(SIGKILL);
  Wait();
}

void Child::Signal(int signal) const {
  if (running()) kill(pid_, signal);
}

bool Child::HasEnded() const {
  siginfo_t info = {};
  return pid_ > 0 &&
         waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

int Child::Wait() {
  if (!running()) return -1;
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void Say(int channel, const std::string& words) {
  SendMessage(channel, words, {}, absl::Now() + kWordTime).IgnoreError();
}

std::string Hear(int channel) {
  const absl::StatusOr<UnixMessage> message = ReceiveMessage(channel, absl::Now() + kWordTime);
  return message.ok() ? message->bytes : message.status().ToString();
}

bool CanBeOtherUsers() {
  constexpr uid_t kNobody = 65534;
  const UniqueFd file(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  return file.valid() && fchown(file.get(), kNobody, kNobody) == 0;
}

int CountFds(pid_t pid) {
  DIR* dir = opendir(absl::StrCat("/proc/", pid, "/fd").c_str());
  if (dir == nullptr) return -1;
  int count = 0;
  while (const dirent* entry = readdir(dir)) count += entry->d_name[0] != '.';
  closedir(dir);
  return pid == getpid() ? count - 1 : count;  // without the reader's own
}

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> result;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child; children >> child;) result.push_back(child);
  }
  return result;
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    uint64_t kib;
    if (absl::ConsumePrefix(&rest, "VmRSS:") && absl::ConsumeSuffix(&rest, " kB") &&
        absl::SimpleAtoi(rest, &kib)) {
      return kib * 1024;
    }
  }
  return 0;
}

bool Eventually(const std::function<bool()>& done, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  while (!done()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));  // between looks; nothing depends on its length
  }
  return true;
}

}  // namespace gpumem::testing
