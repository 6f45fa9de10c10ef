/* SPDX-License-Identifier: Apache-2.0 */
/* The block pool. Part of gpumem.h; see pool.h. */
#ifndef GPUMEM_GPUMEM_POOL_H_
#define GPUMEM_GPUMEM_POOL_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_client.h"
#include "gpumem_segment.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpumem_pool gpumem_pool;

/* Which memory freed on another stream may be reused. The same stream's always may. */
enum gpumem_reuse {
  GPUMEM_REUSE_DEFAULT = 0, /* all of them */
  GPUMEM_REUSE_SAME_STREAM = 1,
  GPUMEM_REUSE_FOLLOW_EVENT_DEPENDENCIES = 2,
  GPUMEM_REUSE_ALLOW_OPPORTUNISTIC = 4,
  GPUMEM_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 8
};

struct gpumem_pool_options {
  size_t struct_size;
  const char* device; /* as in gpumem_acquire_options */
  int32_t kind;
  uint32_t reuse;                    /* flags of enum gpumem_reuse */
  int32_t per_thread_default_stream; /* the meaning of a null stream */
  int32_t without_thread_caches;     /* 1: makes the peaks of the statistics exact */
  uint64_t limit_bytes;              /* 0: none */
  uint64_t release_threshold_bytes;  /* 0: nothing is released automatically (set it later to 0) */
  uint64_t grow_bytes;               /* 0: 8 MiB; at most 1 TiB */
  uint64_t wait_ms;                  /* for memory if none is left; may be GPUMEM_UNLIMITED */
  int32_t keeps_under_pressure;      /* 1: keeps free memory when others are denied memory */
  int32_t revocable;                 /* 1: its segments are; revocation takes the free ones back */
  /* Called by a thread of the pool if blocks in use lie in segments that are revoked. Free them
   * within `until_end_ms`, or the process is ended. The leases are all the session's revoked ones.
   * Must not destroy the pool. May be null. */
  void (*on_revocation)(void* revocation_context, const uint64_t* lease_ids, size_t count,
                        uint64_t until_end_ms);
  void* revocation_context;
  const char* const* map_devices; /* the GPUs that will use the memory; null: the pool's */
  size_t map_device_count;
};
int gpumem_pool_create(gpumem_client* client, const struct gpumem_pool_options* options,
                       gpumem_pool** pool);
/* Frees the pool. No block may be in use. FAILED_PRECONDITION for a default pool. */
int gpumem_pool_destroy(gpumem_pool* pool);

/* A plain value, which never grows. */
struct gpumem_block {
  void* data;
  uint64_t bytes;
};
int gpumem_pool_allocate(gpumem_pool* pool, uint64_t bytes, void* stream,
                         struct gpumem_block* block);
/* Allocates from this thread's cache only: never calls the daemon and never blocks on a thread. It
 * may ask the driver if the stream is being captured. For callers that hold a contended lock, such
 * as Python's. OK with null data: call gpumem_pool_allocate(). */
int gpumem_pool_try_allocate(gpumem_pool* pool, uint64_t bytes, void* stream,
                             struct gpumem_block* block);
/* As cudaMalloc: allocates a block with no pending work, usable on every stream.
 * gpumem_pool_free_synchronized() frees it. */
int gpumem_pool_allocate_synchronized(gpumem_pool* pool, uint64_t bytes,
                                      struct gpumem_block* block);
int gpumem_pool_free(gpumem_pool* pool, const struct gpumem_block* block, void* stream);
int gpumem_pool_free_pointer(gpumem_pool* pool, void* data, void* stream);
/* Frees the block if this thread's cache can take it, as gpumem_pool_try_allocate(). Otherwise does
 * nothing and sets *is_free to 0: call gpumem_pool_free_pointer(). */
int gpumem_pool_try_free_pointer(gpumem_pool* pool, void* data, void* stream, int32_t* is_free);
/* As cudaFree: blocks until all work of the device is done. */
int gpumem_pool_free_synchronized(gpumem_pool* pool, void* data);
int gpumem_pool_find(const gpumem_pool* pool, void* data, struct gpumem_block* block);

/* Writes the ticket that opens the block in other sessions of the tenant while the pool has the
 * block. `length` includes the final 0; it is also written if `capacity` is less: OUT_OF_RANGE. */
int gpumem_pool_share(gpumem_pool* pool, const struct gpumem_block* block, char* ticket,
                      size_t capacity, size_t* length);
typedef struct gpumem_shared_block gpumem_shared_block;
int gpumem_client_open_block(gpumem_client* client, const char* ticket,
                             const struct gpumem_open_options* options,
                             gpumem_shared_block** shared);
int gpumem_shared_block_get(const gpumem_shared_block* shared, struct gpumem_block* block);
struct gpumem_shared_block_info {
  size_t struct_size;
  void* data;
  uint64_t bytes;
  const char* device_uuid;
  int32_t kind;    /* enum gpumem_kind */
  int32_t backend; /* enum gpumem_backend */
};
int gpumem_shared_block_get_info(const gpumem_shared_block* shared,
                                 struct gpumem_shared_block_info* info);
int gpumem_shared_block_destroy(gpumem_shared_block* shared);

int gpumem_pool_stream_waits(gpumem_pool* pool, void* waiting, void* awaited);
int gpumem_pool_forget_stream(gpumem_pool* pool, void* stream);

/* Writes the bytes given back to `released`, which may be null. */
int gpumem_pool_trim(gpumem_pool* pool, uint64_t keep_bytes, uint64_t* released);
int gpumem_pool_free_all_blocks(gpumem_pool* pool, uint64_t* released);
int gpumem_pool_free_all_blocks_of_stream(gpumem_pool* pool, void* stream, uint64_t* released);

int gpumem_pool_set_limit(gpumem_pool* pool, uint64_t bytes); /* GPUMEM_UNLIMITED: none */
int gpumem_pool_set_limit_fraction(gpumem_pool* pool, double fraction);
int gpumem_pool_set_release_threshold(gpumem_pool* pool, uint64_t bytes); /* 0: all, at once */
/* 1: gives back free memory when others are denied memory; see keeps_under_pressure. */
int gpumem_pool_set_gives_under_pressure(gpumem_pool* pool, int gives);
int gpumem_pool_set_reuse(gpumem_pool* pool, uint32_t reuse);

struct gpumem_pool_info {
  size_t struct_size;
  const char* device_uuid;
  int32_t kind;
  int32_t backend;
  uint64_t limit_bytes;
};
int gpumem_pool_get_info(const gpumem_pool* pool, struct gpumem_pool_info* info);
/* Writes a new handle of the session by which the pool leases, also of a default pool's. Free it
 * with gpumem_client_destroy(). */
int gpumem_pool_get_client(const gpumem_pool* pool, gpumem_client** client);

struct gpumem_pool_stats {
  size_t struct_size;
  uint64_t reserved_bytes;
  uint64_t used_bytes;
  uint64_t free_bytes;
  uint64_t used_blocks;
  uint64_t free_blocks;
  uint64_t segments;
  uint64_t reserved_peak_bytes; /* since gpumem_pool_reset_peaks() */
  uint64_t used_peak_bytes;
  uint64_t allocations; /* this and all below: since the pool was created */
  uint64_t frees;
  uint64_t growths;
  uint64_t reused_after_event;
  uint64_t dependencies;
  uint64_t out_of_memory;
  uint64_t given_under_pressure_bytes;
  uint64_t moves; /* of free segments, remapped to form larger blocks */
};
int gpumem_pool_get_stats(const gpumem_pool* pool, struct gpumem_pool_stats* stats);
int gpumem_pool_reset_peaks(gpumem_pool* pool);
/* As cudaMemGetInfo, but within the tenant's quota. */
int gpumem_pool_get_mem_info(gpumem_pool* pool, uint64_t* free_bytes, uint64_t* total_bytes);

enum gpumem_pool_event_kind {
  GPUMEM_POOL_ALLOCATE = 0,
  GPUMEM_POOL_FREE = 1,
  GPUMEM_POOL_GROW = 2,
  GPUMEM_POOL_SHRINK = 3
};
struct gpumem_pool_event {
  size_t struct_size; /* the library's */
  int32_t what;       /* enum gpumem_pool_event_kind */
  void* data;
  uint64_t bytes;
  void* stream;
};
/* Sets the function called for every block and segment, possibly under the pool's lock. It must not
 * call the pool, nor wait for a thread that may. While it is set, threads cache no blocks. Null:
 * none. */
int gpumem_pool_set_hook(gpumem_pool* pool,
                         void (*hook)(void* context, const struct gpumem_pool_event* event),
                         void* context);
/* Sets the function called before an allocation fails; 1 requests a retry. Null: none. */
int gpumem_pool_set_out_of_memory_callback(gpumem_pool* pool,
                                           int (*callback)(void* context, uint64_t bytes),
                                           void* context);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_POOL_H_ */
