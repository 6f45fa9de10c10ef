// SPDX-License-Identifier: Apache-2.0
// The sessions that may be asked to suspend, on each device, in the order in which they are asked.
// Pure data, for SwapPolicy (swap_policy.h).
//
// The lowest priority is first, then the longest idle, then the one with most bytes. A session
// whose time has not come is not in that order. It waits in another one, by time. So a look at the
// first candidates costs the same however many sessions there are, and each change costs the
// logarithm of their number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"

namespace gpumemd {

struct SwapCandidate {
  int32_t priority = 0;  // of its tenant
  absl::Time active;     // when it was last active
  uint64_t bytes = 0;    // that it maps on the device
  SessionId session{};

  bool operator==(const SwapCandidate&) const = default;
  bool operator<(const SwapCandidate& other) const {
    if (priority != other.priority) return priority < other.priority;
    if (active != other.active) return active < other.active;
    if (bytes != other.bytes) return bytes > other.bytes;
    return session < other.session;
  }
};

class SwapIndex {
 public:
  explicit SwapIndex(size_t devices) : devices_(devices) {}

  // Sets the session's entry on the device. It is a candidate from `ready` on.
  void Set(size_t device, const SwapCandidate& entry, absl::Time ready);
  // Removes the session from all devices.
  void Remove(SessionId session);
  // Makes entries candidates whose time has come, at most `most` on each device. True if any were.
  bool Ripen(absl::Time now, size_t most);
  // Returns when the next entry can become a candidate; infinite future if none can.
  absl::Time NextReady() const;

  // Valid until the next change.
  const absl::btree_set<SwapCandidate>& CandidatesOn(size_t device) const {
    return devices_[device].candidates;
  }
  bool empty() const;

 private:
  struct Entry {
    SwapCandidate candidate;
    absl::Time ready;
    bool ripe = false;
  };
  struct OnDevice {
    absl::flat_hash_map<SessionId, Entry> entries;
    absl::btree_set<SwapCandidate> candidates;
    absl::btree_set<std::pair<absl::Time, SessionId>> later;
  };
  static void Remove(OnDevice& on, SessionId session);

  std::vector<OnDevice> devices_;
};

}  // namespace gpumemd
