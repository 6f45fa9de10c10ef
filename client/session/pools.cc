// SPDX-License-Identifier: Apache-2.0
#include "client/session/pools.h"

#include <utility>

namespace gpumem::internal {

absl::StatusOr<std::shared_ptr<const Pool>> Pools::Get(uint64_t pool_id,
                                                       const std::string& device_uuid,
                                                       Backend backend,
                                                       const std::string& runtime_dir,
                                                       absl::FunctionRef<int32_t()> owner) {
  // Held while a pool is imported, too: other threads need the same pool.
  absl::MutexLock lock(&mutex_);
  if (auto found = pools_.find(pool_id); found != pools_.end()) return found->second;
  absl::StatusOr<UniqueFd> fd = deliveries_->TakePool(pool_id);
  if (!fd.ok()) return fd.status();
  auto pool = std::make_shared<Pool>();
  pool->device_uuid = device_uuid;
  pool->fd = *std::move(fd);
  absl::StatusOr<std::shared_ptr<ImportedPool>> imported =
      backend == Backend::kCuda ? ImportCudaPool(device_uuid, pool->fd.get())
                                : ImportHostPool(runtime_dir, pool->fd.get());
  if (!imported.ok()) {
    deliveries_->ReturnPool(pool_id, std::move(pool->fd));  // for the next call that needs it
    return imported.status();
  }
  pool->imported = *std::move(imported);
  pool->owner = owner();
  pools_.emplace(pool_id, pool);
  DropDeadLocked();
  return pool;
}

void Pools::DropDead() {
  absl::MutexLock lock(&mutex_);
  DropDeadLocked();
}

void Pools::DropDeadLocked() {
  // An owner keeps a pool while the tenant has memory in it, and rarely has more than one per
  // tenant and device. Of many pools, the oldest have ended.
  constexpr int kFew = 8;
  struct Newer {
    int32_t owner = 0;  // of the device's newest pool
    int unused = 0;
  };
  std::map<std::string, Newer> newer_on;  // by device
  for (auto it = pools_.end(); it != pools_.begin();) {
    --it;
    const Pool& pool = *it->second;
    Newer& newer = newer_on.try_emplace(pool.device_uuid, Newer{.owner = pool.owner}).first->second;
    if (it->second.use_count() > 1) continue;  // only this function makes further references
    const bool dead = pool.owner != 0 && newer.owner != 0 && pool.owner != newer.owner;
    if (!dead && ++newer.unused <= kFew) continue;
    deliveries_->ForgetPool(it->first);
    it = pools_.erase(it);
  }
}

}  // namespace gpumem::internal
