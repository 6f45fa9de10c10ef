// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/work_watch.h"

#include <utility>

#include "common/node_clock.h"

namespace gpumemd {

WorkWatch::WorkWatch(absl::Duration most, std::function<void()> late)
    : most_(most), late_(std::move(late)), thread_([this] { Watch(); }) {}

WorkWatch::~WorkWatch() {
  stops_ = true;
  alarm_.Set(absl::Nanoseconds(1));
  thread_.join();
}

void WorkWatch::Begins() {
  begun_ns_ = gpumem::NodeClockNs();
  LookIn(most_);
}

void WorkWatch::LookIn(absl::Duration time) {
  if (!armed_ && !armed_.exchange(true)) alarm_.Set(time);
}

void WorkWatch::Watch() {
  uint64_t told_ns = 0;  // the begin of the last late work
  while (true) {
    alarm_.Wait();
    if (stops_) return;
    // Before it looks: a work that begins after that sets the alarm.
    armed_ = false;
    const uint64_t begun_ns = begun_ns_;
    if (begun_ns == 0 || begun_ns == told_ns) continue;
    const absl::Duration taken = absl::Nanoseconds(gpumem::NodeClockNs() - begun_ns);
    if (taken < most_) {
      LookIn(most_ - taken);
    } else {
      told_ns = begun_ns;
      late_();
    }
  }
}

}  // namespace gpumemd
