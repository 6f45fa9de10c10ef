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
 * Status: every function that returns int answers one of enum gpumem_status, and writes to its
 * out-parameters only where that is GPUMEM_OK. Those of gRPC and Abseil, with their numbers. A
 * null where a pointer is needed is INVALID_ARGUMENT; "may be null" says where none is. client.h,
 * publication.h and pool.h say which statuses a call has, and what it does in more words.
 * Handles: each is ended by its own _destroy or _release, which takes null, too, and does nothing
 * then. Using one that was ended is an error that nobody sees. They may be ended in any order: what
 * a handle needs lives as long as it. Text that a call gives belongs to the handle and lives as
 * long as that.
 * Structs that begin with struct_size: set that to sizeof of the struct and, of options, what is
 * not said to zero, which means the default; a null pointer to options is all defaults. So the
 * structs can grow: a library that is older than the program answers UNIMPLEMENTED where it is
 * asked for what it does not know.
 * Threads: every function may be called from any thread; one segment is used by one thread at a
 * time. A thread may not be cancelled (pthread_cancel) inside a call. Callbacks may not throw.
 * fork(): a child can use nothing that its parent has made, and not connect (FAILED_PRECONDITION);
 * fork before the first connection.
 * The library is not unloaded by dlclose(), since it has threads of its own.
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

/* The high half changes where programs must be compiled again, the low half grows with what is
 * added: a library serves a program where its high half is the same and its low half not less. */
#define GPUMEM_API_VERSION UINT32_C(0x00010004)
/* That of the library. */
uint32_t gpumem_version(void);

enum gpumem_status {
  GPUMEM_OK = 0,
  GPUMEM_CANCELLED = 1,
  GPUMEM_UNKNOWN = 2,
  GPUMEM_INVALID_ARGUMENT = 3,
  GPUMEM_DEADLINE_EXCEEDED = 4, /* the daemon did not answer in time */
  GPUMEM_NOT_FOUND = 5,
  GPUMEM_ALREADY_EXISTS = 6,
  GPUMEM_PERMISSION_DENIED = 7,
  GPUMEM_RESOURCE_EXHAUSTED = 8, /* see gpumem_last_denial() */
  GPUMEM_FAILED_PRECONDITION = 9,
  GPUMEM_ABORTED = 10,
  GPUMEM_OUT_OF_RANGE = 11,
  GPUMEM_UNIMPLEMENTED = 12,
  GPUMEM_INTERNAL = 13,
  GPUMEM_UNAVAILABLE = 14, /* the daemon is not there, or goes */
  GPUMEM_DATA_LOSS = 15,
  GPUMEM_UNAUTHENTICATED = 16
};

/* "NOT_FOUND". Never null; lives for ever. */
const char* gpumem_status_name(int status);

/* What was wrong and what would help, in one sentence, of this thread's last call that failed; ""
 * before the first. Never null; valid until the thread's next call that fails. Cut where it is very
 * long. */
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
  GPUMEM_CAUSE_GUARANTEES = 10, /* what is free is guaranteed to others */
  GPUMEM_CAUSE_QUEUE = 11,      /* what is free is waited for by requests that go first */
  GPUMEM_CAUSE_UNBROKERED = 12, /* the tenant uses memory that it took past the daemon */
  GPUMEM_CAUSE_MAX_PUBLICATIONS = 13
};

/* A plain value, which does not grow. */
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
  const char* limited_tenant; /* whose limit, where that is not the tenant but one it is under */
  const struct gpumem_holder* holders; /* of what is used, the largest first; a few */
  size_t holder_count;
};

/* Why this thread's last call that failed was refused; its text is valid as gpumem_last_error()'s.
 * NOT_FOUND where it was no refusal: that leaves the last error as it is. */
int gpumem_last_denial(struct gpumem_denial* denial);

/* ---- Sessions and segments (client.h) ---- */

typedef struct gpumem_client gpumem_client;
typedef struct gpumem_segment gpumem_segment;

#define GPUMEM_UNLIMITED UINT64_MAX /* of bytes and of times */

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
  int no_reconnect;        /* 1: the session ends with its daemon, and goes on with no other */
  /* 1: fails at once where no daemon listens. 0: waits for one within timeout_ms, where the folder
   * of its sockets exists. (No int: it would lie in what was padding before.) */
  uint64_t no_wait;
};
int gpumem_client_connect(const struct gpumem_connect_options* options, gpumem_client** client);
/* The session lives on as long as anything that was made of it. */
int gpumem_client_destroy(gpumem_client* client);

struct gpumem_client_info {
  size_t struct_size;
  const char* tenant;
  const char* rule; /* that named the tenant, in words */
  const char* daemon_version;
  uint64_t session_id;
};
int gpumem_client_get_info(const gpumem_client* client, struct gpumem_client_info* info);

/* Ends waits from another thread. */
typedef struct gpumem_cancel_token gpumem_cancel_token;
int gpumem_cancel_token_create(gpumem_cancel_token** token);
/* The calls that have it end with CANCELLED, those to come, too. */
int gpumem_cancel_token_cancel(gpumem_cancel_token* token);
int gpumem_cancel_token_is_cancelled(const gpumem_cancel_token* token, int* cancelled);
/* Calls that have it go on; it cannot end them any more. */
int gpumem_cancel_token_destroy(gpumem_cancel_token* token);

struct gpumem_acquire_options {
  size_t struct_size;
  uint64_t bytes;     /* of each segment */
  const char* device; /* UUID, PCI bus id, ordinal or "most-free"; null: the first that serves */
  int32_t kind;       /* enum gpumem_kind */
  const char* const* map_devices; /* whose GPUs shall use it; null: its own */
  size_t map_device_count;
  void* address; /* wished; null: any */
  uint64_t timeout_ms;
  uint64_t wait_ms; /* for memory that others hold; 0: denied at once; GPUMEM_UNLIMITED: for ever */
  const gpumem_cancel_token* cancel; /* may be null; must live until the call has begun to wait */
  int32_t revocable;                 /* may be taken back (the watch's revocation) */
  int32_t without_pressure;          /* asks nobody to give memory back for it */
};
int gpumem_client_acquire(gpumem_client* client, const struct gpumem_acquire_options* options,
                          gpumem_segment** segment);
/* `count` of one size, 1 to 253, all or none, one after another in addresses where the kind can. */
int gpumem_client_acquire_many(gpumem_client* client, const struct gpumem_acquire_options* options,
                               size_t count, gpumem_segment** segments);

struct gpumem_open_options {
  size_t struct_size;
  int32_t read_only;
  const char* const* map_devices;
  size_t map_device_count;
  void* address;
  uint64_t timeout_ms;
  int32_t revocable; /* needed for segments that are */
  int32_t reserved;  /* 0 */
};
int gpumem_client_open(gpumem_client* client, const char* ticket,
                       const struct gpumem_open_options* options, gpumem_segment** segment);
int gpumem_client_open_many(gpumem_client* client, const char* const* tickets, size_t count,
                            const struct gpumem_open_options* options, gpumem_segment** segments);

/* Unmaps the memory, ends the lease, and frees the handle, whatever the status. No GPU work may
 * use the memory by then. */
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
  int32_t reused;     /* holds old bytes of this tenant; else zeros */
  int32_t registered; /* of kind pinned: GPUs can use it, too */
  int32_t revocable;  /* may be taken back */
  int32_t reserved;   /* 0 */
};
int gpumem_segment_get_info(const gpumem_segment* segment, struct gpumem_segment_info* info);

/* The ticket that opens the segment elsewhere; lives as long as the handle. Keep it secret. */
int gpumem_segment_share(gpumem_segment* segment, int32_t scope, const char** ticket);

struct gpumem_handle {
  uint8_t bytes[64];
};
/* For programs that do not know gpumem, each of the kinds that have it (UNIMPLEMENTED): ipc's
 * cudaIpcMemHandle_t, mempool's cudaMemPoolPtrExportData and descriptor, and the descriptor of vmm
 * and pinned. The descriptors are the segment's: do not close them. */
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
  uint64_t pool_granularity_bytes; /* of kind mempool where that differs, else 0 */
  uint64_t driver_free_bytes;      /* 0: not known */
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
/* The devices as they are now; `count` may be null. */
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
  uint64_t waiting_bytes;  /* that requests wait for */
  uint64_t waiting;        /* how many do */
  uint64_t revocable_bytes;
};
/* What the client's tenant holds now. */
int gpumem_client_get_usage(gpumem_client* client, gpumem_usage** usage);
int gpumem_usage_get_tenant(const gpumem_usage* usage, struct gpumem_tenant_usage* tenant);
int gpumem_usage_get_device(const gpumem_usage* usage, size_t index,
                            struct gpumem_device_usage* device);
int gpumem_usage_destroy(gpumem_usage* usage);

/* ---- Interprocess events ---- */

typedef struct gpumem_event gpumem_event;

struct gpumem_event_options {
  size_t struct_size;
  const char* name;              /* one of these two */
  const gpumem_segment* segment; /* must live until the call has returned */
  const char* device;            /* null: the segment's, or the first */
};
int gpumem_client_create_event(gpumem_client* client, const struct gpumem_event_options* options,
                               gpumem_event** event);
int gpumem_client_open_event(gpumem_client* client, const char* name, gpumem_event** event);
/* Opens the events beside a segment, and hands out at most `capacity`; `count` says how many. */
int gpumem_client_open_events(gpumem_client* client, const gpumem_segment* segment,
                              gpumem_event** events, size_t capacity, size_t* count);
int gpumem_event_record(gpumem_event* event, void* stream);
int gpumem_event_wait(gpumem_event* event, void* stream);
int gpumem_event_synchronize(gpumem_event* event);
int gpumem_event_is_done(const gpumem_event* event, int* done);
int gpumem_event_get_handle(const gpumem_event* event, struct gpumem_handle* handle);
/* The cudaEvent_t; null on the host backend. */
int gpumem_event_get_cuda_event(const gpumem_event* event, void** cuda_event);
int gpumem_event_destroy(gpumem_event* event);

/* ---- What the daemon has to say ---- */

typedef struct gpumem_watch gpumem_watch;

/* What the tenant may hold, for which -1 of counts and GPUMEM_UNLIMITED of bytes mean no limit of
 * its own. */
struct gpumem_quota {
  size_t struct_size;
  uint64_t limit_bytes; /* on any one GPU; gpumem_device_usage has what is in force on each */
  uint64_t total_limit_bytes;
  uint64_t pinned_limit_bytes;
  uint64_t guarantee_bytes; /* 0: none */
  int64_t max_segments;
  int64_t max_sessions;
  int64_t max_in_flight;
  int64_t max_waiting;
  int32_t priority;
  int32_t revocable;  /* all of its leases are */
  const char* parent; /* under whose quota it is, too; "": nobody's */
};

/* Each may be null. All are called in one thread of the watch, perhaps before the call that starts
 * it has returned. */
struct gpumem_watch_handlers {
  size_t struct_size;
  void* context; /* given to each */
  void (*segments_lost)(void* context, const uint64_t* lease_ids, size_t count);
  void (*draining)(void* context, int draining);
  void (*ended)(void* context, int status, const char* message); /* and with it the watch */
  /* Another session was denied memory; so much of what this process does not need would have been
   * enough. An empty device means any. Pools give back what they have free by themselves. */
  void (*pressure)(void* context, const char* device_uuid, uint64_t bytes);
  /* The same with how long it helps from now on (0: unknown); where this is set, it is called
   * instead. */
  void (*pressure_until)(void* context, const char* device_uuid, uint64_t bytes,
                         uint64_t deadline_ms);
  /* Revocable leases are taken back: copy out what matters and release them within so many
   * milliseconds from now on, or the daemon ends the process (SIGTERM, then SIGKILL). */
  void (*revocation)(void* context, const uint64_t* lease_ids, size_t count, uint64_t until_end_ms);
  /* The tenant's quota was changed. The struct is the library's, for the time of the call. */
  void (*quota_changed)(void* context, const struct gpumem_quota* quota);
};
int gpumem_client_start_watch(gpumem_client* client, const struct gpumem_watch_handlers* handlers,
                              gpumem_watch** watch);
/* Waits for a handler that is being called, unless it is that handler who calls this. */
int gpumem_watch_destroy(gpumem_watch* watch);

/* ---- Publications (publication.h) ---- */

typedef struct gpumem_attachment gpumem_attachment;

enum gpumem_publication_access {
  GPUMEM_PUBLICATION_ACCESS_TENANT = 0, /* sessions of the publisher's tenant attach to it */
  GPUMEM_PUBLICATION_ACCESS_ANY = 1     /* those of every tenant */
};

struct gpumem_publish_options {
  size_t struct_size;
  const void* metadata; /* any bytes, which are copied; whoever attaches is given them */
  size_t metadata_bytes;
  int32_t access;           /* enum gpumem_publication_access */
  int32_t ephemeral;        /* ends with the client's session */
  uint64_t expire_after_ms; /* ends once nobody has been attached for so long; 0: never */
  uint64_t timeout_ms;
};
/* Publishes `count` segments of the client, which stay the caller's: it may release them at once.
 * `version`, which it is, may be null. */
int gpumem_client_publish(gpumem_client* client, const char* name,
                          const gpumem_segment* const* segments, size_t count,
                          const struct gpumem_publish_options* options, uint64_t* version);
/* Who is attached stays so. `version`, which it was, may be null. */
int gpumem_client_unpublish(gpumem_client* client, const char* name, uint64_t* version);

struct gpumem_attach_options {
  size_t struct_size;
  uint64_t wait_for_version; /* or a later one, also of a name yet to come; 0: what is there */
  uint64_t wait_ms; /* for that version; 0 and GPUMEM_UNLIMITED: for as long as the session lives */
  const gpumem_cancel_token* cancel; /* may be null; must live until the call has begun to wait */
  const char* const* map_devices;    /* as in gpumem_open_options, with what follows */
  size_t map_device_count;
  void* address;
  uint64_t timeout_ms; /* for the answer, from when the wait is over */
  int32_t revocable;
  int32_t writable; /* others who are attached see what is written; else a write faults */
};
int gpumem_client_attach(gpumem_client* client, const char* name,
                         const struct gpumem_attach_options* options,
                         gpumem_attachment** attachment);

struct gpumem_attachment_info {
  size_t struct_size;
  void* data; /* all of it, one segment after another; null where they are of several devices or
                 kinds */
  uint64_t bytes;
  uint64_t version;
  const char* tenant;   /* whose publication it is */
  const void* metadata; /* lives as long as the handle */
  size_t metadata_bytes;
  size_t segment_count;
};
int gpumem_attachment_get_info(const gpumem_attachment* attachment,
                               struct gpumem_attachment_info* info);
/* Of each segment, in the publisher's order. FAILED_PRECONDITION once it was taken out. */
int gpumem_attachment_get_segment(const gpumem_attachment* attachment, size_t index,
                                  struct gpumem_segment_info* info);
/* Takes one out: from here on it is the caller's, to be released by itself, and what is said of the
 * whole no longer holds where it lay. */
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
  uint64_t expires_in_ms;   /* as things stand; GPUMEM_UNLIMITED: it does not */
  /* Of one's own tenant alone, else 0 and "". The pid is one of the daemon's PID namespace. */
  uint64_t publisher_session_id;
  const char* publisher_name;
  int32_t publisher_pid;
  int32_t publisher_alive;
};
/* Those that the client may attach to, of one tenant or, where that is null, of all; by tenant and
 * name. `count` may be null. */
int gpumem_client_list_publications(gpumem_client* client, const char* tenant,
                                    gpumem_publication_list** publications, size_t* count);
int gpumem_publication_list_get(const gpumem_publication_list* publications, size_t index,
                                struct gpumem_publication* publication);
int gpumem_publication_list_destroy(gpumem_publication_list* publications);

/* ---- Pools (pool.h) ---- */

typedef struct gpumem_pool gpumem_pool;

/* Which memory that was freed on another stream may be reused. The same stream's always is. */
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
  uint32_t reuse;                    /* of enum gpumem_reuse, or-ed */
  int32_t per_thread_default_stream; /* what a stream of null means */
  int32_t without_thread_caches;     /* makes the peaks of the statistics exact */
  uint64_t limit_bytes;              /* 0: none */
  uint64_t release_threshold_bytes;  /* 0: nothing goes back by itself (set it later to 0) */
  uint64_t grow_bytes;               /* 0: 8 MiB */
  uint64_t wait_ms;                  /* for memory where there is none left; GPUMEM_UNLIMITED */
  int32_t keeps_under_pressure;      /* gives nothing back when others are denied memory */
  int32_t revocable; /* its segments are; what is free of them goes back when asked */
  /* Called by a thread of the pool's where blocks in use lie in segments that are taken back: free
   * them within so many milliseconds, or the process is ended. The leases are the session's that
   * are taken back. It must not end the pool. May be null. */
  void (*on_revocation)(void* revocation_context, const uint64_t* lease_ids, size_t count,
                        uint64_t until_end_ms);
  void* revocation_context;
};
int gpumem_pool_create(gpumem_client* client, const struct gpumem_pool_options* options,
                       gpumem_pool** pool);
/* No block may be in use. FAILED_PRECONDITION for a default pool. */
int gpumem_pool_destroy(gpumem_pool* pool);

/* A plain value, which does not grow. */
struct gpumem_block {
  void* data;
  uint64_t bytes;
};
int gpumem_pool_allocate(gpumem_pool* pool, uint64_t bytes, void* stream,
                         struct gpumem_block* block);
/* The same of what this thread keeps for itself: no call to the daemon or the driver but the
 * question whether the stream is being captured, and no wait for another thread. For callers that
 * hold what others need meanwhile, such as Python's lock. OK with null data: ask
 * gpumem_pool_allocate(). */
int gpumem_pool_try_allocate(gpumem_pool* pool, uint64_t bytes, void* stream,
                             struct gpumem_block* block);
/* As cudaMalloc: a block for whichever stream, since nobody works on its memory;
 * gpumem_pool_free_synchronized() gives it back. */
int gpumem_pool_allocate_synchronized(gpumem_pool* pool, uint64_t bytes,
                                      struct gpumem_block* block);
int gpumem_pool_free(gpumem_pool* pool, const struct gpumem_block* block, void* stream);
int gpumem_pool_free_pointer(gpumem_pool* pool, void* data, void* stream);
/* The same where this thread keeps the block, as gpumem_pool_try_allocate(); else nothing, and
 * *is_free is 0: call gpumem_pool_free_pointer(). */
int gpumem_pool_try_free_pointer(gpumem_pool* pool, void* data, void* stream, int32_t* is_free);
/* As cudaFree: waits for all work of the device first. */
int gpumem_pool_free_synchronized(gpumem_pool* pool, void* data);
int gpumem_pool_find(const gpumem_pool* pool, void* data, struct gpumem_block* block);

/* Writes the ticket that opens the block in other sessions of the tenant, as long as the pool has
 * it. `length`, with the 0 at its end, is also told where `capacity` is less: OUT_OF_RANGE. */
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

/* `released`, how many bytes went back, may be null. */
int gpumem_pool_trim(gpumem_pool* pool, uint64_t keep_bytes, uint64_t* released);
int gpumem_pool_free_all_blocks(gpumem_pool* pool, uint64_t* released);
int gpumem_pool_free_all_blocks_of_stream(gpumem_pool* pool, void* stream, uint64_t* released);

int gpumem_pool_set_limit(gpumem_pool* pool, uint64_t bytes); /* GPUMEM_UNLIMITED: none */
int gpumem_pool_set_limit_fraction(gpumem_pool* pool, double fraction);
int gpumem_pool_set_release_threshold(gpumem_pool* pool, uint64_t bytes); /* 0: all, at once */
/* Whether it gives back what it has free when others are denied memory; see keeps_under_pressure.
 */
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
  uint64_t allocations; /* these and what follows: since the pool was made */
  uint64_t frees;
  uint64_t growths;
  uint64_t reused_after_event;
  uint64_t dependencies;
  uint64_t out_of_memory;
  uint64_t given_under_pressure_bytes;
  uint64_t moves; /* of whole free segments, to where they made larger blocks */
};
int gpumem_pool_get_stats(const gpumem_pool* pool, struct gpumem_pool_stats* stats);
int gpumem_pool_reset_peaks(gpumem_pool* pool);
/* As cudaMemGetInfo, by the tenant's quota. */
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
/* Called for every block and segment, perhaps with the pool's lock held: it must not call the pool,
 * nor wait for who may be calling it. While there is one, threads keep no blocks. Null: none. */
int gpumem_pool_set_hook(gpumem_pool* pool,
                         void (*hook)(void* context, const struct gpumem_pool_event* event),
                         void* context);
/* Called where an allocation would fail: 1 where it is worth another try. Null: none. */
int gpumem_pool_set_out_of_memory_callback(gpumem_pool* pool,
                                           int (*callback)(void* context, uint64_t bytes),
                                           void* context);

/* ---- For frameworks ----
 *
 * Over one pool of the process for each device, its default pool, made when it is first asked for
 * and never ended: free what you have at any time, also while the process exits. A device is named
 * by its ordinal as this process sees it (on the host backend: as the daemon counts). Default pools
 * share one session, and are configured by the environment:
 *
 *   GPUMEM_RUNTIME_DIR              the folder of the daemon's sockets
 *   GPUMEM_TENANT                   whom to bill, among those that the daemon allows
 *   GPUMEM_POOL_KIND                vmm, mempool, ipc or pinned
 *   GPUMEM_POOL_LIMIT               "40GiB", or "50%" of what the tenant may have on the device
 *   GPUMEM_POOL_RELEASE_THRESHOLD   "1GiB": free segments above it go back
 *   GPUMEM_POOL_GROW                "256MiB": the least that is leased at once
 *   GPUMEM_POOL_WAIT                "30s": for memory where there is none left
 *   GPUMEM_POOL_PER_THREAD_STREAM   "1": a stream of null is the thread's own
 *   GPUMEM_POOL_KEEPS_UNDER_PRESSURE "1": gives nothing back when others are denied memory
 *
 * The allocating ones return null for zero bytes, which is no error, and on failure, which PyTorch
 * and CuPy do not look for: then what gpumem_last_error() says goes to stderr, too. Freeing null
 * does nothing.
 */

/* The library's own: not to be destroyed. */
int gpumem_default_pool(int device, gpumem_pool** pool);

/* torch.cuda.memory.CUDAPluggableAllocator("libgpumem.so", "gpumem_torch_malloc",
 * "gpumem_torch_free"). PyTorch frees on the stream that it allocated on: what other streams use
 * must have waited for (torch.Tensor.record_stream does nothing there). Graphs: pool.h. */
void* gpumem_torch_malloc(ssize_t size, int device, void* stream);
void gpumem_torch_free(void* ptr, ssize_t size, int device, void* stream);

/* cupy.cuda.CFunctionAllocator(param, malloc, free, owner). `param` is a gpumem_pool, whichever
 * device it is of, or null: the default pool of `device`. CuPy tells no stream: the memory is for
 * whichever (gpumem_pool_allocate_synchronized). A program that does not want to wait at each
 * end puts CuPy's own pool on top: cupy.cuda.MemoryPool(allocator.malloc). Freeing
 * waits for the device, as cudaFree does, on which that pool relies. */
void* gpumem_cupy_malloc(void* param, size_t size, int device);
void gpumem_cupy_free(void* param, void* ptr, int device);

/* For rmm's callback_memory_resource and the like. `context` is a gpumem_pool, or null: the
 * default pool of the current CUDA device, of device 0 where there is none. */
void* gpumem_rmm_allocate(size_t bytes, void* stream, void* context);
void gpumem_rmm_deallocate(void* ptr, size_t bytes, void* stream, void* context);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_H_ */
