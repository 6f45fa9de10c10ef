// SPDX-License-Identifier: Apache-2.0
// A node of a simulation: devices, a service manager with its store, daemons one after another, and
// client processes. One thread; all chance comes from the steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/client.h"
#include "tests/simulation/daemon.h"
#include "tests/simulation/driver.h"
#include "tests/simulation/random.h"
#include "tests/simulation/store.h"

namespace gpumemd::simulation {

enum class Action : uint8_t {
  kRun,      // a thread of the daemon goes on until it stops
  kAct,      // a client does something
  kRead,     // a client reads its socket
  kAdvance,  // time passes
  kDie,      // a process
  kTell,     // the daemon learns of a process's death
  kLose,     // a client its connection
  kStart,    // the service manager starts a daemon
  kKill,     // the daemon, at some moment from now
  kStop,     // the daemon, in order, as an upgrade does
  kOperate,  // an operator does something
  kFault,    // a driver call fails, the store or a socket is full, processes take memory past the
             // broker
};
inline constexpr size_t kActions = 12;

// What happens next: on replay it is done if it can be done then.
struct Step {
  Action action = Action::kRun;
  uint8_t actor = 0;
  uint32_t salt = 0;
  bool operator==(const Step&) const = default;
};
std::string ToString(const Step& step);

enum class Check { kNone, kIncremental, kFull };

inline constexpr std::array<const char*, 3> kTenants = {"a", "b", "a-child"};

// Returns a quota that the tenant may have.
Quota QuotaOf(const std::string& tenant, Random& random);

class World {
 public:
  // `seed` decides how large it is, and all secrets. `allocations_kill`: daemons also die at
  // allocations. Their numbers depend on addresses, so such a history may not repeat exactly.
  explicit World(uint64_t seed, Check check = Check::kFull, bool allocations_kill = true);
  ~World();

  // Returns a step that can be done.
  Step Choose(Random& random);
  // Does a step if it can be done, and checks all. False if it cannot be done.
  bool Do(const Step& step);
  // Lets all that is under way come to its end, and checks that nothing is left.
  void Finish();

  const std::optional<std::string>& violation() const { return hall_.violation; }
  uint64_t digest() const { return digest_; }
  // Returns how many daemons have died, and how many allocations daemons have made.
  uint64_t kills() const { return kills_; }
  uint64_t allocations() const { return surroundings_.allocations; }
  // Has the allocation with this number be the death of its daemon; 0: none.
  void KillAtAllocation(uint64_t number) { surroundings_.fatal_allocation = number; }
  // What clients were answered, by call and status, and how daemons died.
  const std::map<std::string, uint64_t>& counts() const { return hall_.counts; }

 private:
  // True if the action can be done now; sets how many actors can do it.
  bool Can(Action action, size_t* actors);
  std::vector<size_t> Those(bool (Client::*which)() const) const;

  // --- world_events.cc
  void Operate(Random& random);
  void Fault(Random& random);
  void KillSoon(Random& random, size_t moments);
  void StartDaemon();
  void HearOfStart();
  void Reap();
  void EndProcesses();

  // --- world_checks.cc
  void CheckAll(bool full);
  void CheckMemory();
  void CheckMappings();
  void CheckJournal();
  void CheckIdle();
  void CheckEmpty();
  void AddToDigest();

  const Check check_;
  const bool allocations_kill_;
  size_t calm_ = 1;    // one in so many kills happens
  size_t steady_ = 1;  // and one in so many losses of connections
  // Of so many runs of the daemon's threads one is that a thread is held up; 0: none. What others
  // do meanwhile comes between two parts of its call.
  size_t slow_ = 0;
  uint64_t steps_ = 0;
  uint64_t digest_ = 0;
  uint64_t kills_ = 0;
  uint64_t checked_batches_ = 0;
  uint64_t checked_memory_ = 0;  // a digest of what can change what CheckMemory finds
  Driver driver_;
  Store store_;
  Surroundings surroundings_;
  Hall hall_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<pid_t> gone_;  // processes of whose death the daemon has not been told
  std::unique_ptr<Daemon> daemon_;
};

}  // namespace gpumemd::simulation
