// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumemd::simulation {

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

 private:
  uint64_t state_;
};

// Adds a value to a digest of a history.
inline uint64_t Mix(uint64_t digest, uint64_t value) {
  return Random(digest ^ (value * 0xff51afd7ed558ccd)).Next();
}

}  // namespace gpumemd::simulation
