// SPDX-License-Identifier: Apache-2.0
// Suspends and resumes the program's pools and its physical memory, without its help: it is held at
// the preload's gate.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/preload/accountant/physical.h"
#include "client/preload/brokered_memory.h"
#include "gpumem/gpumem.h"

namespace gpumem::preload {

class Suspender {
 public:
  // `pools` returns the process's pools, while the gate is closed. Never destroyed.
  Suspender(gpumem_client* client, const GpumemPreload& preload,
            std::function<std::vector<gpumem_pool*>()> pools, PhysicalMemory* physical);
  Suspender(const Suspender&) = delete;
  Suspender& operator=(const Suspender&) = delete;

  // Begins to serve requests to suspend, and to tell the daemon that the program is at work.
  // Returns a status of libgpumem.
  int Start();

  // A thread of the program wants to use the memory. If others than an operator had it suspended,
  // resumes it, which waits until there is room.
  void Wanted();

 private:
  void Serve(const gpumem_suspension_request& request);
  // Waits until the program has gone on for a moment since it was resumed.
  void AwaitTurn();
  void Suspend(const gpumem_suspension_request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Closes the gate, and waits for the program's work. False, with the gate open, if that takes
  // longer.
  bool Stop(absl::Duration most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Suspends the parts that are not suspended. Returns a status of libgpumem. With the gate closed.
  int SuspendAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if memory is suspended: all may have been freed before the gate was closed.
  bool HoldsAny() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Resumes all parts, or none. Returns false if it is still suspended.
  bool Resume(uint64_t wait_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Once a second: tells the daemon if the program is at work, and maps memory that the driver has
  // refused to map.
  void Tick();
  void MapAgain();

  gpumem_client* const client_;
  const GpumemPreload preload_;
  const std::function<std::vector<gpumem_pool*>()> pools_;
  PhysicalMemory* const physical_;
  absl::Mutex mutex_;
  bool suspended_ ABSL_GUARDED_BY(mutex_) = false;
  bool by_operator_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time resumed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // The memory is back, and the driver does not map it. Threads at the gate do not ask again.
  bool unmapped_ ABSL_GUARDED_BY(mutex_) = false;
  // Notified when the thread that waits for the program's work has ended; null: there was none.
  std::shared_ptr<absl::Notification> at_rest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::preload
