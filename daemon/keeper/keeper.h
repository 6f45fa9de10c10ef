// SPDX-License-Identifier: Apache-2.0
// Keeps a daemon running, and its descriptors when it dies.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "common/unique_fd.h"
#include "daemon/keeper/child.h"
#include "daemon/keeper/notify_socket.h"
#include "daemon/keeper/options.h"
#include "daemon/keeper/stored_fds.h"

namespace gpumemd::keeper {

// Decides when to start a daemon again. At once after one that was ready, and after the first that
// was not. With growing delay after a series of daemons that were not ready, or of more than
// kDeathsAMinute that were.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLongest{5000};
  static constexpr size_t kDeathsAMinute = 10;

  explicit Backoff(std::chrono::milliseconds healthy_after) : healthy_after_(healthy_after) {}
  // Returns the pause after a daemon that has died now. One that lived for `healthy_after` or
  // longer counts as healthy, whatever it reported.
  std::chrono::milliseconds After(std::chrono::milliseconds lifetime, bool was_ready,
                                  Clock::time_point now);

 private:
  const std::chrono::milliseconds healthy_after_;
  std::chrono::milliseconds next_{0};
  std::deque<Clock::time_point> deaths_;  // of ready daemons in the last minute
};

// One loop in one thread, which waits for messages and signals only. Only messages from the daemon
// itself count; others, and malformed ones, change nothing.
class Keeper {
 public:
  Keeper(const Options& options, NotifySocket socket);
  // Runs until the keeper ends; returns the exit code.
  int Run();

 private:
  using Clock = std::chrono::steady_clock;

  void Start();
  void HandleSignals();
  void Reap();
  void OnExit(int wait_status);
  // Handles up to `most` pending messages.
  void HandleMessages(int most);
  void HandleMessage(NotifySocket::Received received);
  void Refuse(const std::string& what);
  int WaitMs() const;
  // Asks this daemon to end, and then starts the next.
  void Restart();

  const Options options_;
  OuterManager outer_;
  NotifySocket socket_;
  gpumem::UniqueFd signals_;
  ChildSpec spec_;
  StoredFds stored_;
  Backoff backoff_;

  pid_t child_ = 0;  // 0: none runs
  Clock::time_point started_at_;
  Clock::time_point restart_at_;  // where none runs
  bool has_run_well_ = false;     // it was ready once, or stored something
  bool ready_ = false;            // this child has said so
  bool restarting_ = false;       // this child was asked to end for the next
  int starts_ = 0;
  int refusals_ = 0;  // of this child's messages
  bool stopping_ = false;
  int last_code_ = 0;  // of the child before
  std::optional<int> exit_code_;
};

}  // namespace gpumemd::keeper
