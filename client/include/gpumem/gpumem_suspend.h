/* SPDX-License-Identifier: Apache-2.0 */
/* Suspended segments and pools: their bytes move to the host tier, and come back to the same
 * addresses. Demoted segments: their bytes move to host memory at the same addresses, and stay
 * usable. Requests of others to suspend. Part of gpumem.h; see suspend.h, demote.h, and pool.h for
 * pools. */
#ifndef GPUMEM_GPUMEM_SUSPEND_H_
#define GPUMEM_GPUMEM_SUSPEND_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumem_client.h"
#include "gpumem_pool.h"
#include "gpumem_segment.h"
#include "gpumem_watch.h"

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

enum gpumem_suspension_cause {
  GPUMEM_SUSPENSION_OPERATOR = 0,      /* an operator, who also asks to resume */
  GPUMEM_SUSPENSION_MEMORY_NEEDED = 1, /* another request waits; the program resumes by itself */
  GPUMEM_SUSPENSION_IDLE = 2           /* the session was idle for long; the same */
};

enum gpumem_swappable {
  GPUMEM_SWAPPABLE_BY_QUOTA = 0, /* the tenant's quota says if others than operators may ask */
  GPUMEM_SWAPPABLE_NEVER = 1,    /* they may not */
  GPUMEM_SWAPPABLE_ALWAYS = 2    /* they may */
};

/* A request to the program. The library owns it, for the time of the call. */
struct gpumem_suspension_request {
  size_t struct_size; /* the library's */
  int32_t resume;     /* 1: to resume; 0: to suspend */
  int32_t cause;      /* enum gpumem_suspension_cause */
  const char* tag;    /* of the segments that are meant; "": all memory */
  uint64_t left_ms;   /* until the request ends; above 0 */
};

/* One of `segments`, `pools` and `serve` is required; the others may be null. All are called in one
 * thread of the watch, which also suspends and resumes. From `segments` and `pools` to the next of
 * `suspended`, `resumed`, `failed` and `done`, no other thread may use or release what they name.
 */
struct gpumem_suspension_handlers {
  size_t struct_size;
  void* context; /* given to each */
  /* Returns how many segments the program offers, and writes their list. List and segments belong
   * to the program, and live until `done`. It may block until another thread is done with them. */
  size_t (*segments)(void* context, gpumem_segment* const** segments);
  int (*quiesce)(void* context); /* as in gpumem_suspend_options */
  /* All segments that were asked for are suspended. Must not suspend or resume. */
  void (*suspended)(void* context, int cause); /* enum gpumem_suspension_cause */
  void (*resumed)(void* context);              /* all that were asked for are back */
  void (*failed)(void* context, int status, const char* message);
  void (*done)(void* context); /* last for each request, also if there was nothing to do */
  void (*ended)(void* context, int status, const char* message); /* the watch has ended */
  int32_t swappable;                                             /* enum gpumem_swappable */
  /* As `segments`, for pools of kind vmm. Not called if the operator names a tag. If there are any,
   * `quiesce` is called before all else. */
  size_t (*pools)(void* context, gpumem_pool* const** pools);
  /* In place of all others but `ended` and `swappable`: serves the request by calls such as
   * gpumem_pool_suspend(), and returns when that is done or has failed. */
  void (*serve)(void* context, const struct gpumem_suspension_request* request);
  /* Both set: operators can demote and promote the segments, too. As in gpumem_demote_options.
   * Nothing writes to the segments meanwhile. */
  int (*pause)(void* context);
  void (*proceed)(void* context);
  /* As `segments`, and called in its place to demote or promote: those that the program does not
   * write to. Null: those of `segments` that can be demoted. */
  size_t (*demotable)(void* context, gpumem_segment* const** segments);
};
/* Lets operators suspend and resume this process, and the daemon suspend it if it is swappable,
 * until gpumem_watch_destroy(). */
int gpumem_client_serve_suspensions(gpumem_client* client,
                                    const struct gpumem_suspension_handlers* handlers,
                                    gpumem_watch** watch);

/* Tells the daemon that the program uses its memory now, so that others are asked to suspend first.
 * Cheap: makes one call a second at most, waits for at most 100 ms, and ignores errors. */
int gpumem_client_report_activity(gpumem_client* client);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_SUSPEND_H_ */
