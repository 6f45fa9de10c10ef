// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/fibers.h"

#include <algorithm>
#include <utility>

#include "tests/simulation/require.h"

namespace gpumemd::simulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;

using Stack = std::unique_ptr<char[]>;

// Stacks of ended fibers, for later ones.
std::vector<Stack>& Stacks() {
  static auto* const stacks = new std::vector<Stack>();
  return *stacks;
}

Fibers* entering = nullptr;

}  // namespace

Fibers::~Fibers() { Require(fibers_.empty(), "fibers have not ended"); }

std::function<void()> Fibers::Start(std::function<void()> body) {
  // It has stacks left or not: that is no part of a history.
  AllocationListener* const listener = ListenToAllocations(nullptr);
  auto fiber = std::make_unique<Fiber>();
  fiber->body = std::move(body);
  if (Stacks().empty()) {
    fiber->stack = Stack(new char[kStackBytes]);
  } else {
    fiber->stack = std::move(Stacks().back());
    Stacks().pop_back();
  }
  Require(getcontext(&fiber->context) == 0, "getcontext");
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, &Fibers::Enter, 0);
  auto join = [this, ended = fiber->ended] { WaitUntil([&] { return *ended; }); };
  fibers_.push_back(std::move(fiber));
  ListenToAllocations(listener);
  return join;
}

void Fibers::Enter() {
  Fibers& fibers = *entering;
  fibers.running_->body();
  *fibers.running_->ended = true;
  setcontext(&fibers.outside_);
}

void Fibers::Stop(absl::FunctionRef<bool()> ready, absl::Time deadline) {
  Require(running_ != nullptr, "only fibers wait");
  Fiber& fiber = *running_;
  fiber.ready = &ready;
  fiber.deadline = deadline;
  Require(swapcontext(&fiber.context, &outside_) == 0, "swapcontext");
}

bool Fibers::WaitUntil(absl::FunctionRef<bool()> ready, absl::Time deadline) {
  if (ready()) return true;
  Stop(ready, deadline);
  return ready();
}

bool Fibers::Await(absl::Mutex& mutex, const absl::Condition& condition, absl::Time deadline) {
  mutex.Unlock();
  Stop([&] { return condition.Eval(); }, deadline);
  mutex.Lock();
  return condition.Eval();
}

void Fibers::Yield() {
  if (running_ == nullptr) return;
  Stop([] { return true; }, absl::InfiniteFuture());
}

size_t Fibers::CountReady() {
  ready_.clear();
  for (const auto& fiber : fibers_) {
    if (fiber->stalled == 0 && CanGoOn(*fiber)) ready_.push_back(fiber.get());
  }
  return ready_.size();
}

void Fibers::Pass() {
  for (const auto& fiber : fibers_) fiber->stalled -= fiber->stalled > 0 ? 1 : 0;
}

void Fibers::EndStalls() {
  for (const auto& fiber : fibers_) fiber->stalled = 0;
}

bool Fibers::CanGoOn(const Fiber& fiber) const {
  if (past_all_deadlines_ && fiber.deadline < absl::InfiniteFuture()) return true;
  return fiber.ready == nullptr || fiber.deadline <= now_ || (*fiber.ready)();
}

void Fibers::Run(size_t which) { Resume(ready_.at(which)); }

void Fibers::Resume(Fiber* fiber) {
  Require(running_ == nullptr, "a fiber runs another one");
  running_ = fiber;
  entering = this;
  AllocationListener* const before = ListenToAllocations(listener_);
  Require(swapcontext(&outside_, &fiber->context) == 0, "swapcontext");
  ListenToAllocations(before);
  running_ = nullptr;
  if (!*fiber->ended) return;
  const auto it = std::find_if(fibers_.begin(), fibers_.end(),
                               [&](const auto& each) { return each.get() == fiber; });
  Stacks().push_back(std::move(fiber->stack));
  fibers_.erase(it);
}

absl::Time Fibers::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& fiber : fibers_) {
    if (fiber->ready != nullptr) next = std::min(next, fiber->deadline);
  }
  return next;
}

bool Fibers::Drain() {
  EndStalls();
  for (size_t turn = 0; !fibers_.empty(); ++turn) {
    size_t ready = CountReady();
    if (ready == 0 && !past_all_deadlines_) {
      past_all_deadlines_ = true;
      ready = CountReady();
    }
    if (ready == 0 || turn > 1'000'000) return false;
    Run(turn % ready);
    past_all_deadlines_ = false;
  }
  return true;
}

}  // namespace gpumemd::simulation
