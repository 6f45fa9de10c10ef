// SPDX-License-Identifier: Apache-2.0
// Tells when a work takes longer than it should.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "daemon/transport/polling/alarm.h"

namespace gpumemd {

// Sets its alarm once for all works that begin until it goes off, so that works in a row cost one
// setting and one wake-up for each `most` of time. Sleeps while there are none.
class WorkWatch {
 public:
  // `late` is called on a thread of this class once a work has taken `most`, once for each work.
  WorkWatch(absl::Duration most, std::function<void()> late);
  ~WorkWatch();
  WorkWatch(const WorkWatch&) = delete;
  WorkWatch& operator=(const WorkWatch&) = delete;

  // One work at a time. Thread-safe.
  void Begins();
  void Ends() { begun_ns_ = 0; }

 private:
  void Watch();
  // Has the thread look after this time.
  void LookIn(absl::Duration time);

  const absl::Duration most_;
  const std::function<void()> late_;
  const Alarm alarm_;
  std::atomic<uint64_t> begun_ns_ = 0;  // of the work under way; 0: none
  std::atomic<bool> armed_ = false;     // the alarm is set, or about to be
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace gpumemd
