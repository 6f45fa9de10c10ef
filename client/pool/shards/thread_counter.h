// SPDX-License-Identifier: Apache-2.0
// A number that many threads raise and lower, without writing to one cache line.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpumem::internal {

// Thread-safe. A thread lowers it by what the thread itself has added, later.
class ThreadCounter {
 public:
  void Add(uint64_t more) { Part().fetch_add(more); }
  void Subtract(uint64_t less) { Part().fetch_sub(less); }
  // True if what any thread had added before this call has been subtracted.
  bool IsZero() const {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const Aligned& part) { return part.value.load() == 0; });
  }

 private:
  static constexpr size_t kParts = 16;
  struct alignas(128) Aligned {
    std::atomic<uint64_t> value{0};
  };

  std::atomic<uint64_t>& Part() {
    static std::atomic<size_t> threads{0};
    thread_local const size_t part = threads.fetch_add(1, std::memory_order_relaxed) % kParts;
    return parts_[part].value;
  }

  std::array<Aligned, kParts> parts_;
};

}  // namespace gpumem::internal
