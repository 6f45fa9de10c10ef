// SPDX-License-Identifier: Apache-2.0
// Counts the free bytes of a device of host memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace gpumemd {

// Thread-safe. Shared by a device and its allocations.
class FreeBytes {
 public:
  explicit FreeBytes(uint64_t capacity_bytes) : bytes_(capacity_bytes) {}

  uint64_t get() const { return bytes_.load(); }
  void Give(uint64_t bytes) { bytes_.fetch_add(bytes); }
  // Takes `bytes`. False if fewer are free.
  bool Take(uint64_t bytes) {
    uint64_t free = bytes_.load();
    do {
      if (bytes > free) return false;
    } while (!bytes_.compare_exchange_weak(free, free - bytes));
    return true;
  }

 private:
  std::atomic<uint64_t> bytes_;
};

// Bytes taken from a device; the destructor returns them.
class Share {
 public:
  // Returns nothing if the device has less than `bytes` left.
  static std::optional<Share> Take(std::shared_ptr<FreeBytes> from, uint64_t bytes) {
    if (!from->Take(bytes)) return std::nullopt;
    return Share(std::move(from), bytes);
  }
  Share(Share&&) = default;
  Share& operator=(Share&&) = delete;
  ~Share() {
    if (from_ != nullptr) from_->Give(bytes_);
  }

 private:
  Share(std::shared_ptr<FreeBytes> from, uint64_t bytes) : from_(std::move(from)), bytes_(bytes) {}

  std::shared_ptr<FreeBytes> from_;  // null after a move
  uint64_t bytes_;
};

}  // namespace gpumemd
