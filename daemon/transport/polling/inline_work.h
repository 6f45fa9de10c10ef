// SPDX-License-Identifier: Apache-2.0
// Work that may block, on the thread that serves the callback queue, where that is quicker than to
// hand it to another thread: that takes two context switches.
//
// It is quicker while such work mostly is short. Other calls may have to wait for it, if for little
// more than kPatience. So it is done only while one client alone makes calls, and one after the
// other.
#pragma once

#include <bit>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace gpumemd {

// Not thread-safe.
class InlinePolicy {
 public:
  static constexpr absl::Duration kShort = absl::Microseconds(500);

  // True if most of the last works were short, and did not wait for one another, and none is under
  // way on such a thread: works that block must not take all of them.
  bool Allows(absl::Time now) {
    if (runs_) return false;
    if (now - last_end_ < kQueued) crowded_until_ = now + kCrowded;
    return std::popcount(short_) > 6 && now >= crowded_until_;
  }
  // Records that a work begins on this thread. Ended() follows.
  void Begins() { runs_ = true; }
  // Records a work on this thread, or on a worker.
  void Ended(absl::Time now, absl::Duration took, bool on_worker) {
    if (!on_worker) {
      last_end_ = now;
      runs_ = false;
    }
    short_ = static_cast<uint8_t>(short_ << 1 | (took <= kShort ? 1 : 0));
  }

 private:
  // A work that comes so soon after another has waited for it.
  static constexpr absl::Duration kQueued = absl::Microseconds(30);
  static constexpr absl::Duration kCrowded = absl::Milliseconds(200);

  bool runs_ = false;
  uint8_t short_ = 0xff;  // the last works, one bit each
  absl::Time last_end_ = absl::InfinitePast();
  absl::Time crowded_until_ = absl::InfinitePast();
};

// Runs `work` on this thread and returns true. Or returns false: give it to a worker, by
// RunOnWorker(). Thread-safe.
bool RunInline(absl::FunctionRef<void()> work);
// Runs `work` on this thread, which is a worker.
void RunOnWorker(absl::FunctionRef<void()> work);

}  // namespace gpumemd
