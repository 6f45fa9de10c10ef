/* SPDX-License-Identifier: Apache-2.0 */
/* Version, statuses, errors and denials of the C ABI. Part of gpumem.h. */
#ifndef GPUMEM_GPUMEM_STATUS_H_
#define GPUMEM_GPUMEM_STATUS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The high half changes if programs must be recompiled; the low half grows with each addition. A
 * library serves a program if their high halves are equal and its low half is not less. */
#define GPUMEM_API_VERSION UINT32_C(0x00010006)
/* Returns the API version of the library. */
uint32_t gpumem_version(void);

enum gpumem_status {
  GPUMEM_OK = 0,
  GPUMEM_CANCELLED = 1,
  GPUMEM_UNKNOWN = 2,
  GPUMEM_INVALID_ARGUMENT = 3,
  GPUMEM_DEADLINE_EXCEEDED = 4, /* the daemon did not answer in time; of Attach: the wait is over */
  GPUMEM_NOT_FOUND = 5,
  GPUMEM_ALREADY_EXISTS = 6,
  GPUMEM_PERMISSION_DENIED = 7,
  GPUMEM_RESOURCE_EXHAUSTED = 8, /* see gpumem_last_denial() */
  GPUMEM_FAILED_PRECONDITION = 9,
  GPUMEM_ABORTED = 10,
  GPUMEM_OUT_OF_RANGE = 11,
  GPUMEM_UNIMPLEMENTED = 12,
  GPUMEM_INTERNAL = 13,
  GPUMEM_UNAVAILABLE = 14, /* the daemon is gone or draining */
  GPUMEM_DATA_LOSS = 15,
  GPUMEM_UNAUTHENTICATED = 16
};

/* Returns the name of a status, as "NOT_FOUND". Never null; lives for ever. */
const char* gpumem_status_name(int status);

/* Returns one sentence on the error of this thread's last failed call and its remedy; "" before the
 * first. Never null; valid until the thread's next failed call. Truncated if very long. */
const char* gpumem_last_error(void);

enum gpumem_cause {
  GPUMEM_CAUSE_UNKNOWN = 0,
  GPUMEM_CAUSE_DEVICE_LIMIT = 1,
  GPUMEM_CAUSE_TOTAL_LIMIT = 2,
  GPUMEM_CAUSE_CAPACITY = 3,
  GPUMEM_CAUSE_DRIVER = 4,
  GPUMEM_CAUSE_MAX_SEGMENTS = 5,
  GPUMEM_CAUSE_MAX_SESSIONS = 6,
  GPUMEM_CAUSE_MAX_IN_FLIGHT = 7,
  GPUMEM_CAUSE_DAEMON_LIMIT = 8,
  GPUMEM_CAUSE_MAX_WAITING = 9, /* too many requests wait */
  GPUMEM_CAUSE_GUARANTEES = 10, /* the free memory is guaranteed to others */
  GPUMEM_CAUSE_QUEUE = 11,      /* the free memory is reserved for requests ahead in the queue */
  GPUMEM_CAUSE_UNBROKERED = 12, /* the tenant uses memory that it took past the broker */
  GPUMEM_CAUSE_MAX_PUBLICATIONS = 13
};

/* A plain value, which never grows. */
struct gpumem_holder {
  const char* tenant;
  uint64_t used;
};

/* A refusal as data. asked, used and limit are bytes for memory, else counts. */
struct gpumem_denial {
  size_t struct_size;
  int32_t cause; /* enum gpumem_cause */
  const char* tenant;
  const char* device_uuid;
  uint64_t asked;
  uint64_t used;
  uint64_t limit;
  const char* help;
  const char* limited_tenant; /* the tenant above `tenant` whose limit it is; "": `tenant`'s own */
  const struct gpumem_holder* holders; /* the largest holders of `used` first; a few */
  size_t holder_count;
};

/* Writes why this thread's last failed call was refused. Its text lives as long as
 * gpumem_last_error()'s. Returns NOT_FOUND if it was no refusal, and keeps the last error then. */
int gpumem_last_denial(struct gpumem_denial* denial);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_STATUS_H_ */
