// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/keeper.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "daemon/keeper/notify_message.h"

namespace gpumemd::keeper {
namespace {

using std::chrono::milliseconds;

// Messages before a look at signals, and all that a dead daemon may have left in the queue.
constexpr int kSome = 64, kAll = 1 << 16;
constexpr int kReportedRefusals = 10;
// Descriptors for the keeper itself, and for one message.
constexpr size_t kOwnFds = 320;

// Writes to stderr. Lost if that is stuck, since the daemon must not wait for it.
void Say(const std::string& text) {
  pollfd writable = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&writable, 1, 0) != 1 || (writable.revents & POLLOUT) == 0) return;
  const std::string line = "gpumem-keeper: " + text + "\n";
  (void)!write(STDERR_FILENO, line.data(), line.size());
}

// Raises the limit of open files as far as it goes, and answers how many can be kept.
size_t Capacity(size_t wanted) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > wanted + kOwnFds) return wanted;
  return limit.rlim_cur > kOwnFds ? limit.rlim_cur - kOwnFds : 1;
}

std::string Seconds(milliseconds time) {
  char text[32];
  snprintf(text, sizeof(text), "%.1f s", static_cast<double>(time.count()) / 1000);
  return text;
}

}  // namespace

milliseconds Backoff::After(milliseconds lifetime, bool was_ready, Clock::time_point now) {
  while (!deaths_.empty() && now - deaths_.front() >= std::chrono::minutes(1)) deaths_.pop_front();
  bool is_well = lifetime >= healthy_after_;
  if (was_ready && !is_well) {
    deaths_.push_back(now);
    is_well = deaths_.size() <= kDeathsAMinute;
  }
  if (is_well) next_ = milliseconds(0);
  const milliseconds pause = next_;
  next_ = std::min(kLongest, std::max(milliseconds(100), next_ * 2));
  return pause;
}

Keeper::Keeper(const Options& options, NotifySocket socket)
    : options_(options),
      socket_(std::move(socket)),
      stored_(Capacity(options.max_fds)),
      backoff_(options.healthy_after) {
  spec_.command = options.command;
  spec_.notify_socket = socket_.path();
  spec_.max_fds = Capacity(options.max_fds);
  sigset_t ours;
  sigemptyset(&ours);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD}) sigaddset(&ours, signal);
  sigprocmask(SIG_BLOCK, &ours, &spec_.signal_mask);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &spec_.on_pipe);
  signals_.reset(signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
}

int Keeper::Run() {
  if (!signals_.valid()) {
    Say(std::string("cannot wait for signals: ") + strerror(errno));
    return 1;
  }
  Start();
  while (!exit_code_.has_value()) {
    pollfd ready[] = {{signals_.get(), POLLIN, 0}, {socket_.fd(), POLLIN, 0}};
    poll(ready, 2, WaitMs());
    // Before signals: a dead daemon's words count, but not after its successor has started.
    if (ready[1].revents != 0) HandleMessages(kSome);
    if (ready[0].revents != 0) HandleSignals();
    if (!exit_code_.has_value() && child_ == 0 && Clock::now() >= restart_at_) Start();
  }
  return *exit_code_;
}

int Keeper::WaitMs() const {
  if (child_ != 0) return -1;
  const auto left = std::chrono::ceil<milliseconds>(restart_at_ - Clock::now());
  return static_cast<int>(std::max<milliseconds::rep>(left.count(), 0));
}

void Keeper::Start() {
  ++starts_;
  refusals_ = 0;
  ready_ = restarting_ = false;
  started_at_ = Clock::now();
  const pid_t pid = RunChild(spec_, stored_);
  if (pid > 0) {
    child_ = pid;
    Say("started " + options_.command[0] + " (process " + std::to_string(pid) + ") with " +
        std::to_string(stored_.size()) + " stored descriptors of at most " +
        std::to_string(spec_.max_fds));
    return;
  }
  Say("cannot run " + options_.command[0] + ": " + strerror(errno));
  last_code_ = 127;
  if (starts_ == 1) {
    exit_code_ = last_code_;
    return;
  }
  // The executable may be being replaced; the stored descriptors wait for it.
  restart_at_ = Clock::now() + backoff_.After(milliseconds(0), /*was_ready=*/false, Clock::now());
}

void Keeper::HandleSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    if (signal == SIGUSR1) {
      Restart();
      continue;
    }
    if (signal != SIGHUP) {
      stopping_ = true;
      Say(std::string(signal == SIGTERM ? "SIGTERM" : "SIGINT") + ": stopping");
    }
    // Not reaped yet, so the pid is not reused.
    if (child_ != 0) kill(child_, signal);
  }
  Reap();
  if (stopping_ && child_ == 0 && !exit_code_.has_value()) exit_code_ = last_code_;
}

void Keeper::Restart() {
  if (stopping_) return;
  Say("SIGUSR1: starting " + options_.command[0] + " again");
  if (child_ == 0) {
    restart_at_ = Clock::now();
    return;
  }
  restarting_ = true;
  // Not by kill(2): so the daemon knows that another one follows.
  sigqueue(child_, SIGTERM, {});
}

// Whatever has ended: as process 1 of a container the keeper gets the orphans of all others.
void Keeper::Reap() {
  while (!exit_code_.has_value()) {
    siginfo_t ended = {};
    if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
    // Until it is reaped, no other process can have its pid.
    if (ended.si_pid == child_) HandleMessages(kAll);
    int status = 0;
    waitpid(ended.si_pid, &status, 0);
    if (ended.si_pid == child_) OnExit(status);
  }
}

void Keeper::OnExit(int wait_status) {
  const auto lifetime = std::chrono::duration_cast<milliseconds>(Clock::now() - started_at_);
  std::string how = options_.command[0] + " (process " + std::to_string(child_) + ") ";
  child_ = 0;
  if (WIFSIGNALED(wait_status)) {
    last_code_ = 128 + WTERMSIG(wait_status);
    how += "was killed by signal " + std::to_string(WTERMSIG(wait_status));
  } else {
    last_code_ = WEXITSTATUS(wait_status);
    how += "ended with exit code " + std::to_string(last_code_);
  }
  how += " after " + Seconds(lifetime);
  const bool is_misconfigured = last_code_ == 2 && starts_ == 1 && !has_run_well_;
  if (stopping_ || is_misconfigured || (last_code_ == 0 && !restarting_)) {
    Say(how + "; closing " + std::to_string(stored_.size()) + " descriptors");
    exit_code_ = last_code_;
    return;
  }
  const milliseconds pause =
      restarting_ && ready_ ? milliseconds(0) : backoff_.After(lifetime, ready_, Clock::now());
  restart_at_ = Clock::now() + pause;
  Say(how + "; starting it again in " + Seconds(pause));
}

void Keeper::HandleMessages(int most) {
  for (int i = 0; i < most; ++i) {
    std::optional<NotifySocket::Received> received = socket_.Receive();
    if (!received.has_value()) return;
    HandleMessage(*std::move(received));
  }
}

// Descriptors left in `received` are closed at its end; for a barrier that is the answer.
void Keeper::HandleMessage(NotifySocket::Received received) {
  if (received.sender != child_ || child_ == 0) {
    return Refuse("a message of process " + std::to_string(received.sender));
  }
  if (!received.is_whole) {
    return Refuse("a message that is too long, or has more descriptors than may be open here");
  }
  const NotifyMessage message = ParseNotifyMessage(received.text);
  if (message.barrier) return;
  if ((message.store || message.remove) && !IsFdName(message.name)) {
    return Refuse("an invalid descriptor name");
  }
  if (message.remove) stored_.Remove(message.name);
  if (message.store) {
    for (gpumem::UniqueFd& fd : received.fds) {
      if (!stored_.Add(message.name, std::move(fd))) {
        Refuse("a descriptor: the store is full with " + std::to_string(stored_.size()));
        break;
      }
      has_run_well_ = true;
    }
  }
  ready_ = ready_ || message.ready;
  has_run_well_ = has_run_well_ || message.ready;
  outer_.Say(message.state);
}

void Keeper::Refuse(const std::string& what) {
  if (++refusals_ > kReportedRefusals) return;
  Say("refused " + what +
      (refusals_ == kReportedRefusals ? "; further refusals are not reported" : ""));
}

}  // namespace gpumemd::keeper
