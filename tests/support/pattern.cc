// SPDX-License-Identifier: Apache-2.0
#include "tests/support/pattern.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/mapping/remapping.h"
#include "common/cuda/device_copy.h"

namespace gpumem::testing {
namespace {

constexpr uint64_t kWordsAtOnce = (uint64_t{1} << 20) / sizeof(uint64_t);

// SplitMix64: the word at any place, without those before it.
uint64_t WordAt(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0xD1342543DE82EF95 + (index + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

using WordFn = std::function<uint64_t(uint64_t index)>;

WordFn Words(uint64_t seed) {
  return [seed](uint64_t i) { return WordAt(seed, i); };
}

absl::StatusOr<std::unique_ptr<DeviceCopier>> CopierFor(const Memory& memory) {
  if (memory.backend == Backend::kCuda) return DeviceCopier::ForCuda(memory.device_uuid);
  return DeviceCopier::ForHost();
}

// Calls visit(piece of the memory, its offset, the words that belong there) for all of it.
absl::Status ForEachPiece(
    const Memory& memory, const WordFn& word_at,
    const std::function<absl::Status(uint8_t* piece, uint64_t offset,
                                     const std::vector<uint64_t>& words)>& visit) {
  const uint64_t count = memory.size / sizeof(uint64_t);
  for (uint64_t first = 0; first < count; first += kWordsAtOnce) {
    std::vector<uint64_t> words(std::min(kWordsAtOnce, count - first));
    for (uint64_t i = 0; i < words.size(); ++i) words[i] = word_at(first + i);
    const uint64_t offset = first * sizeof(uint64_t);
    auto status = visit(static_cast<uint8_t*>(memory.data) + offset, offset, words);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckWords(const Memory& memory, const WordFn& word_at) {
  auto copier = CopierFor(memory);
  if (!copier.ok()) return copier.status();
  return ForEachPiece(
      memory, word_at,
      [&](uint8_t* piece, uint64_t offset, const std::vector<uint64_t>& expected) -> absl::Status {
        std::vector<uint64_t> found(expected.size());
        const uint64_t bytes = found.size() * sizeof(uint64_t);
        auto status = (*copier)->CopyOut(found.data(), piece, bytes);
        if (!status.ok()) return status;
        if (std::memcmp(found.data(), expected.data(), bytes) == 0) return absl::OkStatus();
        const auto [is, should_be] = std::mismatch(found.begin(), found.end(), expected.begin());
        return absl::DataLossError(absl::StrCat(
            "at offset ", offset + static_cast<uint64_t>(is - found.begin()) * sizeof(uint64_t),
            " there is ", absl::Hex(*is, absl::kZeroPad16), ", not ",
            absl::Hex(*should_be, absl::kZeroPad16)));
      });
}

}  // namespace

Memory MemoryOf(const Segment& segment) {
  const bool cuda = segment.valid() && segment.backend() == Backend::kCuda;
  return {.backend = segment.backend(),
          .device_uuid = cuda ? internal::Remapping::GpuOf(segment) : segment.device_uuid(),
          .data = segment.data(),
          .size = segment.size()};
}

absl::Status Fill(const Memory& memory, uint64_t seed) {
  auto copier = CopierFor(memory);
  if (!copier.ok()) return copier.status();
  return ForEachPiece(
      memory, Words(seed), [&](uint8_t* piece, uint64_t, const std::vector<uint64_t>& words) {
        return (*copier)->CopyIn(piece, words.data(), words.size() * sizeof(uint64_t));
      });
}

absl::Status Check(const Memory& memory, uint64_t seed) { return CheckWords(memory, Words(seed)); }

absl::Status CheckZero(const Memory& memory) {
  return CheckWords(memory, [](uint64_t) { return uint64_t{0}; });
}

}  // namespace gpumem::testing
