// SPDX-License-Identifier: Apache-2.0
// Sizes of blocks. Small ones are rounded up to one of 72 classes, at most an eighth apart, so that
// any block of a class serves any request of it. Larger ones are rounded up to a multiple of the
// alignment.
#pragma once

#include <bit>
#include <cstdint>

namespace gpumem::internal {

inline constexpr uint64_t kBlockAlignment = 512;
inline constexpr uint64_t kMaxSmallBytes = uint64_t{1} << 20;
inline constexpr int kSizeClasses = 72;
// The size of the ranges that small blocks are cut from.
inline constexpr uint64_t kSmallRange = uint64_t{2} << 20;

// True if a block of that many bytes comes from the heap of small blocks.
constexpr bool IsSmall(uint64_t bytes) { return bytes <= kMaxSmallBytes; }

// For 1 to kMaxSmallBytes. Each multiple of 512 up to 8 KiB is a class; then eight per doubling.
constexpr int SizeClassOf(uint64_t bytes) {
  const uint64_t last = (bytes - 1) / kBlockAlignment;
  if (last < 16) return static_cast<int>(last);
  const int shift = std::bit_width(last) - 4;
  return 8 + 8 * shift + static_cast<int>(last >> shift) - 8;
}

constexpr uint64_t ClassBytes(int size_class) {
  if (size_class < 16) return (static_cast<uint64_t>(size_class) + 1) * kBlockAlignment;
  const int shift = (size_class - 8) / 8;
  return (static_cast<uint64_t>(size_class % 8 + 9) << shift) * kBlockAlignment;
}

constexpr uint64_t RoundedBytes(uint64_t bytes) {
  if (bytes <= kMaxSmallBytes) return ClassBytes(SizeClassOf(bytes));
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

}  // namespace gpumem::internal
