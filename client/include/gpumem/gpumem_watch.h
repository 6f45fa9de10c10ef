/* SPDX-License-Identifier: Apache-2.0 */
/* Events that the daemon sends to a session. Part of gpumem.h; see watch.h. */
#ifndef GPUMEM_GPUMEM_WATCH_H_
#define GPUMEM_GPUMEM_WATCH_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_client.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpumem_watch gpumem_watch;

/* What the tenant may hold. -1 in a count and GPUMEM_UNLIMITED in bytes mean no limit for the
 * tenant. */
struct gpumem_quota {
  size_t struct_size;
  uint64_t limit_bytes; /* on any one GPU; gpumem_device_usage has the limit in force on each */
  uint64_t total_limit_bytes;
  uint64_t pinned_limit_bytes;
  uint64_t guarantee_bytes; /* 0: none */
  int64_t max_segments;
  int64_t max_sessions;
  int64_t max_in_flight;
  int64_t max_waiting;
  int32_t priority;
  int32_t revocable;  /* 1: all leases of the tenant are revocable */
  const char* parent; /* the tenant whose quota also applies; "": none */
};

/* Each may be null. All are called in one thread of the watch, possibly before
 * gpumem_client_start_watch() has returned. */
struct gpumem_watch_handlers {
  size_t struct_size;
  void* context; /* given to each */
  void (*segments_lost)(void* context, const uint64_t* lease_ids, size_t count);
  void (*draining)(void* context, int draining);
  void (*ended)(void* context, int status, const char* message); /* the watch has ended */
  /* Another session was denied memory; `bytes` would have sufficed. An empty device means any.
   * Pools give back their free memory by themselves. */
  void (*pressure)(void* context, const char* device_uuid, uint64_t bytes);
  /* As `pressure`, with how long a release helps, from now (0: unknown). If set, it is called
   * instead. */
  void (*pressure_until)(void* context, const char* device_uuid, uint64_t bytes,
                         uint64_t deadline_ms);
  /* Revocable leases are taken back. Copy out what matters and release them within `until_end_ms`
   * from now, or the daemon ends the process (SIGTERM, then SIGKILL). */
  void (*revocation)(void* context, const uint64_t* lease_ids, size_t count, uint64_t until_end_ms);
  /* The tenant's quota was changed. The library owns the struct, for the time of the call. */
  void (*quota_changed)(void* context, const struct gpumem_quota* quota);
};
int gpumem_client_start_watch(gpumem_client* client, const struct gpumem_watch_handlers* handlers,
                              gpumem_watch** watch);
/* Stops the watch. Blocks until a handler in progress returns, unless it is the caller. */
int gpumem_watch_destroy(gpumem_watch* watch);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_WATCH_H_ */
