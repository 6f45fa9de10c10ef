// SPDX-License-Identifier: Apache-2.0
// One tenant's segments on one device that are kept for reuse: found by size for reuse, and by age
// for giving up. Holds ids only; the ledger owns the segments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "daemon/core/ids.h"
#include "daemon/device/device.h"

namespace gpumemd {

class RetainedPool {
 public:
  // Is called with bytes() before and after each change.
  using Changed = std::function<void(uint64_t before, uint64_t after)>;
  void OnChange(Changed changed) { changed_ = std::move(changed); }

  void Add(SegmentId id, Kind kind, uint64_t bytes) { PutBack({id, next_++}, kind, bytes); }

  struct Taken {
    SegmentId id{};
    uint64_t age = 0;  // the lower, the older
  };
  // Takes a segment of exactly this kind and size.
  std::optional<Taken> TakeFit(Kind kind, uint64_t bytes) {
    auto it = by_size_.find({kind, bytes});
    if (it == by_size_.end()) return std::nullopt;
    const Taken taken{it->second.begin()->first, it->second.begin()->second};
    Remove(taken.id, kind, bytes);
    return taken;
  }
  // Returns a segment to its place by age: it was not used.
  void PutBack(const Taken& taken, Kind kind, uint64_t bytes) {
    by_size_[{kind, bytes}].emplace(taken.id, taken.age);
    by_age_.emplace(taken.age, Entry{taken.id, kind, bytes});
    SetBytes(bytes_ + bytes);
  }

  // Takes the one that was retained first.
  std::optional<SegmentId> TakeOldest() {
    if (by_age_.empty()) return std::nullopt;
    Entry oldest = by_age_.begin()->second;
    Remove(oldest.id, oldest.kind, oldest.bytes);
    return oldest.id;
  }

  // Takes this segment. False if it is not retained.
  bool Take(SegmentId id, Kind kind, uint64_t bytes) {
    if (!Contains(id, kind, bytes)) return false;
    Remove(id, kind, bytes);
    return true;
  }

  bool Contains(SegmentId id, Kind kind, uint64_t bytes) const {
    auto it = by_size_.find({kind, bytes});
    return it != by_size_.end() && it->second.count(id) > 0;
  }

  // Returns how many segments of exactly this kind and size there are.
  size_t Fits(Kind kind, uint64_t bytes) const {
    auto it = by_size_.find({kind, bytes});
    return it == by_size_.end() ? 0 : it->second.size();
  }

  bool empty() const { return by_age_.empty(); }
  size_t size() const { return by_age_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    SegmentId id;
    Kind kind;
    uint64_t bytes;
  };

  void Remove(SegmentId id, Kind kind, uint64_t bytes) {
    auto it = by_size_.find({kind, bytes});
    auto entry = it->second.find(id);
    by_age_.erase(entry->second);
    it->second.erase(entry);
    if (it->second.empty()) by_size_.erase(it);
    SetBytes(bytes_ - bytes);
  }
  void SetBytes(uint64_t bytes) {
    const uint64_t before = std::exchange(bytes_, bytes);
    if (changed_ != nullptr) changed_(before, bytes);
  }

  uint64_t next_ = 0;
  uint64_t bytes_ = 0;
  Changed changed_;
  std::map<uint64_t, Entry> by_age_;
  std::map<std::pair<Kind, uint64_t>, std::map<SegmentId, uint64_t>> by_size_;
};

}  // namespace gpumemd
