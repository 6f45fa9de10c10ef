// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM, and optionally SIGWINCH, as events to wait for.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem::cli {

// Construct it before any thread starts: threads inherit the blocked signals, so that only this
// object receives them. Used by one thread.
class StopSignals {
 public:
  enum class Also { kNothing, kResize };
  explicit StopSignals(Also also = Also::kNothing) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    if (also == Also::kResize) sigaddset(&signals, SIGWINCH);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
    fd_.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~StopSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  enum class Event { kStop, kResize, kInput, kTimeout };

  // Blocks until a signal (kResize: the size of the terminal has changed), until `input` is
  // readable (-1: none), or until `deadline`.
  Event Wait(absl::Time deadline, int input = -1) {
    pollfd events[] = {{.fd = fd_.get(), .events = POLLIN, .revents = 0},
                       {.fd = input, .events = POLLIN, .revents = 0}};
    while (true) {
      const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
      // Rounded up, to avoid a busy loop in the last millisecond.
      const int64_t wait = absl::ToInt64Milliseconds(
          std::min(absl::Ceil(left, absl::Milliseconds(1)), absl::Hours(1)));
      const int ready = poll(events, 2, static_cast<int>(wait));
      if (ready > 0 && events[0].revents == 0) return Event::kInput;
      if (ready > 0) {
        // Consumed, so that it is not delivered when the signals are unblocked.
        signalfd_siginfo taken;
        bool stop = false;
        while (read(fd_.get(), &taken, sizeof taken) > 0) stop |= taken.ssi_signo != SIGWINCH;
        return stop ? Event::kStop : Event::kResize;
      }
      if (ready < 0 && errno != EINTR) return Event::kStop;
      if (absl::Now() >= deadline) return Event::kTimeout;
    }
  }

 private:
  sigset_t before_;
  UniqueFd fd_;
};

}  // namespace gpumem::cli
