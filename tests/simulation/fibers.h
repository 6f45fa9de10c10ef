// SPDX-License-Identifier: Apache-2.0
// Threads of a simulated daemon: fibers of one thread, which run one at a time, and only when the
// simulation says so.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/broker/threads.h"
#include "tests/simulation/allocations.h"

namespace gpumemd::simulation {

// Not thread-safe. A fiber stops only in Await, WaitUntil, Yield and the join of another one. No
// fiber may hold a mutex there, but for that of Await.
class Fibers final : public Threads {
 public:
  // `now`: the simulated time. `listener`: is told of allocations of fibers. Both outlive this.
  Fibers(const absl::Time* now, AllocationListener* listener) : now_(*now), listener_(listener) {}
  // Requires that all fibers have ended.
  ~Fibers() override;

  // --- For fibers
  std::function<void()> Start(std::function<void()> body) override;
  bool Await(absl::Mutex& mutex, const absl::Condition& condition, absl::Time deadline) override;
  absl::Time Now() const override { return now_; }
  void Yield() override;
  // As Await, without a mutex.
  bool WaitUntil(absl::FunctionRef<bool()> ready, absl::Time deadline = absl::InfiniteFuture());

  // --- For the simulation
  size_t size() const { return fibers_.size(); }
  // Returns how many fibers can go on. Valid until one runs or the state changes.
  size_t CountReady();
  // Runs one of these until it stops. Requires which < CountReady().
  void Run(size_t which);
  // Holds the fiber up until Pass() has been called so often. Requires which < CountReady().
  void Stall(size_t which, size_t passes) { ready_.at(which)->stalled = passes; }
  void Pass();
  void EndStalls();
  // Returns the first deadline of a waiting fiber.
  absl::Time NextDeadline() const;
  // Runs all fibers to their ends. Passes deadlines if none can go on otherwise. False if one waits
  // for something that never comes.
  bool Drain();

 private:
  struct Fiber {
    std::function<void()> body;
    std::shared_ptr<bool> ended = std::make_shared<bool>(false);
    std::unique_ptr<char[]> stack;
    ucontext_t context{};
    // Of the wait that it stopped in.
    const absl::FunctionRef<bool()>* ready = nullptr;
    absl::Time deadline = absl::InfiniteFuture();
    size_t stalled = 0;
  };
  static void Enter();
  void Stop(absl::FunctionRef<bool()> ready, absl::Time deadline);
  bool CanGoOn(const Fiber& fiber) const;
  void Resume(Fiber* fiber);

  const absl::Time& now_;
  AllocationListener* const listener_;
  bool past_all_deadlines_ = false;
  ucontext_t outside_{};
  std::vector<std::unique_ptr<Fiber>> fibers_;  // by start
  std::vector<Fiber*> ready_;
  Fiber* running_ = nullptr;
};

}  // namespace gpumemd::simulation
