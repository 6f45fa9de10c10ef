// SPDX-License-Identifier: Apache-2.0
// Maps a block's address to its chunk: a hash table that is read without a lock.
//
// Insert and Erase require one lock. Find may run concurrently, and finds addresses whose insertion
// the reader knows of (it was told the address afterwards). A table that becomes too small is
// replaced. Insert returns the old one; destroy it when no thread reads it any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/pool/block_heap.h"
#include "client/pool/size_class.h"

namespace gpumem::internal {

class PointerTable {
 public:
  class Table;
  PointerTable() { table_.store(new Table(kFirst), std::memory_order_release); }
  ~PointerTable() { delete table_.load(std::memory_order_relaxed); }
  PointerTable(const PointerTable&) = delete;
  PointerTable& operator=(const PointerTable&) = delete;

  // Null: no block begins there.
  Chunk* Find(uintptr_t at) const {
    if (at == kEmpty || at == kGone) return nullptr;
    const Table& table = *table_.load(std::memory_order_acquire);
    for (size_t i = table.Home(at);; i = table.Next(i)) {
      const uintptr_t key = table.slots[i].key.load(std::memory_order_acquire);
      if (key == at) return table.slots[i].chunk.load(std::memory_order_relaxed);
      if (key == kEmpty) return nullptr;
    }
  }

  // Requires that the address is not in it.
  std::unique_ptr<Table> Insert(uintptr_t at, Chunk* chunk) {
    Table* table = table_.load(std::memory_order_relaxed);
    std::unique_ptr<Table> old;
    if (4 * (used_ + 1) > 3 * table->slots.size()) {
      old.reset(table);
      table = Rebuilt(*old);
      table_.store(table, std::memory_order_release);
    }
    Put(*table, at, chunk);
    ++live_;
    return old;
  }

  void Erase(uintptr_t at) {
    Table& table = *table_.load(std::memory_order_relaxed);
    size_t i = table.Home(at);
    while (table.slots[i].key.load(std::memory_order_relaxed) != at) i = table.Next(i);
    table.slots[i].key.store(kGone, std::memory_order_release);
    --live_;
  }

  size_t size() const { return live_; }

  class Table {
   public:
    explicit Table(size_t size) : slots(size) {}
    size_t Home(uintptr_t at) const {
      return (at / kBlockAlignment * 0x9E3779B97F4A7C15u >> 20) & (slots.size() - 1);
    }
    size_t Next(size_t i) const { return (i + 1) & (slots.size() - 1); }
    struct Slot {
      std::atomic<uintptr_t> key{kEmpty};
      std::atomic<Chunk*> chunk{nullptr};
    };
    std::vector<Slot> slots;  // a power of two
  };

 private:
  static constexpr uintptr_t kEmpty = 0, kGone = 1;  // no block's address
  static constexpr size_t kFirst = 64;

  void Put(Table& table, uintptr_t at, Chunk* chunk) {
    size_t i = table.Home(at);
    uintptr_t key = table.slots[i].key.load(std::memory_order_relaxed);
    while (key != kEmpty && key != kGone) {
      i = table.Next(i);
      key = table.slots[i].key.load(std::memory_order_relaxed);
    }
    if (key == kEmpty) ++used_;
    table.slots[i].chunk.store(chunk, std::memory_order_relaxed);
    table.slots[i].key.store(at, std::memory_order_release);
  }

  Table* Rebuilt(const Table& old) {
    size_t size = kFirst;
    while (size < 4 * (live_ + 1)) size *= 2;
    auto* table = new Table(size);
    used_ = 0;
    for (const Table::Slot& slot : old.slots) {
      const uintptr_t key = slot.key.load(std::memory_order_relaxed);
      if (key != kEmpty && key != kGone)
        Put(*table, key, slot.chunk.load(std::memory_order_relaxed));
    }
    return table;
  }

  std::atomic<Table*> table_{nullptr};
  // Apart from what readers read.
  alignas(128) size_t live_ = 0;
  size_t used_ = 0;  // slots that are not empty
};

}  // namespace gpumem::internal
