// SPDX-License-Identifier: Apache-2.0
// The books of stream-ordered memory.
#pragma once

#include <stdint.h>

#include "client/preload/accounting.h"

namespace gpumem::preload {

// A memory pool of the driver. Exists until the pool is destroyed and has no allocations.
struct Pool {
  CUmemoryPool handle;
  int device;          // -1: not charged
  uint64_t charged;    // reserved for it; all that it holds, after each look at it
  uint64_t in_flight;  // the part of it that was reserved for allocations under way
  uint64_t live;       // bytes and number of its allocations
  uint64_t blocks;
  bool destroyed;  // the driver frees the memory with the last allocation
};

// Registers a pool that the program has made or imported; -1 for one that is not charged.
void AddPool(CUmemoryPool handle, int device);

// Returns a pool that the program uses. One that is not registered is a default pool; if it is of
// no device, `current` is charged. Null without memory.
Pool* FindPool(const Driver& driver, CUmemoryPool handle, int current);

// Returns the current pool of a device, or null if the driver does not tell.
CUmemoryPool CurrentPool(const Driver& driver, int device);
// Forgets it: the program has chosen another one.
void ForgetCurrentPools();
// Returns the default pool of a device, or null if there is no such device.
CUmemoryPool DefaultPool(const Driver& driver, int device);
// Has the driver give back what its default pool does not use, if there is memory of it at all.
void TrimDefaultPool(const Driver& driver, int device);

// Reserves what the pool will have to grow by for an allocation, as far as can be said before.
CUresult BeginPoolAllocation(Pool* pool, uint64_t bytes, uint64_t* growth);

// Charges the pool what it holds after the allocation, or its failure. False if it has grown by
// more than `growth`, and that is refused.
bool EndPoolAllocation(const Driver& driver, Pool* pool, uint64_t bytes, uint64_t growth,
                       bool succeeded);

// Charges a pool what it holds, beyond the limit if need be.
void SettlePool(const Driver& driver, Pool* pool);

// Destroys a pool by `call`, with the lock held: another thread may get its handle for a new one.
CUresult DestroyPool(const Driver& driver, CUmemoryPool handle);

// True if something was freed in a pool since all were last looked at.
bool PoolsHaveChanged();

// An allocation in a pool, which FreeAsync() or cuMemFree() is about to free.
struct PoolBlock {
  uint64_t bytes = 0;
  Pool* pool = nullptr;
};

// Takes a block out of the books before the driver frees it, so that another thread can get the
// same address. False if the address is not a pool's.
bool TakePoolBlock(uint64_t address, PoolBlock* block);
// Puts it in, or back: the driver has refused to free it.
void PutPoolBlock(uint64_t address, const PoolBlock& block);
// Counts it as freed.
void DropPoolBlock(const PoolBlock& block);

}  // namespace gpumem::preload
