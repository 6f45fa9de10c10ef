// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/pseudo_terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "absl/time/clock.h"

namespace gpumem {
namespace {

int Milliseconds(absl::Time deadline) {
  const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
  return static_cast<int>(std::clamp<int64_t>(left, 0, 600'000));
}

winsize WindowOf(PseudoTerminal::Size size) {
  return {.ws_row = size.rows, .ws_col = size.columns, .ws_xpixel = 0, .ws_ypixel = 0};
}

}  // namespace

PseudoTerminal::PseudoTerminal(const std::vector<std::string>& argv, Size size,
                               const std::map<std::string, std::string>& environment) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const winsize window = WindowOf(size);
  int leader = -1;
  pid_ = forkpty(&leader, nullptr, nullptr, &window);
  if (pid_ < 0) throw std::runtime_error("no pseudo terminal");
  if (pid_ == 0) {
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  leader_.reset(leader);
}

PseudoTerminal::~PseudoTerminal() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void PseudoTerminal::Type(const std::string& keys) {
  if (write(leader_.get(), keys.data(), keys.size()) < 0) return;  // it has ended: Wait tells
}

void PseudoTerminal::Resize(Size size) {
  const winsize window = WindowOf(size);
  ioctl(leader_.get(), TIOCSWINSZ, &window);  // signals who is in the foreground
}

bool PseudoTerminal::Read(absl::Time deadline) {
  pollfd event{.fd = leader_.get(), .events = POLLIN, .revents = 0};
  if (poll(&event, 1, Milliseconds(deadline)) <= 0) return false;
  char bytes[65536];
  const ssize_t length = read(leader_.get(), bytes, sizeof bytes);  // EIO: it has closed its end
  if (length <= 0) return false;
  written_.append(bytes, static_cast<size_t>(length));
  return true;
}

bool PseudoTerminal::WaitFor(const std::string& text, absl::Time deadline) {
  while (Screen().find(text) == std::string::npos) {
    if (!Read(deadline)) return false;
  }
  return true;
}

bool PseudoTerminal::WaitUntilGone(const std::string& text, absl::Time deadline) {
  while (Screen().find(text) != std::string::npos) {
    if (!Read(deadline)) return false;
  }
  return true;
}

int PseudoTerminal::Wait(absl::Time deadline) {
  while (Read(deadline)) {
  }
  // It has closed the terminal, or the deadline is over; it may still be on its way out.
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  pollfd event{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  if (poll(&event, 1, Milliseconds(deadline)) <= 0) return -1;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string PseudoTerminal::Screen() const {
  // A picture begins at the top left, and the last one that is whole is seen.
  const std::string begin = "\x1b[H";
  const std::string end = "\x1b[J";
  const size_t whole = written_.rfind(end);
  if (whole == std::string::npos) return PlainText(written_);
  const size_t start = written_.rfind(begin, whole);
  return PlainText(written_.substr(start, whole - start));
}

std::string PlainText(const std::string& frame) {
  std::string text;
  for (size_t i = 0; i < frame.size(); ++i) {
    if (frame[i] == '\x1b') {
      while (i + 1 < frame.size() && !(frame[i] >= '@' && frame[i] <= '~' && frame[i] != '[')) ++i;
    } else if (frame[i] != '\r') {
      text += frame[i];
    }
  }
  return text;
}

}  // namespace gpumem
