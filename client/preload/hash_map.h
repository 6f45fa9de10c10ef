// SPDX-License-Identifier: Apache-2.0
// A map from addresses and handles to plain records. By hand, because std::unordered_map needs the
// C++ runtime, and its node for each entry costs a malloc() in the path of each cuMemAlloc().
#pragma once

#include <stdint.h>
#include <stdlib.h>

namespace gpumem::preload {

// Open addressing with linear probing and deletion by shifting back. Keys are not 0. `Value` can be
// copied as bytes. Not thread-safe. Constant-initialised, and never destroyed: other threads may
// still allocate while the process exits.
template <typename Value>
class HashMap {
 public:
  constexpr HashMap() = default;

  // Adds or replaces. False if the C library has no memory.
  bool Put(uint64_t key, const Value& value) {
    if ((size_ + 1) * 4 > capacity_ * 3 && !Grow()) return false;
    size_t at = Find(key);
    if (slots_[at].key == 0) ++size_;
    slots_[at] = {key, value};
    return true;
  }

  // Returns the record until the next change, or null.
  Value* Get(uint64_t key) {
    if (capacity_ == 0) return nullptr;
    Slot& slot = slots_[Find(key)];
    return slot.key == 0 ? nullptr : &slot.value;
  }

  // True if it was there; `value` gets what was removed.
  bool Take(uint64_t key, Value* value) {
    if (capacity_ == 0) return false;
    size_t at = Find(key);
    if (slots_[at].key == 0) return false;
    *value = slots_[at].value;
    Erase(at);
    return true;
  }

  // Removes the entries for which `condition(key, value)` is true. It may be called twice for an
  // entry that it keeps, as the end of the array continues at its beginning.
  template <typename Condition>
  void RemoveIf(Condition condition) {
    for (size_t at = 0; at < capacity_;) {
      if (slots_[at].key != 0 && condition(slots_[at].key, slots_[at].value)) {
        Erase(at);  // another entry may be here now
      } else {
        ++at;
      }
    }
  }

  template <typename Visitor>
  void ForEach(Visitor visitor) {
    for (size_t at = 0; at < capacity_; ++at) {
      if (slots_[at].key != 0) visitor(slots_[at].key, slots_[at].value);
    }
  }

  size_t size() const { return size_; }

  // Forgets all, and leaks the array: for a child after fork().
  void Abandon() {
    slots_ = nullptr;
    capacity_ = size_ = 0;
  }

 private:
  struct Slot {
    uint64_t key;
    Value value;
  };

  size_t Home(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 20) & (capacity_ - 1);
  }

  size_t Find(uint64_t key) const {
    size_t at = Home(key);
    while (slots_[at].key != 0 && slots_[at].key != key) at = (at + 1) & (capacity_ - 1);
    return at;
  }

  void Erase(size_t hole) {
    --size_;
    slots_[hole].key = 0;
    for (size_t at = (hole + 1) & (capacity_ - 1); slots_[at].key != 0;
         at = (at + 1) & (capacity_ - 1)) {
      // An entry may move back to the hole only if its home is not between the two.
      size_t home = Home(slots_[at].key);
      if (((at - home) & (capacity_ - 1)) < ((at - hole) & (capacity_ - 1))) continue;
      slots_[hole] = slots_[at];
      slots_[at].key = 0;
      hole = at;
    }
  }

  bool Grow() {
    size_t capacity = capacity_ == 0 ? 64 : capacity_ * 2;
    Slot* slots = static_cast<Slot*>(calloc(capacity, sizeof(Slot)));
    if (slots == nullptr) return false;
    Slot* old = slots_;
    size_t old_capacity = capacity_;
    slots_ = slots;
    capacity_ = capacity;
    for (size_t i = 0; i < old_capacity; ++i) {
      if (old[i].key != 0) slots_[Find(old[i].key)] = old[i];
    }
    free(old);
    return true;
  }

  Slot* slots_ = nullptr;
  size_t capacity_ = 0;  // 0 or a power of two
  size_t size_ = 0;
};

}  // namespace gpumem::preload
