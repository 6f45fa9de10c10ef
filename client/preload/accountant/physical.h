// SPDX-License-Identifier: Apache-2.0
// Physical memory of cuMemCreate() in broker mode: segments of kind vmm.
//
// Other processes may have memory that was exported. So its segment must not move. A second session
// of this process, which cannot be asked to suspend, has a lease of it then: the memory is resident
// while the first session's lease is suspended, as all memory that others use.
//
// Thread-safe, but for Suspend() and Resume(): meanwhile only Create() may be called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "client/preload/brokered_memory.h"
#include "gpumem/gpumem.h"

struct GpumemPhysical {
  std::string device;  // its UUID
  uint64_t bytes = 0;
  gpumem_segment* segment = nullptr;
  gpumem_segment* kept = nullptr;  // the second session's, once it is pinned
  bool pinned = false;
};

namespace gpumem::preload {

class PhysicalMemory {
 public:
  // Never destroyed.
  PhysicalMemory(gpumem_client* client, uint64_t wait_ms, const GpumemPreload& preload)
      : client_(client), wait_ms_(wait_ms), preload_(preload) {}
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  // Returns a GpumemAnswer, as GpumemBroker::create_physical. SUSPENDED, only if it may wait: from
  // Suspend() to the end of Resume() nothing is to wait before that in the daemon's queue.
  // `make_room` gives back what the process does not need of the device; true if that was anything.
  int Create(const std::string& device_uuid, uint64_t bytes, bool may_wait,
             absl::FunctionRef<bool()> make_room, GpumemPhysical** physical, uint64_t* address);
  void Release(GpumemPhysical* physical);
  void Pin(GpumemPhysical* physical);
  bool Export(GpumemPhysical* physical, int* fd);

  // Returns the bytes of a device's memory, also of suspended memory.
  uint64_t HeldOn(const std::string& device_uuid);

  // Suspends all that is not suspended, and brings all back. With the gate closed. Return a status
  // of libgpumem. After an error, also of Suspend(), Resume() has to be called until it succeeds.
  int Suspend();
  int Resume(uint64_t wait_ms);

  // True if Suspend() has left anything to resume.
  bool IsSuspended() { return !Movable(/*suspended=*/true).empty(); }

 private:
  // Acquires a segment; null: `status` says why.
  gpumem_segment* Acquire(const std::string& device_uuid, uint64_t bytes, uint64_t wait_ms,
                          const gpumem_cancel_token* cancel, int* status);
  // The same, and may wait; CANCELLED by Suspend().
  gpumem_segment* Await(const std::string& device_uuid, uint64_t bytes, int* status);
  // Returns the second session, which is made at the first call; null without one.
  gpumem_client* Keeper() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PinLocked(GpumemPhysical* physical) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the segments that can be suspended and are in that state.
  std::vector<gpumem_segment*> Movable(bool suspended);

  gpumem_client* const client_;
  const uint64_t wait_ms_;
  const GpumemPreload preload_;
  absl::Mutex mutex_;
  absl::flat_hash_set<GpumemPhysical*> all_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint64_t> held_ ABSL_GUARDED_BY(mutex_);  // bytes by device
  gpumem_client* keeper_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool suspended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<gpumem_cancel_token*> awaiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::preload
