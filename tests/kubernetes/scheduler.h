// SPDX-License-Identifier: Apache-2.0
// Pods of a node in tests, and a scheduler that makes random ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gpumem::testing {

inline constexpr int kGpus = 2;
inline constexpr uint64_t kGpuMib = 1024;

// A pod with a separate claim, whose name is "claim-NUMBER".
struct TestPod {
  int number = 0;
  std::map<int, uint64_t> mib;  // by GPU

  std::string uid() const { return absl::StrFormat("%08d-2a99-45ad-af94-d91eb81a87e9", number); }
  std::string tenant() const { return absl::StrCat("pod-", uid()); }
};

// A scheduler that never gives more of a GPU than it has.
class Scheduler {
 public:
  explicit Scheduler(uint64_t seed) : random_(seed) {}
  size_t Below(size_t n) { return random_() % n; }
  int made() const { return made_; }
  const std::vector<TestPod>& pods() const { return pods_; }

  void Change() {
    std::erase_if(pods_, [&](const TestPod&) { return Below(2) == 0; });
    for (size_t n = 10 + Below(20); n > 0; --n) {
      TestPod pod{.number = made_ + 1};
      for (size_t gpus = 1 + Below(kGpus); gpus > 0; --gpus) {
        const int gpu = static_cast<int>(Below(kGpus));
        const uint64_t room = Room(gpu);
        if (room > 0 && !pod.mib.contains(gpu))
          pod.mib[gpu] = 1 + Below(std::min<uint64_t>(room, 300));
      }
      if (pod.mib.empty()) continue;
      ++made_;
      pods_.push_back(pod);
    }
  }

 private:
  uint64_t Room(int gpu) const {
    uint64_t room = kGpuMib;
    for (const TestPod& pod : pods_) {
      const auto mib = pod.mib.find(gpu);
      if (mib != pod.mib.end()) room -= mib->second;
    }
    return room;
  }
  std::mt19937_64 random_;
  std::vector<TestPod> pods_;
  int made_ = 0;
};

}  // namespace gpumem::testing
