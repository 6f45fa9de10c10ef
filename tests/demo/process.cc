// SPDX-License-Identifier: Apache-2.0
#include "tests/demo/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gpumem::demo {
namespace {

volatile sig_atomic_t interrupted = 0;

// Waits until `fd` can be read or has been closed. False at the deadline.
bool WaitReadable(int fd, absl::Time deadline) {
  while (true) {
    ThrowIfInterrupted();
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
    // At most 100 ms: a signal may come just before poll() begins.
    const int ready = poll(&event, 1,
                           static_cast<int>(absl::ToInt64Milliseconds(std::min(
                               absl::Ceil(left, absl::Milliseconds(1)), absl::Milliseconds(100)))));
    if (ready > 0) return true;
    if (absl::Now() >= deadline) return false;
  }
}

std::pair<UniqueFd, UniqueFd> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) throw Failure(absl::StrCat("pipe: ", strerror(errno)));
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

int CodeOf(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

// PATH=… of this process, changed by `changes`.
std::vector<std::string> Environment(std::map<std::string, std::string> changes) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    changes.try_emplace(text.substr(0, equals),
                        equals == std::string::npos ? "" : text.substr(equals + 1));
  }
  std::vector<std::string> environment;
  for (const auto& [name, value] : changes) environment.push_back(absl::StrCat(name, "=", value));
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // writing to a child that has gone
}

void ThrowIfInterrupted() {
  if (interrupted != 0) throw Failure("interrupted");
}

Process::Process(const ProcessOptions& options) {
  auto [child_input, input] = MakePipe();
  auto [output, child_output] = MakePipe();
  if (!options.log_file.empty()) {
    child_output.reset(
        open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = Environment(options.environment);
  std::vector<char*> argv = Pointers(arguments);
  std::vector<char*> envp = Pointers(environment);
  const bool join_stderr = options.stderr_too || !options.log_file.empty();
  const pid_t parent = getpid();

  pid_ = fork();
  if (pid_ < 0) throw Failure(absl::StrCat("fork: ", strerror(errno)));
  if (pid_ == 0) {
    // Only calls that are safe after fork(): this process may have threads.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    signal(SIGPIPE, SIG_DFL);
    dup2(child_input.get(), STDIN_FILENO);
    dup2(child_output.get(), STDOUT_FILENO);
    if (join_stderr) dup2(child_output.get(), STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  input_ = std::move(input);
  output_ = std::move(output);
}

Process::~Process() {
  if (exit_code_) return;
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

std::optional<std::string> Process::ReadLine(absl::Time deadline) {
  while (true) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (!WaitReadable(output_.get(), deadline)) {
      throw Failure(absl::StrCat("process ", pid_, " said nothing in time"));
    }
    std::array<char, 4096> buffer;
    const ssize_t got = read(output_.get(), buffer.data(), buffer.size());
    if (got > 0) {
      unread_.append(buffer.data(), static_cast<size_t>(got));
    } else if (got == 0) {
      return std::nullopt;
    } else if (errno != EINTR) {
      throw Failure(absl::StrCat("read: ", strerror(errno)));
    }
  }
}

void Process::WriteLine(const std::string& line) {
  const std::string text = line + "\n";  // shorter than a pipe holds: never blocks
  if (write(input_.get(), text.data(), text.size()) < 0 && errno != EPIPE) {
    throw Failure(absl::StrCat("write: ", strerror(errno)));
  }
}

void Process::Signal(int signal) {
  if (!exit_code_) kill(pid_, signal);
}

int Process::Wait(absl::Time deadline) {
  if (!exit_code_) {
    if (!WaitReadable(pidfd_.get(), deadline)) {
      throw Failure(absl::StrCat("process ", pid_, " did not end in time"));
    }
    Poll();
  }
  return *exit_code_;
}

std::optional<int> Process::Poll() {
  int status = 0;
  if (!exit_code_ && waitpid(pid_, &status, WNOHANG) == pid_) exit_code_ = CodeOf(status);
  return exit_code_;
}

}  // namespace gpumem::demo
