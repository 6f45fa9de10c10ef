/* gpumem in plain C: all of client.h, publication.h and pool.h, for every language that can call C.
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
 * the parameter "may be null". client.h, publication.h and pool.h list each call's statuses and
 * details.
 * Handles: each has a _destroy or _release function, which does nothing for null. Using a released
 * handle is undefined behaviour. Handles may be released in any order: what a handle needs lives as
 * long as it. Text that a call returns belongs to the handle and lives as long as it.
 * Structs that begin with struct_size: set it to sizeof of the struct. In options, set unused
 * fields to zero, which means the default; a null pointer to options means all defaults. So the
 * structs can grow: a library older than the program returns UNIMPLEMENTED for a field that it does
 * not know.
 * Threads: every function may be called from any thread; one segment is used by one thread at a
 * time. A thread must not be cancelled (pthread_cancel) inside a call. Callbacks must not throw.
 * fork(): a child cannot use anything that its parent created, nor connect (FAILED_PRECONDITION).
 * Fork before the first connection.
 * dlclose() does not unload the library, since it runs threads.
 * Sizes are bytes, times milliseconds, booleans 0 or 1. Streams are cudaStream_t or CUstream.
 */
#ifndef GPUMEM_GPUMEM_H_
#define GPUMEM_GPUMEM_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The high half changes if programs must be recompiled; the low half grows with each addition. A
 * library serves a program if their high halves are equal and its low half is not less. */
#define GPUMEM_API_VERSION UINT32_C(0x00010004)
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
  GPUMEM_CAUSE_UNBROKERED = 12, /* the tenant uses memory that it took past the daemon */
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

/* ---- Sessions and segments (client.h) ---- */

typedef struct gpumem_client gpumem_client;
typedef struct gpumem_segment gpumem_segment;

#define GPUMEM_UNLIMITED UINT64_MAX /* for bytes and times */

enum gpumem_kind {
  GPUMEM_KIND_DEFAULT = 0,
  GPUMEM_KIND_VMM = 1,
  GPUMEM_KIND_MEMPOOL = 2,
  GPUMEM_KIND_IPC = 3,
  GPUMEM_KIND_PINNED = 4
};
enum gpumem_backend { GPUMEM_BACKEND_CUDA = 0, GPUMEM_BACKEND_HOST = 1 };
enum gpumem_scope { GPUMEM_SCOPE_TENANT = 0, GPUMEM_SCOPE_ANY = 1 };

struct gpumem_connect_options {
  size_t struct_size;
  const char* runtime_dir; /* of the daemon's sockets; null: $GPUMEM_RUNTIME_DIR, else as found */
  const char* tenant;      /* null: the first that the daemon's rules allow */
  const char* name;        /* null: the program's */
  uint64_t timeout_ms;     /* 0: 30 s */
  int no_reconnect;        /* 1: the session ends with its daemon */
  /* 1: fails at once if no daemon listens. 0: waits for one up to timeout_ms, if the folder of its
   * sockets exists. (Not an int: that would lie in former padding.) */
  uint64_t no_wait;
};
int gpumem_client_connect(const struct gpumem_connect_options* options, gpumem_client** client);
/* Frees the handle. The session lives as long as any object created from it. */
int gpumem_client_destroy(gpumem_client* client);

struct gpumem_client_info {
  size_t struct_size;
  const char* tenant;
  const char* rule; /* that chose the tenant, in words */
  const char* daemon_version;
  uint64_t session_id;
};
int gpumem_client_get_info(const gpumem_client* client, struct gpumem_client_info* info);

/* Cancels waiting calls from another thread. */
typedef struct gpumem_cancel_token gpumem_cancel_token;
int gpumem_cancel_token_create(gpumem_cancel_token** token);
/* Cancels the token's calls, present and future: they return CANCELLED. */
int gpumem_cancel_token_cancel(gpumem_cancel_token* token);
int gpumem_cancel_token_is_cancelled(const gpumem_cancel_token* token, int* cancelled);
/* Frees the handle. Its calls continue, and can no longer be cancelled. */
int gpumem_cancel_token_destroy(gpumem_cancel_token* token);

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
  int32_t reserved;   /* 0 */
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

/* ---- Devices and usage ---- */

typedef struct gpumem_device_list gpumem_device_list;

struct gpumem_device {
  size_t struct_size;
  const char* uuid;
  const char* name;
  const char* pci_bus_id;
  int32_t backend; /* enum gpumem_backend */
  uint64_t capacity_bytes;
  uint64_t charged_bytes;
  uint64_t granularity_bytes;
  uint64_t pool_granularity_bytes; /* of kind mempool if it differs, else 0 */
  uint64_t driver_free_bytes;      /* 0: unknown */
  const int32_t* kinds;            /* enum gpumem_kind; the first is the default */
  size_t kind_count;
  size_t peer_count;
};
struct gpumem_peer {
  size_t struct_size;
  const char* uuid;
  int32_t access;
  int32_t native_atomics;
  int32_t performance_rank; /* 0: the fastest link of the node */
};
/* Writes a snapshot of the devices. `count` may be null. */
int gpumem_client_list_devices(gpumem_client* client, gpumem_device_list** devices, size_t* count);
int gpumem_device_list_get(const gpumem_device_list* devices, size_t index,
                           struct gpumem_device* device);
int gpumem_device_list_get_peer(const gpumem_device_list* devices, size_t index, size_t peer_index,
                                struct gpumem_peer* peer);
int gpumem_device_list_destroy(gpumem_device_list* devices);

typedef struct gpumem_usage gpumem_usage;

struct gpumem_tenant_usage {
  size_t struct_size;
  const char* tenant;
  uint64_t charged_bytes;
  uint32_t segments;
  uint32_t sessions;
  size_t device_count;
  uint64_t waiting; /* requests that wait for memory */
};
struct gpumem_device_usage {
  size_t struct_size;
  const char* device_uuid;
  uint64_t leased_bytes;
  uint64_t retained_bytes;
  uint64_t lingering_bytes;
  uint64_t charged_bytes;
  uint64_t limit_bytes;
  uint64_t peak_bytes;
  uint64_t guarantee_bytes;
  uint64_t borrowed_bytes; /* held above the guarantee */
  uint64_t waiting_bytes;  /* for which requests wait */
  uint64_t waiting;        /* requests that wait */
  uint64_t revocable_bytes;
};
/* Writes a snapshot of what the client's tenant holds. */
int gpumem_client_get_usage(gpumem_client* client, gpumem_usage** usage);
int gpumem_usage_get_tenant(const gpumem_usage* usage, struct gpumem_tenant_usage* tenant);
int gpumem_usage_get_device(const gpumem_usage* usage, size_t index,
                            struct gpumem_device_usage* device);
int gpumem_usage_destroy(gpumem_usage* usage);

/* ---- Interprocess events ---- */

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

/* ---- Events of the daemon ---- */

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

/* ---- Publications (publication.h) ---- */

typedef struct gpumem_attachment gpumem_attachment;

enum gpumem_publication_access {
  GPUMEM_PUBLICATION_ACCESS_TENANT = 0, /* sessions of the publisher's tenant attach to it */
  GPUMEM_PUBLICATION_ACCESS_ANY = 1     /* those of every tenant */
};

struct gpumem_publish_options {
  size_t struct_size;
  const void* metadata; /* any bytes, which are copied; every attachment receives them */
  size_t metadata_bytes;
  int32_t access;           /* enum gpumem_publication_access */
  int32_t ephemeral;        /* ends with the client's session */
  uint64_t expire_after_ms; /* ends after that long without an attachment; 0: never */
  uint64_t timeout_ms;
};
/* Publishes `count` segments of the client. The caller keeps them and may release them at once.
 * Writes the new version to `version`, which may be null. */
int gpumem_client_publish(gpumem_client* client, const char* name,
                          const gpumem_segment* const* segments, size_t count,
                          const struct gpumem_publish_options* options, uint64_t* version);
/* Existing attachments stay. Writes the newest version to `version`, which may be null. */
int gpumem_client_unpublish(gpumem_client* client, const char* name, uint64_t* version);

struct gpumem_attach_options {
  size_t struct_size;
  uint64_t wait_for_version; /* or a later one, also of a future name; 0: the newest that exists */
  uint64_t wait_ms; /* for that version; 0 and GPUMEM_UNLIMITED: for as long as the session lives */
  const gpumem_cancel_token* cancel; /* may be null; must live until the call returns */
  const char* const* map_devices;    /* as in gpumem_open_options, with what follows */
  size_t map_device_count;
  void* address;
  uint64_t timeout_ms; /* for the answer, from the end of the wait */
  int32_t revocable;
  int32_t writable; /* 1: other attachments see the writes; 0: a write faults */
};
int gpumem_client_attach(gpumem_client* client, const char* name,
                         const struct gpumem_attach_options* options,
                         gpumem_attachment** attachment);

struct gpumem_attachment_info {
  size_t struct_size;
  void* data; /* all segments, one after another; null if they are of several devices or kinds */
  uint64_t bytes;
  uint64_t version;
  const char* tenant;   /* the publisher's */
  const void* metadata; /* lives as long as the handle */
  size_t metadata_bytes;
  size_t segment_count;
};
int gpumem_attachment_get_info(const gpumem_attachment* attachment,
                               struct gpumem_attachment_info* info);
/* Describes one segment, in the publisher's order. FAILED_PRECONDITION once it was taken out. */
int gpumem_attachment_get_segment(const gpumem_attachment* attachment, size_t index,
                                  struct gpumem_segment_info* info);
/* Transfers one segment to the caller, which must release it. The attachment's `data` and `bytes`
 * no longer cover its place. */
int gpumem_attachment_take_segment(gpumem_attachment* attachment, size_t index,
                                   gpumem_segment** segment);
/* Unmaps all of it, ends its leases in one call, and frees the handle, whatever the status. No GPU
 * work may use the memory by then. */
int gpumem_attachment_release(gpumem_attachment* attachment);

typedef struct gpumem_publication_list gpumem_publication_list;

/* The newest version under a name. */
struct gpumem_publication {
  size_t struct_size;
  const char* tenant;
  const char* name;
  uint64_t version;
  uint64_t bytes;
  uint64_t metadata_bytes;
  uint32_t segments;
  uint32_t attached_sessions; /* to this version */
  int32_t access;             /* enum gpumem_publication_access */
  int32_t ephemeral;
  uint64_t age_ms;
  uint64_t expire_after_ms; /* GPUMEM_UNLIMITED: never */
  uint64_t expires_in_ms;   /* if no attachment changes that; GPUMEM_UNLIMITED: never */
  /* For the client's tenant only, else 0 and "". The pid is in the daemon's PID namespace. */
  uint64_t publisher_session_id;
  const char* publisher_name;
  int32_t publisher_pid;
  int32_t publisher_alive;
};
/* Lists what the client may attach to, of one tenant or all (null), by tenant and name. `count` may
 * be null. */
int gpumem_client_list_publications(gpumem_client* client, const char* tenant,
                                    gpumem_publication_list** publications, size_t* count);
int gpumem_publication_list_get(const gpumem_publication_list* publications, size_t index,
                                struct gpumem_publication* publication);
int gpumem_publication_list_destroy(gpumem_publication_list* publications);

/* ---- Pools (pool.h) ---- */

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
  uint64_t grow_bytes;               /* 0: 8 MiB */
  uint64_t wait_ms;                  /* for memory if none is left; may be GPUMEM_UNLIMITED */
  int32_t keeps_under_pressure;      /* 1: keeps free memory when others are denied memory */
  int32_t revocable;                 /* 1: its segments are; revocation takes the free ones back */
  /* Called by a thread of the pool if blocks in use lie in segments that are revoked. Free them
   * within `until_end_ms`, or the process is ended. The leases are all the session's revoked ones.
   * Must not destroy the pool. May be null. */
  void (*on_revocation)(void* revocation_context, const uint64_t* lease_ids, size_t count,
                        uint64_t until_end_ms);
  void* revocation_context;
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

/* ---- For frameworks ----
 *
 * These functions use one default pool per device. The process creates it at first use and never
 * destroys it: memory may be freed at any time, also while the process exits. A device is an
 * ordinal as this process sees it (on the host backend: as the daemon counts). Default pools share
 * one session. The environment configures them:
 *
 *   GPUMEM_RUNTIME_DIR              the folder of the daemon's sockets
 *   GPUMEM_TENANT                   the tenant to charge, among those that the daemon allows
 *   GPUMEM_POOL_KIND                vmm, mempool, ipc or pinned
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

/* Writes the default pool of a device. The library owns it: do not destroy it. */
int gpumem_default_pool(int device, gpumem_pool** pool);

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

#endif /* GPUMEM_GPUMEM_H_ */
