// SPDX-License-Identifier: Apache-2.0
// The last tenants that operators made and that have ended, with what they used: for questions that
// come after the end of a job. A bounded number of them, each found in constant time.
//
// Tenants of sessions are left out: a user could fill the list with them. What they used is in the
// figures of the tenants above them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ledger/inspect/views.h"

namespace gpumemd {

// Not thread-safe.
class EndedTenants {
 public:
  static constexpr size_t kMost = 1000;
  static constexpr size_t kMostOfName = 16;  // that one answer has

  void Add(EndedTenantView ended) {
    if (ended_.size() == kMost) {
      const auto oldest = by_name_.find(ended_.front().name);
      oldest->second.pop_front();
      if (oldest->second.empty()) by_name_.erase(oldest);
      ended_.pop_front();
      ++first_;
    }
    by_name_[ended.name].push_back(first_ + ended_.size());
    ended_.push_back(std::move(ended));
  }

  // Returns the last ones of this name, the newest first.
  std::vector<EndedTenantView> Find(absl::string_view name) const {
    std::vector<EndedTenantView> found;
    const auto places = by_name_.find(name);
    if (places == by_name_.end()) return found;
    for (auto place = places->second.rbegin();
         place != places->second.rend() && found.size() < kMostOfName; ++place) {
      found.push_back(ended_[*place - first_]);
    }
    return found;
  }

  size_t size() const { return ended_.size(); }

 private:
  std::deque<EndedTenantView> ended_;
  uint64_t first_ = 0;                                              // the number of the oldest
  absl::flat_hash_map<std::string, std::deque<uint64_t>> by_name_;  // their numbers
};

}  // namespace gpumemd
