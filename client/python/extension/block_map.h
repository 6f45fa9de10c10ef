// SPDX-License-Identifier: Apache-2.0
// Maps a block's address to a value: a hash table with open addressing. CuPy's pool, with which
// this one's is compared, pays for no division and no node. std::unordered_map pays for both, a
// third of an allocation's time here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace gpumem::python {

// Not thread-safe. Addresses are not null.
template <typename Value>
class BlockMap {
 public:
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }

  // Inserts, or replaces the block's present value.
  void Put(void* block, const Value& value) {
    if (2 * (count_ + 1) > slots_.size()) Grow();
    Slot& slot = slots_[Find(block)];
    if (slot.block == nullptr) ++count_;
    slot = {block, value};
  }

  // Removes and returns the block's value; nullopt if it has none.
  std::optional<Value> Take(void* block) {
    size_t hole = Find(block);
    if (slots_[hole].block == nullptr) return std::nullopt;
    const Value value = slots_[hole].value;
    // Moves up entries behind it that a search would no longer find (Knuth, volume 3, 6.4,
    // algorithm R).
    for (size_t i = Next(hole); slots_[i].block != nullptr; i = Next(i)) {
      if (((i - Home(slots_[i].block)) & Mask()) < ((i - hole) & Mask())) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole] = {};
    --count_;
    return value;
  }

 private:
  struct Slot {
    void* block = nullptr;
    Value value{};
  };

  size_t Mask() const { return slots_.size() - 1; }
  size_t Next(size_t i) const { return (i + 1) & Mask(); }
  // Blocks begin at multiples of 512; all bits contribute to the upper half of the product.
  size_t Home(void* block) const {
    return (reinterpret_cast<uintptr_t>(block) / 512 * 0x9E3779B97F4A7C15u >> 32) & Mask();
  }
  // Returns the slot that holds the block, or the one that would.
  size_t Find(void* block) const {
    size_t i = Home(block);
    while (slots_[i].block != nullptr && slots_[i].block != block) i = Next(i);
    return i;
  }
  void Grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.block != nullptr) slots_[Find(slot.block)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // a power of two, never more than half full
  size_t count_ = 0;
};

}  // namespace gpumem::python
