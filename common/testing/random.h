// SPDX-License-Identifier: Apache-2.0
// Random numbers from a seed that are the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpumem::testing {

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Returns a number below `bound`, which is above 0.
  size_t Below(size_t bound) { return static_cast<size_t>(Next() % bound); }
  // True once in `n` times.
  bool OneIn(size_t n) { return Below(n) == 0; }
  // Returns one of `values`, of which there are some.
  template <typename T>
  const T& Of(const std::vector<T>& values) {
    return values[Below(values.size())];
  }
  // Returns up to `most` bytes.
  std::string Bytes(size_t most) {
    std::string bytes(Below(most + 1), '\0');
    for (char& c : bytes) c = static_cast<char>(Next());
    return bytes;
  }

 private:
  uint64_t state_;
};

}  // namespace gpumem::testing
