// A lock that one thread takes all the time, and others hardly ever: its owner pays no atomic
// read-modify-write and no fence, which together cost more than all else that a thread cache does.
// Others pay for both sides: they have the kernel run a fence on every thread of this process
// (membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED), some microseconds. Where the kernel refuses
// that, the owner makes its own fences.
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

  // Of the owner. Not to be held while calling anything that may block.
  void lock() {
    while (true) {
      if (fences_) {
        owner_in_.exchange(true, std::memory_order_seq_cst);
      } else {
        owner_in_.store(true, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      // Either this sees that another is coming, or that one sees the owner inside.
      if (!other_in_.load(std::memory_order_seq_cst)) return;
      owner_in_.store(false, std::memory_order_release);
      while (other_in_.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
  }
  void unlock() { owner_in_.store(false, std::memory_order_release); }

  // Holds several of them for any thread; for their owners, too, where these do not hold them. All
  // visitors name them in the same order.
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
  // Whether visitors can make the owners' fences in this process.
  static bool OthersCanFence();

  std::atomic<bool> owner_in_{false};
  std::atomic<bool> other_in_{false};
  const bool fences_;
};

}  // namespace gpumem::internal
