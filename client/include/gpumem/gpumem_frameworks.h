/* SPDX-License-Identifier: Apache-2.0 */
/* Default pools, and entry points in the shapes of PyTorch, CuPy and RMM. Part of gpumem.h.
 *
 * These functions use one default pool per device. The process creates it at first use and never
 * destroys it: memory may be freed at any time, also while the process exits. A device is an
 * ordinal as this process sees it (on the host backend: as the daemon counts). Default pools share
 * one session. The environment configures them:
 *
 *   GPUMEM_RUNTIME_DIR              the folder of the daemon's sockets
 *   GPUMEM_TENANT                   the tenant to charge, among those that the daemon allows
 *   GPUMEM_POOL_KIND                vmm, mempool, ipc, pinned or host
 *   GPUMEM_POOL_LIMIT               "40GiB", or "50%" of what the tenant may have on the device
 *   GPUMEM_POOL_RELEASE_THRESHOLD   "1GiB": free segments above it are released
 *   GPUMEM_POOL_GROW                "256MiB": the minimum that is leased at once
 *   GPUMEM_POOL_WAIT                "30s": how long to wait for memory if none is left
 *   GPUMEM_POOL_PER_THREAD_STREAM   "1": a null stream is the thread's own
 *   GPUMEM_POOL_KEEPS_UNDER_PRESSURE "1": keeps free memory when others are denied memory
 *
 * The allocation functions return null for zero bytes, which is no error, and on failure. PyTorch
 * and CuPy do not look for the error: gpumem_last_error() is printed to stderr, too. Freeing null
 * does nothing.
 */
#ifndef GPUMEM_GPUMEM_FRAMEWORKS_H_
#define GPUMEM_GPUMEM_FRAMEWORKS_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpumem_pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the default pool of a device. The library owns it: do not destroy it. */
int gpumem_default_pool(int device, gpumem_pool** pool);
/* As above, but makes no pool. NOT_FOUND: this process has not used the device's pool yet. */
int gpumem_find_default_pool(int device, gpumem_pool** pool);

/* For torch.cuda.memory.CUDAPluggableAllocator("libgpumem.so", "gpumem_torch_malloc",
 * "gpumem_torch_free"). PyTorch frees on the stream that it allocated on, so that stream must wait
 * for other streams that use the memory (torch.Tensor.record_stream does nothing there). Graphs:
 * pool.h. */
void* gpumem_torch_malloc(ssize_t size, int device, void* stream);
void gpumem_torch_free(void* ptr, ssize_t size, int device, void* stream);

/* For cupy.cuda.CFunctionAllocator(param, malloc, free, owner). `param` is a gpumem_pool of any
 * device, or null: the default pool of `device`. CuPy passes no stream, so the memory is usable on
 * every stream (gpumem_pool_allocate_synchronized). Freeing blocks until the device is idle, as
 * cudaFree does; CuPy's pool relies on that. To avoid this wait at each free, put CuPy's pool on
 * top: cupy.cuda.MemoryPool(allocator.malloc). */
void* gpumem_cupy_malloc(void* param, size_t size, int device);
void gpumem_cupy_free(void* param, void* ptr, int device);

/* For rmm's callback_memory_resource and similar. `context` is a gpumem_pool, or null: the default
 * pool of the current CUDA device, or of device 0 if there is none. */
void* gpumem_rmm_allocate(size_t bytes, void* stream, void* context);
void gpumem_rmm_deallocate(void* ptr, size_t bytes, void* stream, void* context);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_FRAMEWORKS_H_ */
