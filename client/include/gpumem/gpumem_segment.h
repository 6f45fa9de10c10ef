/* SPDX-License-Identifier: Apache-2.0 */
/* Acquiring, opening and sharing of segments. Part of gpumem.h; see segment.h. */
#ifndef GPUMEM_GPUMEM_SEGMENT_H_
#define GPUMEM_GPUMEM_SEGMENT_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_client.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpumem_segment gpumem_segment;

enum gpumem_kind {
  GPUMEM_KIND_DEFAULT = 0,
  GPUMEM_KIND_VMM = 1,
  GPUMEM_KIND_MEMPOOL = 2,
  GPUMEM_KIND_IPC = 3,
  GPUMEM_KIND_PINNED = 4,
  GPUMEM_KIND_HOST = 6,
  GPUMEM_KIND_DRIVER = 7 /* charged; the process allocates it from its CUDA driver itself */
};
enum gpumem_backend { GPUMEM_BACKEND_CUDA = 0, GPUMEM_BACKEND_HOST = 1 };
enum gpumem_scope { GPUMEM_SCOPE_TENANT = 0, GPUMEM_SCOPE_ANY = 1 };

struct gpumem_acquire_options {
  size_t struct_size;
  uint64_t bytes;     /* of each segment */
  const char* device; /* UUID, PCI bus id, ordinal or "most-free"; null: the first that serves */
  int32_t kind;       /* enum gpumem_kind */
  const char* const* map_devices; /* the GPUs that will use the memory; null: the segment's */
  size_t map_device_count;
  void* address; /* requested; null: any */
  uint64_t timeout_ms;
  uint64_t wait_ms; /* for memory that others hold; 0: denied at once; GPUMEM_UNLIMITED: no limit */
  const gpumem_cancel_token* cancel; /* may be null; must live until the call returns */
  int32_t revocable;                 /* may be revoked (the watch's revocation) */
  int32_t without_pressure;          /* 1: asks no other session to give memory back */
  const char* tag;  /* to select by: at most 32 letters, digits, '_', '.', '-'; null: none */
  int32_t scratch;  /* 1: bytes are dropped when it is suspended (suspend.h); kind vmm only */
  int32_t reserved; /* 0 */
};
int gpumem_client_acquire(gpumem_client* client, const struct gpumem_acquire_options* options,
                          gpumem_segment** segment);
/* Acquires `count` segments of one size, 1 to 253, all or none; contiguous if the kind allows. */
int gpumem_client_acquire_many(gpumem_client* client, const struct gpumem_acquire_options* options,
                               size_t count, gpumem_segment** segments);

struct gpumem_open_options {
  size_t struct_size;
  int32_t read_only;
  const char* const* map_devices;
  size_t map_device_count;
  void* address;
  uint64_t timeout_ms;
  int32_t revocable; /* required for revocable segments */
  int32_t reserved;  /* 0 */
};
int gpumem_client_open(gpumem_client* client, const char* ticket,
                       const struct gpumem_open_options* options, gpumem_segment** segment);
int gpumem_client_open_many(gpumem_client* client, const char* const* tickets, size_t count,
                            const struct gpumem_open_options* options, gpumem_segment** segments);

/* Unmaps the memory, ends the lease, and frees the handle, whatever the status. No GPU work may use
 * the memory by then. */
int gpumem_segment_release(gpumem_segment* segment);
/* As gpumem_segment_release, but does not wait for the daemon. It is told with the next call of any
 * client of this process, before the call's answer, and else within a millisecond or so. Until then
 * the memory stays charged. An error of that is not reported: it is tried again. */
int gpumem_segment_release_async(gpumem_segment* segment);

struct gpumem_segment_info {
  size_t struct_size;
  void* data; /* a device pointer; on the host backend, an ordinary one */
  uint64_t bytes;
  const char* device_uuid;
  int32_t kind;    /* enum gpumem_kind */
  int32_t backend; /* enum gpumem_backend */
  uint64_t lease_id;
  uint64_t segment_id;
  int32_t reused;     /* 1: holds old bytes of this tenant; 0: zeroed */
  int32_t registered; /* of kind pinned: GPUs can use it, too */
  int32_t revocable;  /* may be revoked */
  int32_t scratch;    /* its bytes are dropped when it is suspended */
  const char* tag;    /* of gpumem_acquire_options, never null; valid as long as the segment */
};
int gpumem_segment_get_info(const gpumem_segment* segment, struct gpumem_segment_info* info);

/* Writes the ticket that opens the segment elsewhere. It lives as long as the handle. Keep
 * secret. */
int gpumem_segment_share(gpumem_segment* segment, int32_t scope, const char** ticket);

struct gpumem_handle {
  uint8_t bytes[64];
};
/* Handles for programs that do not use gpumem; UNIMPLEMENTED for a kind that has none. ipc: the
 * cudaIpcMemHandle_t. mempool: the cudaMemPoolPtrExportData and the descriptor. vmm and pinned: the
 * descriptor. The segment owns the descriptors: do not close them. */
int gpumem_segment_get_ipc_handle(const gpumem_segment* segment, struct gpumem_handle* handle);
int gpumem_segment_get_export_data(const gpumem_segment* segment, struct gpumem_handle* data);
int gpumem_segment_get_pool_fd(const gpumem_segment* segment, int* fd);
int gpumem_segment_get_fd(gpumem_segment* segment, int* fd);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_SEGMENT_H_ */
