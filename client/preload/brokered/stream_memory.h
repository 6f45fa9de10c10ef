/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory of broker mode: what cuMemAllocAsync() gives from a device's default pool.
 * It is gpumem's, in a pool of libgpumem beside that of cuMemAlloc(). Frees go through the
 * functions of brokered_memory.h. All functions are thread-safe and may block.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct GpumemBrokeredDevice; /* brokered_memory.h */

/* Bytes, as the attributes of a memory pool: of blocks rounded up to 512, and of what the pool
 * holds of the device; each now, and the most since reset_high(). */
struct GpumemPoolFigures {
  uint64_t used;
  uint64_t used_high;
  uint64_t reserved;
  uint64_t reserved_high;
};

/* Which memory that was freed on another stream a stream may get (CU_MEMPOOL_ATTR_REUSE_...). */
enum GpumemStreamReuse {
  GPUMEM_STREAM_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
  GPUMEM_STREAM_REUSE_ALLOW_OPPORTUNISTIC = 2,
  GPUMEM_STREAM_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 4
};

struct GpumemStreamMemory {
  /* Allocates memory for work on a stream of the device's primary context, which the process must
   * have. CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are streams; null is none. Returns a
   * GpumemAnswer: GPUMEM_ACCOUNTANT_UNLIMITED where the driver has to allocate, as the stream is
   * being captured. */
  int (*allocate)(struct GpumemBrokeredDevice* device, uint64_t bytes, void* stream,
                  uint64_t* address);

  /* True if the block that begins there is one of allocate(). */
  int (*contains)(uint64_t base);

  void (*get_figures)(struct GpumemBrokeredDevice* device, struct GpumemPoolFigures* figures);
  /* Makes the highest figure of used, or of reserved bytes the present one. */
  void (*reset_high)(struct GpumemBrokeredDevice* device, int of_used);

  /* Gives back unused memory as long as that many bytes stay reserved. */
  void (*trim)(struct GpumemBrokeredDevice* device, uint64_t least_reserved);

  /* Flags of enum GpumemStreamReuse. Before the first call: all. */
  void (*set_reuse)(struct GpumemBrokeredDevice* device, uint32_t flags);
};

#ifdef __cplusplus
}
#endif
