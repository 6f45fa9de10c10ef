/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, and what the tenant uses of them. Part of gpumem.h; see types.h. */
#ifndef GPUMEM_GPUMEM_DEVICE_H_
#define GPUMEM_GPUMEM_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_client.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpumem_device_list gpumem_device_list;

struct gpumem_device {
  size_t struct_size;
  const char* uuid;
  const char* name;
  const char* pci_bus_id;
  int32_t backend; /* enum gpumem_backend */
  uint64_t capacity_bytes;
  uint64_t charged_bytes;
  uint64_t granularity_bytes;
  uint64_t pool_granularity_bytes; /* of kind mempool if it differs, else 0 */
  uint64_t driver_free_bytes;      /* 0: unknown */
  const int32_t* kinds;            /* enum gpumem_kind; the first is the default */
  size_t kind_count;
  size_t peer_count;
};
struct gpumem_peer {
  size_t struct_size;
  const char* uuid;
  int32_t access;
  int32_t native_atomics;
  int32_t performance_rank; /* 0: the fastest link of the node */
};
/* Writes a snapshot of the devices. `count` may be null. */
int gpumem_client_list_devices(gpumem_client* client, gpumem_device_list** devices, size_t* count);
int gpumem_device_list_get(const gpumem_device_list* devices, size_t index,
                           struct gpumem_device* device);
int gpumem_device_list_get_peer(const gpumem_device_list* devices, size_t index, size_t peer_index,
                                struct gpumem_peer* peer);
int gpumem_device_list_destroy(gpumem_device_list* devices);

typedef struct gpumem_usage gpumem_usage;

/* How the tenant's programs that know nothing of gpumem get memory (gpumemctl run). */
enum gpumem_preload_mode {
  GPUMEM_PRELOAD_ACCOUNT = 0, /* the CUDA driver allocates, and the tenant is charged first */
  GPUMEM_PRELOAD_BROKER = 1   /* memory of gpumem, through a pool of the process */
};

struct gpumem_tenant_usage {
  size_t struct_size;
  const char* tenant;
  uint64_t charged_bytes;
  uint32_t segments;
  uint32_t sessions;
  size_t device_count;
  uint64_t waiting;     /* requests that wait for memory */
  int32_t preload_mode; /* enum gpumem_preload_mode, in force for processes that start now */
  int32_t reserved;     /* 0 */
};
struct gpumem_device_usage {
  size_t struct_size;
  const char* device_uuid;
  uint64_t leased_bytes;
  uint64_t retained_bytes;
  uint64_t lingering_bytes;
  uint64_t charged_bytes;
  uint64_t limit_bytes;
  uint64_t peak_bytes;
  uint64_t guarantee_bytes;
  uint64_t borrowed_bytes; /* held above the guarantee */
  uint64_t waiting_bytes;  /* for which requests wait */
  uint64_t waiting;        /* requests that wait */
  uint64_t revocable_bytes;
  /* What the tenant can get at most, once releasing segments are back: also bounded by the device,
   * by tenants above it and by guarantees of others. GPUMEM_UNLIMITED: an older daemon, which does
   * not say. */
  uint64_t obtainable_bytes;
  /* charged_bytes summed over time, in bytes times seconds: since the tenant was first seen or,
   * unless it was made at run time, since the daemon started. At most 2^64 - 1: the figure then
   * stays. 0: an older daemon, which does not count. */
  uint64_t byte_seconds;
};
/* Writes a snapshot of what the client's tenant holds. */
int gpumem_client_get_usage(gpumem_client* client, gpumem_usage** usage);
int gpumem_usage_get_tenant(const gpumem_usage* usage, struct gpumem_tenant_usage* tenant);
int gpumem_usage_get_device(const gpumem_usage* usage, size_t index,
                            struct gpumem_device_usage* device);
int gpumem_usage_destroy(gpumem_usage* usage);

struct gpumem_memory {
  size_t struct_size;
  uint64_t limit_bytes;
  uint64_t free_bytes; /* obtainable_bytes of gpumem_device_usage */
  int32_t from_page;   /* 1: no call was made */
  int32_t reserved;    /* 0 */
};
/* Writes the limit and the free bytes of the client's tenant on a device, named by its UUID. Takes
 * no call where the daemon offers its page, but for the first of a connection. What this client has
 * acquired and released before is in it; what others have, within some milliseconds. Returns
 * GPUMEM_NOT_FOUND if there is no such device, GPUMEM_FAILED_PRECONDITION in a child after fork().
 */
int gpumem_client_get_memory(gpumem_client* client, const char* device_uuid,
                             struct gpumem_memory* memory);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_DEVICE_H_ */
