/* SPDX-License-Identifier: Apache-2.0 */
/* Interprocess events. Part of gpumem.h; see event.h. */
#ifndef GPUMEM_GPUMEM_EVENT_H_
#define GPUMEM_GPUMEM_EVENT_H_

#include <stddef.h>

#include "gpumem_client.h"
#include "gpumem_segment.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpumem_event gpumem_event;

struct gpumem_event_options {
  size_t struct_size;
  const char* name;              /* set either this or `segment` */
  const gpumem_segment* segment; /* must live until the call returns */
  const char* device;            /* null: the segment's, or the first */
};
int gpumem_client_create_event(gpumem_client* client, const struct gpumem_event_options* options,
                               gpumem_event** event);
int gpumem_client_open_event(gpumem_client* client, const char* name, gpumem_event** event);
/* Opens the events beside a segment; returns at most `capacity`, and their number in `count`. */
int gpumem_client_open_events(gpumem_client* client, const gpumem_segment* segment,
                              gpumem_event** events, size_t capacity, size_t* count);
int gpumem_event_record(gpumem_event* event, void* stream);
int gpumem_event_wait(gpumem_event* event, void* stream);
int gpumem_event_synchronize(gpumem_event* event);
int gpumem_event_is_done(const gpumem_event* event, int* done);
int gpumem_event_get_handle(const gpumem_event* event, struct gpumem_handle* handle);
/* Writes the cudaEvent_t; null on the host backend. */
int gpumem_event_get_cuda_event(const gpumem_event* event, void** cuda_event);
int gpumem_event_destroy(gpumem_event* event);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_EVENT_H_ */
