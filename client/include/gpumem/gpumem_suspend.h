/* SPDX-License-Identifier: Apache-2.0 */
/* Suspended segments and pools: their bytes move to the host tier, and come back to the same
 * addresses. Demoted segments: their bytes move to host memory at the same addresses, and stay
 * usable. Part of gpumem.h; see suspend.h, demote.h, and pool.h for pools. */
#ifndef GPUMEM_GPUMEM_SUSPEND_H_
#define GPUMEM_GPUMEM_SUSPEND_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_client.h"
#include "gpumem_pool.h"
#include "gpumem_segment.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpumem_suspend_options {
  size_t struct_size;
  /* Stops the program's use of the segments, before they are unmapped. Returns GPUMEM_OK, or an
   * enum gpumem_status: then nothing changes, and the call returns that. Must not release the
   * segments. Null: on the CUDA backend the call waits for the work in this process's primary
   * contexts. */
  int (*quiesce)(void* context);
  void* context;
  uint64_t timeout_ms; /* for each answer; 0: the client's, and a second for each GiB */
};
/* Suspends `count` segments of kind vmm of the client, one or more, all or none. Their addresses
 * stay reserved, and must not be used until they are resumed. */
int gpumem_client_suspend(gpumem_client* client, gpumem_segment* const* segments, size_t count,
                          const struct gpumem_suspend_options* options);

struct gpumem_resume_options {
  size_t struct_size;
  uint64_t wait_ms;                  /* for memory that others hold, as in gpumem_acquire_options */
  const gpumem_cancel_token* cancel; /* may be null; must live until the call returns */
  uint64_t timeout_ms;               /* as above, counted from the end of the wait */
};
/* Brings suspended segments back to their addresses, all or none. */
int gpumem_client_resume(gpumem_client* client, gpumem_segment* const* segments, size_t count,
                         const struct gpumem_resume_options* options);

/* Writes 1 if the segment is suspended, else 0. */
int gpumem_segment_is_suspended(const gpumem_segment* segment, int* suspended);

struct gpumem_demote_options {
  size_t struct_size;
  /* Hold the program's reads of the segments, and let them go on, around each short switch. Both or
   * none are set. `pause` returns GPUMEM_OK, or an enum gpumem_status, which the call returns then;
   * `proceed` is not called after that. Null: the call waits for the work in this process's primary
   * contexts, and the program must not use the segments until it returns. */
  int (*pause)(void* context);
  void (*proceed)(void* context);
  void* context;
  uint64_t longest_pause_ms;         /* about so long, at least one segment; 0: 5 */
  uint64_t wait_ms;                  /* for the other memory, as in gpumem_acquire_options */
  const gpumem_cancel_token* cancel; /* may be null; must live until the call returns */
  uint64_t timeout_ms;               /* as above, counted from the end of the wait */
};
/* Moves the bytes of `count` segments of kind vmm to host memory at the same addresses, all or
 * none. Nothing may write to them during the call. GPUs can use them afterwards, slower. */
int gpumem_client_demote(gpumem_client* client, gpumem_segment* const* segments, size_t count,
                         const struct gpumem_demote_options* options);
/* Moves the bytes of demoted segments back to their devices, at the same addresses, all or none. */
int gpumem_client_promote(gpumem_client* client, gpumem_segment* const* segments, size_t count,
                          const struct gpumem_demote_options* options);

/* Writes 1 if the segment is demoted, else 0. */
int gpumem_segment_is_demoted(const gpumem_segment* segment, int* demoted);

/* Suspends all memory of a pool that is in use, or changes nothing, and gives the rest back. Until
 * it is resumed, its blocks must not be used, allocating and sharing are FAILED_PRECONDITION, and
 * freeing takes effect. UNIMPLEMENTED for a pool of another kind than vmm. */
int gpumem_pool_suspend(gpumem_pool* pool, const struct gpumem_suspend_options* options);
/* Brings a suspended pool back to its addresses. After an error it stays suspended. */
int gpumem_pool_resume(gpumem_pool* pool, const struct gpumem_resume_options* options);
/* Writes 1 if the pool is suspended, or about to be, else 0. */
int gpumem_pool_is_suspended(const gpumem_pool* pool, int* suspended);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_SUSPEND_H_ */
