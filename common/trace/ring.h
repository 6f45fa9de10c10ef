// SPDX-License-Identifier: Apache-2.0
// A bounded queue from one thread to another, without locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpumem::trace {

// One thread puts, and one takes. The slots are the caller's: kSlots of them, the same at each call
// but for a time without unread values.
template <typename T, size_t kSlots>
class Ring {
  static_assert((kSlots & (kSlots - 1)) == 0);

 public:
  static constexpr size_t kSize = kSlots;

  // Drops the value, and counts it, if the queue is full.
  void Put(T* slots, const T& value) {
    const uint64_t end = end_.load(std::memory_order_relaxed);
    if (end - begin_.load(std::memory_order_acquire) == kSlots) {
      dropped_.store(dropped_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      return;
    }
    slots[end % kSlots] = value;
    end_.store(end + 1, std::memory_order_release);
  }

  // Passes the values that are there to `take`, in their order.
  template <typename Take>
  void TakeAll(const T* slots, Take take) {
    uint64_t begin = begin_.load(std::memory_order_relaxed);
    const uint64_t end = end_.load(std::memory_order_acquire);
    while (begin != end) {
      take(slots[begin % kSlots]);
      begin_.store(++begin, std::memory_order_release);
    }
  }

  // Returns the number of values dropped since the last call. For the thread that takes.
  uint64_t NewlyDropped() {
    const uint64_t dropped = dropped_.load(std::memory_order_relaxed);
    const uint64_t newly = dropped - told_;
    told_ = dropped;
    return newly;
  }

 private:
  alignas(64) std::atomic<uint64_t> end_ = 0;    // written by the thread that puts
  std::atomic<uint64_t> dropped_ = 0;            // the same
  alignas(64) std::atomic<uint64_t> begin_ = 0;  // written by the thread that takes
  uint64_t told_ = 0;                            // the same
};

}  // namespace gpumem::trace
