// SPDX-License-Identifier: Apache-2.0
#include "client/preload/accountant/brokered_device.h"

#include <algorithm>

namespace gpumem::preload {
namespace {

gpumem_pool* IdlePool(const GpumemBrokeredDevice& device) {
  return device.pool.load(std::memory_order_acquire);
}

// Gives back the unused credit; or else free memory of the device's other pool: what has no work
// pending, or if that is nothing, all, which waits for the work. True if that was anything.
int MakeRoom(const GpumemBrokeredDevice& device, gpumem_pool* other) {
  if (device.preload->make_room(&device.id) != 0) return 1;
  uint64_t released = 0;
  if (other == nullptr) return 0;
  if (gpumem_pool_trim(other, 0, &released) != GPUMEM_OK || released == 0)
    (void)gpumem_pool_free_all_blocks(other, &released);
  return released > 0 ? 1 : 0;
}

int MakeRoomForIdle(void* self, uint64_t) {
  const auto* const device = static_cast<const GpumemBrokeredDevice*>(self);
  return MakeRoom(*device, device->stream_memory.pool());
}

int MakeRoomForStreams(void* self, uint64_t) {
  const auto* const device = static_cast<const GpumemBrokeredDevice*>(self);
  return MakeRoom(*device, IdlePool(*device));
}

// Adds up a figure of the pools.
template <typename Figure>
uint64_t SumOf(const GpumemBrokeredDevice& device, Figure figure) {
  uint64_t sum = 0;
  for (gpumem_pool* const pool : PoolsOf(device)) {
    gpumem_pool_stats stats = {.struct_size = sizeof(stats)};
    if (gpumem_pool_get_stats(pool, &stats) == GPUMEM_OK) sum += figure(stats);
  }
  return sum;
}

}  // namespace

std::vector<std::string> WithPeerAccess(gpumem_client* client, const std::string& home) {
  std::vector<std::string> users;
  gpumem_device_list* devices = nullptr;
  size_t count = 0;
  if (gpumem_client_list_devices(client, &devices, &count) != GPUMEM_OK) return users;
  for (size_t i = 0; i < count; ++i) {
    gpumem_device device = {.struct_size = sizeof(device)};
    if (gpumem_device_list_get(devices, i, &device) != GPUMEM_OK) continue;
    for (size_t j = 0; j < device.peer_count; ++j) {
      gpumem_peer peer = {.struct_size = sizeof(peer)};
      if (gpumem_device_list_get_peer(devices, i, j, &peer) == GPUMEM_OK && peer.access != 0 &&
          home == peer.uuid) {
        users.emplace_back(device.uuid);
      }
    }
  }
  (void)gpumem_device_list_destroy(devices);
  return users;
}

gpumem_pool* MakePool(gpumem_client* client, GpumemBrokeredDevice* device,
                      const std::vector<std::string>& users, uint64_t wait_ms, bool of_streams) {
  std::vector<const char*> uuids;
  for (const std::string& user : users) uuids.push_back(user.c_str());
  gpumem_pool* pool = nullptr;
  gpumem_pool_options options = {.struct_size = sizeof(options)};
  options.device = device->uuid.c_str();
  options.map_devices = uuids.data();
  options.map_device_count = uuids.size();
  options.wait_ms = wait_ms;
  if (gpumem_pool_create(client, &options, &pool) != GPUMEM_OK) return nullptr;
  (void)gpumem_pool_set_out_of_memory_callback(
      pool, of_streams ? &MakeRoomForStreams : &MakeRoomForIdle, device);
  return pool;
}

int AnswerOf(const gpumem_pool* pool, absl::FunctionRef<int()> allocate) {
  int status = allocate();
  for (bool again = true; status == GPUMEM_FAILED_PRECONDITION && again; again = false) {
    int suspended = 0;
    (void)gpumem_pool_is_suspended(pool, &suspended);
    if (suspended != 0) return GPUMEM_ACCOUNTANT_SUSPENDED;
    status = allocate();  // it may have been resumed meanwhile
  }
  switch (status) {
    case GPUMEM_OK:
      return GPUMEM_ACCOUNTANT_OK;
    case GPUMEM_RESOURCE_EXHAUSTED:
    case GPUMEM_INVALID_ARGUMENT:  // more than the device has
      return GPUMEM_ACCOUNTANT_NO_MEMORY;
    case GPUMEM_FAILED_PRECONDITION:
      return GPUMEM_ACCOUNTANT_UNLIMITED;
    default:
      return GPUMEM_ACCOUNTANT_GONE;
  }
}

absl::InlinedVector<gpumem_pool*, 2> PoolsOf(const GpumemBrokeredDevice& device) {
  absl::InlinedVector<gpumem_pool*, 2> pools = {IdlePool(device), device.stream_memory.pool()};
  pools.erase(std::remove(pools.begin(), pools.end(), nullptr), pools.end());
  return pools;
}

gpumem_pool* PoolOfBlock(const Blocks::Block& block) {
  const auto* const device = static_cast<const GpumemBrokeredDevice*>(block.owner);
  return block.stream_ordered ? device->stream_memory.pool() : IdlePool(*device);
}

uint64_t HeldBy(const GpumemBrokeredDevice& device) {
  return SumOf(device, [](const gpumem_pool_stats& stats) { return stats.reserved_bytes; });
}

uint64_t UnusedOf(const GpumemBrokeredDevice& device) {
  return SumOf(device, [](const gpumem_pool_stats& stats) {
    return stats.reserved_bytes - std::min(stats.reserved_bytes, stats.used_bytes);
  });
}

bool TrimPools(const GpumemBrokeredDevice& device) {
  uint64_t all = 0;
  for (gpumem_pool* const pool : PoolsOf(device)) {
    uint64_t released = 0;
    if (gpumem_pool_trim(pool, 0, &released) == GPUMEM_OK) all += released;
  }
  return all > 0;
}

}  // namespace gpumem::preload
