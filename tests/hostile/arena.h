// SPDX-License-Identifier: Apache-2.0
// A daemon, a bystander and attackers, each under a separate user, and the bounds that they must
// keep.
//
// A case goes through these phases:
//   quiet     no attack; the bystander's waits here are the measure for the rest.
//   attack    until the last attacker's process has gone.
//   recovery  until the daemon holds no more than before.
// Half-way through the first two phases, and shortly before their end, a client of another user
// connects (the newcomer), and an operator asks for the daemon's status. The bounds, for the attack
// and for the recovery:
//   - No call of the bystander fails.
//   - 99% of them wait no longer than 10 times what 99% did in the quiet phase, or 100 ms.
//   - None waits longer than 250 ms, or twice the longest wait of the quiet phase.
//   - The newcomer and the operator are served.
//   - The daemon's resident memory comes back to within 64 MiB of its former size, and its
//     descriptors to as many.
//   - The daemon held the broker's mutex no longer than 50 ms, if its metrics have this.
// If only the bounds of latency are broken, the attack is repeated, up to twice: a hiccup of the
// machine does not come each time. Attackers run at the lowest priority, so that the
// figures are the daemon's and not those of the scheduler. The daemon and the bystander run at the
// same priority.
//
// With GPUMEM_HOSTILE_STRICT these 100 ms are 10 ms, and the 50 ms are 5 ms. GPUMEM_HOSTILE_SECONDS
// is the length of attacks (6), GPUMEM_HOSTILE_ROUNDS how often each is repeated against the same
// daemon (1).
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/demo/process.h"
#include "tests/hostile/bystander.h"
#include "tests/support/child.h"

namespace gpumem::hostile {

struct Scene {
  std::string daemon;           // lines of TOML for [daemon], beside those of arena.cc
  std::string tenant_defaults;  // the same for [tenant_defaults]
  std::string more;             // whole sections
  std::string device;           // of the bystander and of newcomers; empty: the first
  uint64_t descriptors = 0;     // that the daemon may have; 0: as many as this process
  bool log_is_read = true;      // false: the daemon's standard error is a pipe that is never read
  bool needs_users = true;      // false: the case makes sense where all are the same user
};

struct Force {
  std::string attack;  // by attacks.h
  int processes = 1;
  bool one_user = false;     // else each process is another user
  bool as_operator = false;  // the daemon's user, who may use the admin socket
};

class Arena : public ::testing::Test {
 protected:
  // Starts the daemon and the bystander, and measures the quiet phase. Skips the test if it needs
  // several users and cannot have them.
  void Start(const Scene& scene);
  // Start, then attacks, and checks all the bounds.
  void Survive(const Scene& scene, const std::vector<Force>& forces);
  void TearDown() override;

  // How long one attack takes.
  static absl::Duration AttackTime();

  // The bystander's wait since the phase before.
  Latencies EndPhase();
  void ExpectNewcomerIsServed();
  void ExpectOperatorIsServed();
  // Both, half-way through a phase and shortly before its end.
  void ExpectVisitorsAreServed(absl::Time begin, absl::Duration length);
  // A process of this program in a role, as another user where that is possible.
  testing::Child StartRole(const std::string& role, uid_t uid, std::vector<std::string> more = {});
  uint64_t LogLines() const;
  // Returns the sum of a count of all attackers of this name.
  uint64_t Counted(const std::string& attack, const std::string& what) const;
  // Returns the largest value of the daemon's series whose names and labels begin so; < 0: there is
  // none.
  double Metric(absl::string_view series) const;

  Scene scene_;
  std::string runtime_dir_;
  pid_t pid_ = 0;  // the daemon's; 0: none yet
  testing::Child bystander_;
  Latencies quiet_;
  nlohmann::json figures_ = nlohmann::json::object();  // shown at the end

 private:
  struct Holdings {
    uint64_t resident = 0;
    int fds = 0;
  };
  Holdings Look() const;
  // Both return the bystander's waits, and do not check them.
  Latencies AttackOnce(const std::vector<Force>& forces);
  Latencies Recover();
  double MostP99() const;
  double MostMs() const;
  bool IsServedInTime(const Latencies& latencies) const;
  // Returns the waits as they are shown at the end.
  static nlohmann::json FiguresOf(const Latencies& latencies);
  // Seconds; < 0 where the daemon does not say.
  double LongestLockHold() const;
  bool DaemonLives() const;
  void StartDaemon(const Scene& scene);
  std::string Log() const;

  std::string dir_;  // of the daemon's files
  std::unique_ptr<demo::Process> daemon_;
  std::string metrics_url_;
  Holdings before_;
  double quiet_hold_ = -1;
  uid_t next_uid_ = 0;
};

// Runs `main` in a child, and returns its exit code. Linux divides the processors among sessions
// first (sched(7), autogroup), so that a priority counts among the processes of one session. The
// child has a session for which tests may set a priority among all others of the machine.
int InOwnSession(const std::function<int()>& main);

// The main() of a process in a role: {ROLE, RUNTIME_DIR, UID, ...}. Returns its exit code.
int RunRole(const std::vector<std::string>& args);

}  // namespace gpumem::hostile
