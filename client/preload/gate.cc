// SPDX-License-Identifier: Apache-2.0
#include "client/preload/gate.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>

namespace gpumem::preload {
namespace {

// Threads are spread over these, so that they rarely write to one cache line. Only sums matter: a
// thread is inside if more have entered than left.
struct alignas(64) Slot {
  std::atomic<uint64_t> entered{0};
  std::atomic<uint64_t> left{0};
};

constexpr uint32_t kSlots = 64;
Slot g_slots[kSlots];
std::atomic<uint32_t> g_next_slot{0};
std::atomic<void (*)()> g_wanted{nullptr};  // null: the gate is not in use
// Odd while it is closed. A thread that waits for the end of one closing does not sleep through the
// next one, of which it has not told.
std::atomic<uint32_t> g_turns{0};
std::atomic<uint32_t> g_leavings{0};  // counted while it is closed, for the thread that closes it

constinit thread_local int t_depth = 0;
constinit thread_local Slot* t_slot = nullptr;

void Wait(std::atomic<uint32_t>* word, uint32_t value, const timespec* timeout = nullptr) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout, nullptr, 0);
}

void WakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Slot& OwnSlot() {
  if (t_slot == nullptr) {
    t_slot = &g_slots[g_next_slot.fetch_add(1, std::memory_order_relaxed) % kSlots];
  }
  return *t_slot;
}

bool IsOdd(uint32_t turns) { return turns % 2 != 0; }

// The orders below are sequentially consistent: either the closing thread sees the entry, or the
// entering one sees the closed gate.
void CountOut(Slot& slot) {
  slot.left.fetch_add(1);
  if (!IsOdd(g_turns.load())) return;
  g_leavings.fetch_add(1);
  WakeAll(&g_leavings);
}

uint64_t NowMs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

bool IsEmpty(const Slot& slot) {
  // In this order: what has left has entered before.
  const uint64_t left = slot.left.load();
  return slot.entered.load() == left;
}

}  // namespace

void UseGate(void (*wanted)()) { g_wanted.store(wanted); }

bool GateHold::IsClosed() { return t_depth == 0 && IsOdd(g_turns.load()); }

bool GateHold::Enter() {
  void (*wanted)() = g_wanted.load(std::memory_order_relaxed);
  if (wanted == nullptr) return false;
  if (t_depth++ > 0) return true;
  Slot& slot = OwnSlot();
  while (true) {
    slot.entered.fetch_add(1);
    const uint32_t turns = g_turns.load();
    if (!IsOdd(turns)) return true;
    CountOut(slot);
    wanted();
    Wait(&g_turns, turns);
  }
}

void GateHold::Leave() {
  if (--t_depth == 0) CountOut(*t_slot);
}

bool CloseGate(uint64_t timeout_ms) {
  const uint64_t begin = NowMs();
  g_turns.fetch_or(1);
  for (Slot& slot : g_slots) {
    while (true) {
      const uint32_t seen = g_leavings.load();
      if (IsEmpty(slot)) break;
      const uint64_t waited = NowMs() - begin;
      if (waited >= timeout_ms) {
        OpenGate();
        return false;
      }
      const uint64_t left = timeout_ms - waited;
      const timespec timeout = {static_cast<time_t>(left / 1000),
                                static_cast<long>(left % 1000 * 1000000)};
      Wait(&g_leavings, seen, &timeout);
    }
  }
  return true;
}

void OpenGate() {
  if (IsOdd(g_turns.load())) g_turns.fetch_add(1);
  WakeAll(&g_turns);
}

void PassGate() {
  if (t_depth == 0) t_depth = 1;
}

uint64_t GatePasses() {
  uint64_t passes = 0;
  for (const Slot& slot : g_slots) passes += slot.entered.load(std::memory_order_relaxed);
  return passes;
}

void AbandonGate() {
  g_wanted.store(nullptr);
  g_turns.store(0);
  t_depth = 0;
}

}  // namespace gpumem::preload
