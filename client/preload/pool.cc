// SPDX-License-Identifier: Apache-2.0
// The books of stream-ordered memory.
//
// A pool is charged what it holds of the device, by the driver's figure (RESERVED_MEM_CURRENT),
// which is read after each allocation. To charge the allocations instead would count too little: a
// pool also holds freed memory that it has not given back, and grows in steps larger than a
// request. Before an allocation, the part of it that the idle memory of the pool cannot hold is
// reserved. Memory that is given back later than at the preload's next look at the pool stays
// charged until then.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <stdlib.h>

#include <atomic>

#include "client/preload/books.h"
#include "client/preload/pool.h"

namespace gpumem::preload {
namespace {

Mutex g_pools_mutex;
HashMap<Pool*> g_pools;
std::atomic<bool> g_pools_changed{false};
std::atomic<CUmemoryPool> g_current_pools[kMaxDevices];  // null: to be asked for
std::atomic<uint32_t> g_pools_chosen{0};                 // times that the program has chosen one
std::atomic<CUmemoryPool> g_default_pools[kMaxDevices];  // null: to be asked for
RecordTable g_pool_blocks;                               // the context of a record is its Pool

// Requires g_pools_mutex. Returns what a pool holds; the charge, if the driver does not tell.
uint64_t HeldByPool(const Driver& driver, const Pool& pool) {
  if (pool.destroyed) return pool.charged;
  cuuint64_t bytes = 0;
  CUresult result =
      driver.cuMemPoolGetAttribute(pool.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
  return result == CUDA_SUCCESS ? bytes : pool.charged;
}

// Requires g_pools_mutex. Charges a pool what it holds and what allocations under way may add.
// False if it holds more than is charged, and the rest is refused.
bool Settle(const Driver& driver, Pool* pool) {
  if (pool->device < 0) return true;
  uint64_t held = HeldByPool(driver, *pool);
  if (held > pool->charged) {
    if (ReserveShared(pool->device, held - pool->charged) != CUDA_SUCCESS) return false;
    pool->charged = held;
  } else if (pool->charged > held + pool->in_flight) {
    RefundShared(pool->device, pool->charged - held - pool->in_flight);
    pool->charged = held + pool->in_flight;
  }
  return true;
}

// Requires g_pools_mutex.
void SettleOrOwe(const Driver& driver, Pool* pool) {
  if (Settle(driver, pool)) return;
  uint64_t held = HeldByPool(driver, *pool);
  if (held <= pool->charged) return;
  ChargeAnyway(pool->device, held - pool->charged);
  pool->charged = held;
}

int DeviceOfPool(const Driver& driver, CUmemoryPool pool, int current) {
  for (int device = 0; device < DeviceCount(); ++device) {
    if (DefaultPool(driver, device) == pool) return device;
  }
  return current;
}

// Requires g_pools_mutex. Null without memory.
Pool* NewPool(CUmemoryPool handle, int device) {
  Pool* pool = static_cast<Pool*>(calloc(1, sizeof(Pool)));
  if (pool == nullptr) return nullptr;
  pool->handle = handle;
  pool->device = device;
  if (g_pools.Put(reinterpret_cast<uint64_t>(handle), pool)) return pool;
  free(pool);
  return nullptr;
}

// Requires g_pools_mutex.
void ForgetIfGone(Pool* pool) {
  if (!pool->destroyed || pool->blocks != 0) return;
  if (pool->device >= 0) RefundShared(pool->device, pool->charged);
  free(pool);
}

// Requires g_pools_mutex.
uint64_t GrowthFor(const Pool& pool, uint64_t bytes) {
  constexpr uint64_t kPage = uint64_t{2} << 20;
  uint64_t idle = pool.charged > pool.live ? pool.charged - pool.live : 0;
  if (bytes <= idle) return 0;
  uint64_t growth = bytes - idle;
  return growth > UINT64_MAX - kPage ? growth : (growth + kPage - 1) / kPage * kPage;
}

}  // namespace

void AddPool(CUmemoryPool handle, int device) {
  MutexLock lock(&g_pools_mutex);
  NewPool(handle, device);
}

Pool* FindPool(const Driver& driver, CUmemoryPool handle, int current) {
  MutexLock lock(&g_pools_mutex);
  Pool** found = g_pools.Get(reinterpret_cast<uint64_t>(handle));
  if (found != nullptr) return *found;
  return NewPool(handle, DeviceOfPool(driver, handle, current));
}

CUmemoryPool CurrentPool(const Driver& driver, int device) {
  if (device < 0 || device >= kMaxDevices) return nullptr;
  CUmemoryPool pool = g_current_pools[device].load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  uint32_t chosen = g_pools_chosen.load();
  if (driver.cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS) return nullptr;
  g_current_pools[device].store(pool);
  // Chosen again meanwhile: the answer may be the old one.
  if (g_pools_chosen.load() != chosen) g_current_pools[device].store(nullptr);
  return pool;
}

void ForgetCurrentPools() {
  g_pools_chosen.fetch_add(1);
  for (std::atomic<CUmemoryPool>& pool : g_current_pools) pool.store(nullptr);
}

CUmemoryPool DefaultPool(const Driver& driver, int device) {
  if (device < 0 || device >= kMaxDevices) return nullptr;
  CUmemoryPool pool = g_default_pools[device].load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  if (driver.cuDeviceGetDefaultMemPool(&pool, device) != CUDA_SUCCESS) return nullptr;
  g_default_pools[device].store(pool, std::memory_order_release);
  return pool;
}

void TrimDefaultPool(const Driver& driver, int device) {
  MutexLock lock(&g_pools_mutex);
  Pool** const pool = g_pools.Get(reinterpret_cast<uint64_t>(DefaultPool(driver, device)));
  if (pool != nullptr) driver.cuMemPoolTrimTo((*pool)->handle, 0);
}

CUresult BeginPoolAllocation(Pool* pool, uint64_t bytes, uint64_t* growth) {
  for (bool last = false;; last = true) {
    {
      MutexLock lock(&g_pools_mutex);
      *growth = GrowthFor(*pool, bytes);
      // Before the lock is given up, so that others do not count on the same idle memory.
      pool->live += bytes;
      ++pool->blocks;
      if (*growth == 0) return CUDA_SUCCESS;
    }
    CUresult result =
        last ? ReserveWaiting(pool->device, *growth) : ReserveShared(pool->device, *growth);
    {
      MutexLock lock(&g_pools_mutex);
      if (result == CUDA_SUCCESS) {
        pool->charged += *growth;
        pool->in_flight += *growth;
        return result;
      }
      pool->live -= bytes;
      --pool->blocks;
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY || last) return result;
    SettleBooks(pool->device);
  }
}

bool EndPoolAllocation(const Driver& driver, Pool* pool, uint64_t bytes, uint64_t growth,
                       bool succeeded) {
  MutexLock lock(&g_pools_mutex);
  pool->in_flight -= growth;
  bool paid = Settle(driver, pool);
  if (!succeeded && !paid) SettleOrOwe(driver, pool);
  if (!succeeded || !paid) {
    pool->live -= bytes;
    --pool->blocks;
  }
  return paid;
}

void SettlePool(const Driver& driver, Pool* pool) {
  MutexLock lock(&g_pools_mutex);
  SettleOrOwe(driver, pool);
}

CUresult DestroyPool(const Driver& driver, CUmemoryPool handle) {
  MutexLock lock(&g_pools_mutex);
  CUresult result = driver.cuMemPoolDestroy(handle);
  Pool* pool = nullptr;
  if (result == CUDA_SUCCESS && g_pools.Take(reinterpret_cast<uint64_t>(handle), &pool)) {
    pool->destroyed = true;
    ForgetIfGone(pool);
  }
  ForgetCurrentPools();
  return result;
}

bool PoolsHaveChanged() { return g_pools_changed.load(std::memory_order_relaxed); }

bool TakePoolBlock(uint64_t address, PoolBlock* block) {
  Record record;
  if (!g_pool_blocks.Take(address, &record)) return false;
  block->bytes = record.charge.bytes;
  block->pool = reinterpret_cast<Pool*>(record.context);
  return true;
}

void PutPoolBlock(uint64_t address, const PoolBlock& block) {
  Record record;
  record.charge.bytes = block.bytes;
  record.context = reinterpret_cast<uint64_t>(block.pool);
  g_pool_blocks.Put(address, record);
}

void DropPoolBlock(const PoolBlock& block) {
  MutexLock lock(&g_pools_mutex);
  block.pool->live -= block.bytes;
  --block.pool->blocks;
  ForgetIfGone(block.pool);
  g_pools_changed.store(true, std::memory_order_relaxed);
}

bool SettlePools(int device) {
  const Driver& driver = RealDriver();
  bool less = false;
  MutexLock lock(&g_pools_mutex);
  g_pools_changed.store(false, std::memory_order_relaxed);
  g_pools.ForEach([&](uint64_t, Pool* pool) {
    if (pool->device < 0 || (device >= 0 && pool->device != device)) return;
    uint64_t before = pool->charged;
    SettleOrOwe(driver, pool);
    less = less || pool->charged < before;
  });
  return less;
}

void DropPools(int device) {
  MutexLock lock(&g_pools_mutex);
  g_pools.RemoveIf([&](uint64_t, Pool* pool) {
    if (pool->device != device) return false;
    RefundShared(device, pool->charged);
    pool->charged = 0;
    pool->destroyed = true;
    ForgetIfGone(pool);  // else with its last block
    return true;
  });
  ForgetCurrentPools();
  if (device >= 0 && device < kMaxDevices) g_default_pools[device].store(nullptr);
}

void AbandonPools() {
  g_pools_mutex.Reset();
  g_pools.Abandon();
  g_pool_blocks.Abandon();
  ForgetCurrentPools();
  for (std::atomic<CUmemoryPool>& pool : g_default_pools) pool.store(nullptr);
}

}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
