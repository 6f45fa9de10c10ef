// SPDX-License-Identifier: Apache-2.0
// What broker mode has of a device: its pools, and the room that they make for each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "client/preload/accountant/blocks.h"
#include "client/preload/accountant/stream_memory.h"
#include "client/preload/brokered_memory.h"
#include "gpumem/gpumem.h"

// Its pools are made at the first allocation, as they need the device's primary context.
struct GpumemBrokeredDevice {
  GpumemDeviceId id;
  std::string uuid;
  const GpumemPreload* preload;
  // Work of streams may be pending on free memory of the pool, whose order a program that is given
  // it need not follow.
  std::atomic<bool> ordered{false};
  absl::Mutex mutex;
  // Atomic, so that allocations take no lock for it. Dropped only when none can be under way: the
  // context goes.
  std::atomic<gpumem_pool*> pool{nullptr};
  gpumem::preload::StreamMemory stream_memory{};
};

namespace gpumem::preload {

// Returns the UUIDs of other GPUs that can use a device's memory.
std::vector<std::string> WithPeerAccess(gpumem_client* client, const std::string& home);

// Makes a pool on the device, for the GPUs that will use its memory; null with an error of
// libgpumem. What the process does not need beside it is given back before it refuses a request.
gpumem_pool* MakePool(gpumem_client* client, GpumemBrokeredDevice* device,
                      const std::vector<std::string>& users, uint64_t wait_ms, bool of_streams);

// Allocates from a pool by `allocate`, which returns a status of libgpumem. Returns a GpumemAnswer:
// UNLIMITED where the driver has to allocate, as the stream is being captured.
int AnswerOf(const gpumem_pool* pool, absl::FunctionRef<int()> allocate);

// Returns the pools that there are.
absl::InlinedVector<gpumem_pool*, 2> PoolsOf(const GpumemBrokeredDevice& device);
// Returns the one that a block of the program's is in.
gpumem_pool* PoolOfBlock(const Blocks::Block& block);

// Returns the bytes that the pools hold, and those of them without use.
uint64_t HeldBy(const GpumemBrokeredDevice& device);
uint64_t UnusedOf(const GpumemBrokeredDevice& device);
// Gives back what has no pending work. True if that was anything.
bool TrimPools(const GpumemBrokeredDevice& device);

}  // namespace gpumem::preload
