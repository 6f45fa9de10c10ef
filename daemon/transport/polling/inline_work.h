// SPDX-License-Identifier: Apache-2.0
// Work that may block, on the thread that serves the callback queue, where that is quicker than to
// hand it to another thread: that takes two context switches.
//
// It is quicker while such work mostly is short. Other calls may have to wait for it: for little
// more than LongWork::kPatience, or for 10 to 20 ms if no other client has made a call for 0.2 s.
// Once one has waited, workers do such work for a while.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace gpumemd {

// Not thread-safe.
class InlinePolicy {
 public:
  static constexpr absl::Duration kShort = absl::Microseconds(500);

  // True if most of the last works were short, no call has waited for one lately, and none is under
  // way on such a thread. Works that block must not take all of these threads.
  // `held_up`: grows with each call of another client that has waited for one.
  bool Allows(absl::Time now, uint64_t held_up) {
    if (runs_) return false;
    if (held_up != std::exchange(held_up_, held_up)) crowded_until_ = now + kCrowded;
    return std::popcount(short_) > 6 && now >= crowded_until_;
  }
  // Records that a work begins on this thread. Ended() follows.
  void Begins() { runs_ = true; }
  // Records a work on this thread, or on a worker.
  void Ended(absl::Duration took, bool on_worker) {
    if (!on_worker) runs_ = false;
    short_ = static_cast<uint8_t>(short_ << 1 | (took <= kShort ? 1 : 0));
  }

 private:
  static constexpr absl::Duration kCrowded = absl::Milliseconds(200);

  bool runs_ = false;
  uint8_t short_ = 0xff;  // the last works, one bit each
  uint64_t held_up_ = 0;
  absl::Time crowded_until_ = absl::InfinitePast();
};

// Runs `work` on this thread and returns true. Or returns false: give it to a worker, by
// RunOnWorker(). Thread-safe.
bool RunInline(absl::FunctionRef<void()> work);
// Runs `work` on this thread, which is a worker.
void RunOnWorker(absl::FunctionRef<void()> work);

}  // namespace gpumemd
