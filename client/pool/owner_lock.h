// SPDX-License-Identifier: Apache-2.0
// A lock that one thread takes often and others rarely. The owner makes no atomic read-modify-write
// and no fence, which together cost more than the rest of a thread cache. Other threads pay for
// both sides: they make the kernel run a fence on every thread of this process (membarrier(2),
// MEMBARRIER_CMD_PRIVATE_EXPEDITED), some microseconds. If the kernel refuses that, the owner makes
// fences itself.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace gpumem::internal {

class OwnerLock {
 public:
  OwnerLock() : fences_(!OthersCanFence()) {}
  OwnerLock(const OwnerLock&) = delete;
  OwnerLock& operator=(const OwnerLock&) = delete;

  // For the owner. Must not be held during a call that may block.
  void lock() {
    while (true) {
      if (fences_) {
        owner_in_.exchange(true, std::memory_order_seq_cst);
      } else {
        owner_in_.store(true, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      // Either this thread sees that another is coming, or that thread sees the owner inside.
      if (!other_in_.load(std::memory_order_seq_cst)) return;
      owner_in_.store(false, std::memory_order_release);
      while (other_in_.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
  }
  void unlock() { owner_in_.store(false, std::memory_order_release); }

  // Holds several locks for any thread, also against their owners. All visitors must name the locks
  // in the same order.
  class Visit {
   public:
    explicit Visit(std::vector<OwnerLock*> locks);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    const std::vector<OwnerLock*> locks_;
  };

 private:
  // True if visitors can make the owners' fences in this process.
  static bool OthersCanFence();

  std::atomic<bool> owner_in_{false};
  std::atomic<bool> other_in_{false};
  const bool fences_;
};

}  // namespace gpumem::internal
