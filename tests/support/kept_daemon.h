// SPDX-License-Identifier: Apache-2.0
// A real gpumemd under gpumem-keeper, which starts another when it is killed.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gpumem/client.h"
#include "tests/support/child.h"

namespace gpumem::testing {

class KeptDaemon {
 public:
  struct Options {
    std::string backend = "host";
    std::string config;                      // TOML
    std::string program = "gpumemd_mortal";  // gpumemd knows no failpoints
    int max_fds = 16384;                     // that the keeper keeps
    int healthy_after = 0;  // seconds; if it dies sooner, the next start is delayed more and more
  };
  // Runs $GPUMEM_KEEPER and the program (ProgramPath), or those in the folder of this one, and
  // waits until clients are welcome.
  static absl::StatusOr<std::unique_ptr<KeptDaemon>> Start(const Options& options);
  // Ends all of it.
  ~KeptDaemon();
  KeptDaemon(const KeptDaemon&) = delete;
  KeptDaemon& operator=(const KeptDaemon&) = delete;

  const std::string& runtime_dir() const { return runtime_dir_; }
  pid_t keeper_pid() const { return keeper_.pid(); }
  Child& keeper() { return keeper_; }
  // Returns the pid of the daemon that serves now; -1: none does. It changes with each death.
  pid_t daemon_pid() const;
  // Kills the daemon (SIGKILL), and waits until another serves.
  absl::Status Kill();
  // Replaces the program from the next start on, as an upgrade does.
  absl::Status Replace(const std::string& program);
  // Stops all threads of the daemon that serves now (SIGSTOP), so that it hears of nothing until it
  // is killed. False: there is none.
  bool Freeze();
  // Has the keeper end the daemon (SIGTERM) and start the next one, and waits until that one
  // serves.
  absl::Status Restart();
  // Replaces the configuration, and asks the daemon to read it.
  void Reconfigure(const std::string& config);
  // Kills the daemon, and does not wait.
  void KillOnly();
  // Makes daemons write the records of a future version (next_journal.cc).
  void SetNextJournal(const std::string& what);
  // The next daemons are killed when they have passed this failpoint so often (failpoint.h). The
  // first death disarms it.
  void ArmFailpoint(const std::string& name, int passes);
  // The next daemon that starts takes so long at this failpoint, once, and goes on.
  void ArmPause(const std::string& name, absl::Duration pause);
  bool IsFailpointArmed() const;
  void DisarmFailpoint();
  // This process is killed, and has ended, when the daemon that serves now has passed the failpoint
  // so often from now on. It may be the daemon itself.
  void ArmTarget(const std::string& name, int passes, pid_t pid);
  bool IsTargetArmed() const;  // false: it has died, or is just about to
  void DisarmTarget();
  // The n-th allocation (malloc, operator new) from now on of a daemon fails, and no other; 0:
  // none (failing_malloc.cc).
  void FailAllocation(int64_t n);
  // Returns how many allocations are left until the one that fails; 0: it has failed.
  int64_t AllocationsLeft() const;
  // How many daemons have begun to serve.
  int generations() const;
  // Waits for more of them.
  bool WaitForGeneration(int generation) const;
  std::string Log() const;

 private:
  KeptDaemon() = default;

  std::string dir_, runtime_dir_;
  std::atomic<int64_t>* allocations_ = nullptr;  // shared with the daemons; null: not with them
  Child keeper_;
};

}  // namespace gpumem::testing
