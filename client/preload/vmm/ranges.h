// SPDX-License-Identifier: Apache-2.0
// A sorted list of ranges of addresses, by hand for the reasons of hash_map.h.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace gpumem::preload {

// A list in malloc()ed memory. `Item` can be copied as bytes. Never freed: other threads may use it
// while the process exits.
template <typename Item>
struct List {
  Item* items = nullptr;
  size_t count = 0;
  size_t capacity = 0;

  bool MakeRoom() {
    if (count < capacity) return true;
    size_t more = capacity == 0 ? 16 : capacity * 2;
    Item* moved = static_cast<Item*>(realloc(items, more * sizeof(Item)));
    if (moved == nullptr) return false;
    items = moved;
    capacity = more;
    return true;
  }
};

// Items have an `address` and a `size`, and do not overlap.
template <typename Item>
struct Ranges : List<Item> {
  using List<Item>::count;
  using List<Item>::items;

  // Returns the place of the first item that ends behind an address.
  size_t Find(uint64_t address) const {
    size_t low = 0;
    size_t high = count;
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (items[middle].address + items[middle].size <= address) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Returns the item that contains an address, or null.
  Item* At(uint64_t address) {
    const size_t at = Find(address);
    return at < count && items[at].address <= address ? &items[at] : nullptr;
  }

  // Adds an item. False without memory.
  bool Add(const Item& item) {
    if (!List<Item>::MakeRoom()) return false;
    const size_t at = Find(item.address);
    memmove(items + at + 1, items + at, (count - at) * sizeof(Item));
    items[at] = item;
    ++count;
    return true;
  }

  // Calls `visitor` for each item that begins before `address + size` and ends behind `address`.
  template <typename Visitor>
  void ForEach(uint64_t address, uint64_t size, Visitor visitor) {
    for (size_t at = Find(address); at < count && items[at].address < address + size; ++at) {
      visitor(items[at]);
    }
  }

  // Removes these, after a call of `visitor` for each.
  template <typename Visitor>
  void Remove(uint64_t address, uint64_t size, Visitor visitor) {
    const size_t first = Find(address);
    size_t last = first;
    for (; last < count && items[last].address < address + size; ++last) visitor(items[last]);
    memmove(items + first, items + last, (count - last) * sizeof(Item));
    count -= last - first;
  }
};

}  // namespace gpumem::preload
