// Keeps a daemon running, and its descriptors over its deaths.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "common/unique_fd.h"
#include "daemon/keeper/child.h"
#include "daemon/keeper/notify_socket.h"
#include "daemon/keeper/options.h"
#include "daemon/keeper/stored_fds.h"

namespace gpumemd::keeper {

// When to start a daemon again: at once after a good time or the first death; after a row of
// quick deaths later and later.
class Backoff {
 public:
  static constexpr std::chrono::milliseconds kLongest{5000};

  explicit Backoff(std::chrono::milliseconds healthy_after) : healthy_after_(healthy_after) {}
  // The pause after a daemon that has lived for so long.
  std::chrono::milliseconds After(std::chrono::milliseconds lifetime);

 private:
  const std::chrono::milliseconds healthy_after_;
  std::chrono::milliseconds next_{0};
};

// One loop in one thread, which waits for messages and signals only. A message counts if the
// daemon itself has sent it; others', and those that cannot be read, change nothing.
class Keeper {
 public:
  Keeper(const Options& options, NotifySocket socket);
  // Runs until the end of it all; the exit code.
  int Run();

 private:
  using Clock = std::chrono::steady_clock;

  void Start();
  void HandleSignals();
  void Reap();
  void OnExit(int wait_status);
  // Handles up to `most` messages that have come.
  void HandleMessages(int most);
  void HandleMessage(NotifySocket::Received received);
  void Refuse(const std::string& what);
  int WaitMs() const;

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
  int starts_ = 0;
  int refusals_ = 0;  // of this child's messages
  bool stopping_ = false;
  int last_code_ = 0;  // of the child before
  std::optional<int> exit_code_;
};

}  // namespace gpumemd::keeper
