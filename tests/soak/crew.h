// SPDX-License-Identifier: Apache-2.0
// The processes of a soak's load, and attackers. Not thread-safe: the kernel ends children with the
// thread that started them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/soak/tally.h"
#include "tests/support/child.h"

namespace gpumem::soak {

class Crew {
 public:
  struct Options {
    std::string runtime_dir;
    std::string mailbox;
    absl::Duration pause;  // of workers after each operation
  };
  explicit Crew(Options options) : options_(std::move(options)) {}

  // Starts a process in a role of RunWorker(). `seed` is another for each process.
  void Hire(const std::string& role, const std::string& tenant, uint64_t seed);
  // Runs an attack of tests/hostile for a second.
  void Attack(const std::string& name);
  // Kills a worker, and starts another in its place.
  void Kill(size_t which, uint64_t seed);
  // Kills all workers and attackers.
  void Rest();
  // Starts workers in the place of those that Rest() has killed.
  void Resume(uint64_t seed);
  // Stops a worker for a time; Listen() lets it go on.
  void Stop(size_t which, absl::Duration length);
  // Takes what the processes have said. Replaces workers that have ended: a daemon kills those that
  // do not give revoked memory back; another end is wrong. So is an attacker that fails.
  void Listen(uint64_t seed);
  // Has all workers end, and waits for that.
  void End();

  size_t size() const { return workers_.size(); }
  // What the workers hold, as far as they have said.
  uint64_t held_bytes() const;
  const Counts& counts() const { return counts_; }
  uint64_t operations() const { return operations_; }
  // What must not have happened, some of it.
  const std::vector<std::string>& wrong() const { return wrong_; }

 private:
  struct Worker {
    std::string role, tenant;
    testing::Child child;
    uint64_t held = 0;
    absl::Time stopped_until = absl::InfinitePast();
    bool ended = false;
  };

  testing::Child Start(const Worker& worker, uint64_t seed) const;
  // Kills a worker, takes what it had said, and leaves its place empty.
  void Kill(Worker& worker);
  // False if it has closed its channel.
  bool Hear(Worker& worker, absl::Time deadline);

  const Options options_;
  std::vector<Worker> workers_;
  std::vector<testing::Child> attackers_;
  std::vector<absl::Time> attacks_end_;
  Counts counts_;
  uint64_t operations_ = 0;
  std::vector<std::string> wrong_;
};

// The attacks that a soak makes.
const std::vector<std::string>& SoakAttacks();
// {NAME, RUNTIME_DIR}. Returns the process's exit code.
int RunAttacker(const std::vector<std::string>& args);

}  // namespace gpumem::soak
