/* SPDX-License-Identifier: Apache-2.0 */
/* gpumem in plain C: all of client.h, publication.h, files.h, suspend.h, demote.h and pool.h, for
 * every language that can call C.
 *
 *   gpumem_client* client;
 *   gpumem_pool* pool;
 *   struct gpumem_block block;
 *   if (gpumem_client_connect(NULL, &client) != GPUMEM_OK) return fail(gpumem_last_error());
 *   gpumem_pool_create(client, NULL, &pool);
 *   gpumem_pool_allocate(pool, 1 << 20, stream, &block);
 *   kernel(block.data, stream);
 *   gpumem_pool_free(pool, &block, stream);
 *
 * Status: a function that returns int returns an enum gpumem_status: a code of gRPC and Abseil. It
 * writes its out-parameters only if it returns GPUMEM_OK. A null pointer is INVALID_ARGUMENT unless
 * the parameter "may be null". client.h, publication.h, files.h, suspend.h, demote.h and pool.h
 * list each call's statuses and details. Handles: each has a _destroy or _release function, which
 * does nothing for null. Using a released handle is undefined behaviour. Handles may be released in
 * any order: what a handle needs lives as long as it. Text that a call returns belongs to the
 * handle and lives as long as it. Structs that begin with struct_size: set it to sizeof of the
 * struct. In options, set unused fields to zero, which means the default; a null pointer to options
 * means all defaults. So the structs can grow: a library older than the program returns
 * UNIMPLEMENTED for a field that it does not know. Threads: every function may be called from any
 * thread; one segment is used by one thread at a time. A thread must not be cancelled
 * (pthread_cancel) inside a call. Callbacks must not throw. fork(): a child cannot use anything
 * that its parent created, nor connect (FAILED_PRECONDITION). Fork before the first connection.
 * dlclose() does not unload the library, since it runs threads.
 * Sizes are bytes, times milliseconds, booleans 0 or 1. Streams are cudaStream_t or CUstream.
 *
 * Programs include this header. The declarations stand by subject in these:
 *
 *   gpumem_status.h       version, statuses, errors, denials
 *   gpumem_client.h       sessions, cancellation
 *   gpumem_segment.h      acquiring, opening and sharing of memory
 *   gpumem_suspend.h      suspending and demoting segments
 *   gpumem_device.h       devices, usage
 *   gpumem_tenant.h       tenants under the program's
 *   gpumem_event.h        interprocess events
 *   gpumem_watch.h        events of the daemon
 *   gpumem_publication.h  publications
 *   gpumem_files.h        publications of files
 *   gpumem_pool.h         the block pool
 *   gpumem_frameworks.h   default pools; PyTorch, CuPy and RMM
 */
#ifndef GPUMEM_GPUMEM_H_
#define GPUMEM_GPUMEM_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpumem_client.h"
#include "gpumem_device.h"
#include "gpumem_event.h"
#include "gpumem_files.h"
#include "gpumem_frameworks.h"
#include "gpumem_pool.h"
#include "gpumem_publication.h"
#include "gpumem_segment.h"
#include "gpumem_status.h"
#include "gpumem_suspend.h"
#include "gpumem_tenant.h"
#include "gpumem_watch.h"

#endif /* GPUMEM_GPUMEM_H_ */
