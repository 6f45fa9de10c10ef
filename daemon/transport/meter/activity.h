// SPDX-License-Identifier: Apache-2.0
// Tells threads that look after gRPC's sockets periodically when there is nothing to look after.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/time/time.h"

namespace gpumemd {

// Calls `wake` after something has come or gone on a socket of gRPC's. Thread-safe.
class ActivityWatch {
 public:
  // `wake` must not call gRPC or this class, and holds no lock under which sockets are used.
  explicit ActivityWatch(std::function<void()> wake);
  ~ActivityWatch();
  ActivityWatch(const ActivityWatch&) = delete;
  ActivityWatch& operator=(const ActivityWatch&) = delete;

  // Has `wake` called once, after the next activity. A caller that then finds count() unchanged
  // may sleep until `wake` is called.
  void Arm();

  // Grows with each activity.
  static uint64_t count() { return count_.load(); }
  // Records an activity.
  static void Note() {
    count_.fetch_add(1);
    if (any_armed_.load()) WakeAll();
  }

 private:
  static void WakeAll();

  static std::atomic<uint64_t> count_;
  static std::atomic<bool> any_armed_;
  const std::function<void()> wake_;
  bool armed_ = false;
};

// Records that something has come on a metered socket.
void NoteReader(int socket);
// Records that the thread that reads the sockets has done something else until now.
void NoteHoldUp();

// Facts about reads of metered sockets.
struct ReaderFacts {
  absl::Time other_at;   // when another socket was read than before
  uint64_t held_up = 0;  // how often that was so soon after a hold-up that it has waited
};
// The times are of gpumem::NodeTime().
ReaderFacts GetReaderFacts();

}  // namespace gpumemd
