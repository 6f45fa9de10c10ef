// SPDX-License-Identifier: Apache-2.0
// How many threads should serve gRPC's callback queue: each thread looks at the load on itself.
#pragma once

#include "absl/time/time.h"

namespace gpumemd {

// Of one thread. Not thread-safe.
class PollingLoad {
 public:
  enum class Advice { kStay, kCallAnother, kLeave };

  // Starts over.
  void Start(absl::Time now, absl::Duration used) {
    since_ = now;
    used_ = used;
  }
  // True if Look() is due.
  bool Due(absl::Time now) const { return now - since_ >= kWindow; }
  // `used`: the processor time that the thread has used so far, except for spinning. Both never
  // decrease.
  Advice Look(absl::Time now, absl::Duration used) {
    const double share = absl::FDivDuration(used - used_, now - since_);
    Start(now, used);
    if (share > kBusy) return Advice::kCallAnother;
    return share < kIdle ? Advice::kLeave : Advice::kStay;
  }

 private:
  static constexpr absl::Duration kWindow = absl::Milliseconds(2);
  // Two threads that share the work of a busy one are above kIdle.
  static constexpr double kBusy = 0.8;
  static constexpr double kIdle = 0.3;

  absl::Time since_ = absl::InfinitePast();
  absl::Duration used_;
};

}  // namespace gpumemd
