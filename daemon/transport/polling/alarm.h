// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumemd {

// A timer on which one thread waits. To set one costs some 2 µs in a virtual machine, and 10 µs if
// the time is shorter than that to the kernel's next tick.
class Alarm {
 public:
  Alarm() : timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {}
  // `after` is positive.
  void Set(absl::Duration after) const {
    itimerspec spec{};
    spec.it_value = absl::ToTimespec(after);
    timerfd_settime(timer_.get(), 0, &spec, nullptr);
  }
  void Wait() const {
    uint64_t times;
    // An error here would be a defect; the caller then looks in vain.
    if (read(timer_.get(), &times, sizeof(times)) < 0) absl::SleepFor(absl::Milliseconds(10));
  }

 private:
  const gpumem::UniqueFd timer_;
};

}  // namespace gpumemd
