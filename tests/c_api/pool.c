/* SPDX-License-Identifier: Apache-2.0 */
/* Pools. On the host backend a stream is a mere name. */
#include <string.h>

#include "tests/c_api/check.h"

#define STREAM(number) ((void*)(uintptr_t)(0x1000 * (number)))

static struct gpumem_pool_stats Stats(gpumem_pool* pool) {
  struct gpumem_pool_stats stats = {.struct_size = sizeof(stats)};
  OK(gpumem_pool_get_stats(pool, &stats));
  CHECK(stats.free_bytes == stats.reserved_bytes - stats.used_bytes);
  return stats;
}

void TestPool(void) {
  const struct gpumem_pool_options options = {.struct_size = sizeof(options),
                                              .device = "HOST-00000001",
                                              .kind = GPUMEM_KIND_VMM,
                                              .reuse = GPUMEM_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                                              .without_thread_caches = 1,
                                              .grow_bytes = 4 * kMiB};
  gpumem_client* client = Connect();
  struct gpumem_pool_info info = {.struct_size = sizeof(info)};
  struct gpumem_block block = {0}, other = {0}, found = {0};
  struct gpumem_pool_stats stats;
  uint64_t released = 1;
  gpumem_pool* pool = NULL;

  OK(gpumem_pool_create(client, &options, &pool));
  OK(gpumem_pool_get_info(pool, &info));
  CHECK(strncmp(info.device_uuid, "HOST-00000001", 13) == 0 && info.kind == GPUMEM_KIND_VMM);
  CHECK(info.backend == GPUMEM_BACKEND_HOST && info.limit_bytes == GPUMEM_UNLIMITED);
  CHECK(Stats(pool).reserved_bytes == 0);

  OK(gpumem_pool_allocate(pool, 1000, STREAM(1), &block));
  CHECK(block.data != NULL && block.bytes >= 1000 && (uintptr_t)block.data % 512 == 0);
  memset(block.data, 1, block.bytes);
  OK(gpumem_pool_allocate(pool, kMiB, STREAM(2), &other));
  memset(other.data, 2, other.bytes);
  CHECK(*(const char*)block.data == 1);
  OK(gpumem_pool_find(pool, block.data, &found));
  CHECK(found.data == block.data && found.bytes == block.bytes);
  EXPECT(GPUMEM_NOT_FOUND, gpumem_pool_find(pool, &found, &found));
  stats = Stats(pool);
  CHECK(stats.used_blocks == 2 && stats.allocations == 2 && stats.frees == 0);
  CHECK(stats.used_bytes >= kMiB + 1000 && stats.reserved_bytes == 4 * kMiB);
  CHECK(stats.segments == stats.growths && stats.segments >= 1 && stats.free_blocks >= 1);
  CHECK(stats.moves == 0);

  OK(gpumem_pool_free(pool, &block, STREAM(1)));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_free(pool, &block, STREAM(1)));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_free_pointer(pool, &block, STREAM(1)));
  OK(gpumem_pool_free_pointer(pool, other.data, STREAM(2)));
  OK(gpumem_pool_stream_waits(pool, STREAM(1), STREAM(2)));
  OK(gpumem_pool_allocate(pool, kMiB, STREAM(1), &block));
  memset(block.data, 3, block.bytes);
  OK(gpumem_pool_free(pool, &block, STREAM(1)));
  OK(gpumem_pool_set_reuse(pool, GPUMEM_REUSE_SAME_STREAM));
  OK(gpumem_pool_set_reuse(pool, GPUMEM_REUSE_DEFAULT));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_set_reuse(pool, 16));
  OK(gpumem_pool_allocate(pool, kMiB, STREAM(1), &block));
  OK(gpumem_pool_free_synchronized(pool, block.data));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_free_synchronized(pool, block.data));
  OK(gpumem_pool_allocate_synchronized(pool, kMiB, &block));
  CHECK(block.data != NULL && block.bytes >= kMiB);
  OK(gpumem_pool_free_synchronized(pool, block.data));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_allocate_synchronized(pool, 0, &block));
  OK(gpumem_pool_forget_stream(pool, STREAM(1)));

  stats = Stats(pool);
  CHECK(stats.used_bytes == 0 && stats.frees == 5 && stats.used_peak_bytes >= kMiB + 1000);
  OK(gpumem_pool_reset_peaks(pool));
  stats = Stats(pool);
  CHECK(stats.used_peak_bytes == 0 && stats.reserved_peak_bytes == 4 * kMiB);
  OK(gpumem_pool_trim(pool, 4 * kMiB, &released));
  CHECK(released == 0);
  OK(gpumem_pool_free_all_blocks_of_stream(pool, STREAM(1), &released));
  CHECK(Stats(pool).reserved_bytes == 4 * kMiB - released);
  OK(gpumem_pool_trim(pool, 0, NULL));
  OK(gpumem_pool_free_all_blocks(pool, &released));
  CHECK(Stats(pool).reserved_bytes == 0 && Leased(client) == 0);

  /* The pool keeps the session. */
  OK(gpumem_client_destroy(client));
  OK(gpumem_pool_allocate(pool, kMiB, NULL, &block));
  OK(gpumem_pool_free(pool, &block, NULL));
  OK(gpumem_pool_free_all_blocks(pool, &released));
  CHECK(released == 4 * kMiB);
  OK(gpumem_pool_destroy(pool));
}

/* What a thread does alone, with what it keeps. */
void TestTryingPool(void) {
  gpumem_client* const client = Connect();
  gpumem_pool* pool = NULL;
  struct gpumem_block block = {.data = &block}, again = {0};
  int32_t is_free = -1;

  OK(gpumem_pool_create(client, NULL, &pool));
  OK(gpumem_pool_try_allocate(pool, 1000, NULL, &block));
  CHECK(block.data == NULL && Stats(pool).reserved_bytes == 0);
  OK(gpumem_pool_allocate(pool, 1000, NULL, &block));
  OK(gpumem_pool_try_free_pointer(pool, block.data, STREAM(1), &is_free));
  CHECK(is_free == 0 && Stats(pool).used_blocks == 1); /* the stream is new to this thread */
  OK(gpumem_pool_free_pointer(pool, block.data, NULL));
  OK(gpumem_pool_try_allocate(pool, 1000, NULL, &again));
  CHECK(again.data == block.data && again.bytes == block.bytes);
  OK(gpumem_pool_try_free_pointer(pool, &pool, NULL, &is_free));
  CHECK(is_free == 0);
  OK(gpumem_pool_try_free_pointer(pool, block.data, NULL, &is_free));
  CHECK(is_free == 1 && Stats(pool).used_blocks == 0);
  OK(gpumem_pool_destroy(pool));
  OK(gpumem_client_destroy(client));
}

void TestSharedBlocks(void) {
  gpumem_client* const client = Connect();
  gpumem_client* const reader = Connect();
  gpumem_pool* pool = NULL;
  gpumem_shared_block* shared = NULL;
  struct gpumem_block block = {0}, opened = {0};
  char ticket[512];
  size_t length = 0, again = 0;

  OK(gpumem_pool_create(client, NULL, &pool));
  OK(gpumem_pool_allocate(pool, kMiB, NULL, &block));
  memset(block.data, 0x5c, block.bytes);
  EXPECT(GPUMEM_OUT_OF_RANGE, gpumem_pool_share(pool, &block, NULL, 0, &length));
  CHECK(length > 1 && length <= sizeof(ticket));
  EXPECT(GPUMEM_OUT_OF_RANGE, gpumem_pool_share(pool, &block, ticket, length - 1, &again));
  OK(gpumem_pool_share(pool, &block, ticket, length, &again));
  CHECK(again == length && strlen(ticket) == length - 1);
  OK(gpumem_client_open_block(reader, ticket, NULL, &shared));
  OK(gpumem_shared_block_get(shared, &opened));
  CHECK(opened.data != block.data && opened.bytes == block.bytes);
  CHECK(memcmp(opened.data, block.data, block.bytes) == 0);
  struct gpumem_shared_block_info info = {.struct_size = sizeof(info)};
  struct gpumem_pool_info pool_info = {.struct_size = sizeof(pool_info)};
  OK(gpumem_shared_block_get_info(shared, &info));
  OK(gpumem_pool_get_info(pool, &pool_info));
  CHECK(info.data == opened.data && info.bytes == opened.bytes);
  CHECK(strcmp(info.device_uuid, pool_info.device_uuid) == 0);
  CHECK(info.kind == pool_info.kind && info.backend == pool_info.backend);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_open_block(reader, "none", NULL, &shared));
  OK(gpumem_shared_block_destroy(shared));
  opened.data = &opened;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_share(pool, &opened, NULL, 0, &length));
  OK(gpumem_pool_free(pool, &block, NULL));
  OK(gpumem_pool_destroy(pool));
  OK(gpumem_client_destroy(reader));
  OK(gpumem_client_destroy(client));
}

void TestPoolPressure(void) {
  struct gpumem_pool_options keeps = {
      .struct_size = sizeof(keeps), .grow_bytes = kMiB, .keeps_under_pressure = 1};
  struct gpumem_pool_options waits = {
      .struct_size = sizeof(waits), .grow_bytes = kMiB, .wait_ms = 100};
  gpumem_client *const has = Connect(), *const wants = Connect();
  gpumem_pool *pool = NULL, *other = NULL;
  struct gpumem_block block = {0};

  /* All that the tenant may have, and nothing of it is needed. */
  OK(gpumem_pool_create(has, &keeps, &pool));
  OK(gpumem_pool_allocate(pool, 64 * kMiB, NULL, &block));
  OK(gpumem_pool_free(pool, &block, NULL));
  OK(gpumem_pool_create(wants, &waits, &other));
  EXPECT(GPUMEM_RESOURCE_EXHAUSTED, gpumem_pool_allocate(other, 2 * kMiB, NULL, &block));
  CHECK(Stats(pool).reserved_bytes == 64 * (uint64_t)kMiB);
  OK(gpumem_pool_destroy(other));
  OK(gpumem_pool_set_gives_under_pressure(pool, 1));
  waits.wait_ms = 30000;
  OK(gpumem_pool_create(wants, &waits, &other));
  OK(gpumem_pool_allocate(other, 2 * kMiB, NULL, &block));
  CHECK(Stats(pool).given_under_pressure_bytes > 0);
  CHECK(Stats(pool).reserved_bytes < 64 * (uint64_t)kMiB);
  OK(gpumem_pool_set_gives_under_pressure(pool, 0));
  OK(gpumem_pool_free(other, &block, NULL));
  OK(gpumem_pool_destroy(other));
  OK(gpumem_pool_destroy(pool));
  OK(gpumem_client_destroy(wants));
  OK(gpumem_client_destroy(has));
}

void TestPoolLimits(void) {
  struct gpumem_pool_options options = {.struct_size = sizeof(options),
                                        .without_thread_caches = 1,
                                        .limit_bytes = 8 * kMiB,
                                        .release_threshold_bytes = GPUMEM_UNLIMITED,
                                        .grow_bytes = kMiB,
                                        .wait_ms = 1};
  gpumem_client* const client = Connect();
  struct gpumem_pool_info info = {.struct_size = sizeof(info)};
  struct gpumem_denial denial = {.struct_size = sizeof(denial)};
  struct gpumem_block block = {0};
  uint64_t free_bytes = 0, total_bytes = 0;
  gpumem_pool* pool = NULL;

  OK(gpumem_pool_create(client, &options, &pool));
  OK(gpumem_pool_get_info(pool, &info));
  CHECK(info.limit_bytes == 8 * kMiB);
  block.data = &block;
  OK(gpumem_pool_try_allocate(pool, kMiB, NULL, &block));
  CHECK(block.data == NULL && Stats(pool).reserved_bytes == 0);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_allocate(pool, 0, NULL, &block));
  EXPECT(GPUMEM_RESOURCE_EXHAUSTED, gpumem_pool_allocate(pool, 9 * kMiB, NULL, &block));
  CHECK(Stats(pool).out_of_memory == 1);
  OK(gpumem_pool_allocate(pool, 8 * kMiB, NULL, &block));
  OK(gpumem_pool_get_mem_info(pool, &free_bytes, &total_bytes));
  CHECK(total_bytes <= 64 * (uint64_t)kMiB && free_bytes <= total_bytes);
  OK(gpumem_pool_free(pool, &block, NULL));
  CHECK(Stats(pool).reserved_bytes == 8 * kMiB);
  OK(gpumem_pool_try_allocate(pool, 8 * kMiB, NULL, &block));
  CHECK(block.data == NULL); /* this pool's threads keep nothing */
  OK(gpumem_pool_set_release_threshold(pool, 0));
  OK(gpumem_pool_allocate(pool, 8 * kMiB, NULL, &block));
  OK(gpumem_pool_free(pool, &block, NULL));
  CHECK(Stats(pool).reserved_bytes == 0);

  OK(gpumem_pool_set_limit_fraction(pool, 0.5));
  OK(gpumem_pool_get_info(pool, &info));
  CHECK(info.limit_bytes == 32 * (uint64_t)kMiB);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_set_limit_fraction(pool, 1.5));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_set_limit_fraction(pool, 0));
  OK(gpumem_pool_set_limit(pool, GPUMEM_UNLIMITED));
  /* Then it is the quota that refuses, with its reason. */
  EXPECT(GPUMEM_RESOURCE_EXHAUSTED, gpumem_pool_allocate(pool, 65 * kMiB, NULL, &block));
  OK(gpumem_last_denial(&denial));
  CHECK(denial.cause == GPUMEM_CAUSE_DEVICE_LIMIT && denial.limit == 64 * (uint64_t)kMiB);
  OK(gpumem_pool_destroy(pool));

  options.device = "HOST-9";
  EXPECT(GPUMEM_NOT_FOUND, gpumem_pool_create(client, &options, &pool));
  options.device = NULL;
  options.kind = -1;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_create(client, &options, &pool));
  OK(gpumem_client_destroy(client));
}

struct Seen {
  int events[4]; /* by enum gpumem_pool_event_kind */
  uint64_t grown, shrunk;
  struct gpumem_pool_event last;
};

static void Hook(void* context, const struct gpumem_pool_event* event) {
  struct Seen* const seen = context;
  CHECK(event->struct_size >= sizeof(*event));
  CHECK(event->what >= GPUMEM_POOL_ALLOCATE && event->what <= GPUMEM_POOL_SHRINK);
  ++seen->events[event->what];
  if (event->what == GPUMEM_POOL_GROW) seen->grown += event->bytes;
  if (event->what == GPUMEM_POOL_SHRINK) seen->shrunk += event->bytes;
  seen->last = *event;
}

/* What an out-of-memory callback can give back, once. */
struct Spare {
  gpumem_pool* pool;
  struct gpumem_block block;
  int calls;
};

static int GiveBack(void* context, uint64_t bytes) {
  struct Spare* const spare = context;
  CHECK(bytes == 6 * kMiB);
  if (spare->calls++ > 0) return 0;
  OK(gpumem_pool_free(spare->pool, &spare->block, NULL));
  return 1;
}

void TestPoolCallbacks(void) {
  const struct gpumem_pool_options options = {
      .struct_size = sizeof(options), .limit_bytes = 8 * kMiB, .grow_bytes = kMiB};
  gpumem_client* const client = Connect();
  gpumem_pool* pool = NULL;
  struct gpumem_block block = {0};
  struct Seen seen = {.grown = 0};
  struct Spare spare = {.calls = 0};

  OK(gpumem_pool_create(client, &options, &pool));
  OK(gpumem_pool_set_hook(pool, Hook, &seen));
  OK(gpumem_pool_allocate(pool, kMiB, STREAM(1), &block));
  CHECK(seen.events[GPUMEM_POOL_ALLOCATE] == 1 && seen.events[GPUMEM_POOL_GROW] >= 1);
  CHECK(seen.grown == Stats(pool).reserved_bytes);
  CHECK(seen.last.what == GPUMEM_POOL_ALLOCATE && seen.last.data == block.data);
  CHECK(seen.last.bytes == block.bytes && seen.last.stream == STREAM(1));
  OK(gpumem_pool_free(pool, &block, STREAM(1)));
  CHECK(seen.events[GPUMEM_POOL_FREE] == 1 && seen.last.data == block.data);
  OK(gpumem_pool_free_all_blocks(pool, NULL));
  CHECK(Stats(pool).reserved_bytes == 0);
  CHECK(seen.events[GPUMEM_POOL_SHRINK] >= 1 && seen.shrunk == seen.grown);
  OK(gpumem_pool_set_hook(pool, NULL, NULL));
  OK(gpumem_pool_allocate(pool, kMiB, STREAM(1), &block));
  CHECK(seen.events[GPUMEM_POOL_ALLOCATE] == 1);
  OK(gpumem_pool_free(pool, &block, STREAM(1)));

  spare.pool = pool;
  OK(gpumem_pool_allocate(pool, 6 * kMiB, NULL, &spare.block));
  OK(gpumem_pool_set_out_of_memory_callback(pool, GiveBack, &spare));
  OK(gpumem_pool_allocate(pool, 6 * kMiB, NULL, &block));
  CHECK(spare.calls == 1);
  EXPECT(GPUMEM_RESOURCE_EXHAUSTED, gpumem_pool_allocate(pool, 6 * kMiB, NULL, &spare.block));
  CHECK(spare.calls == 2);
  OK(gpumem_pool_set_out_of_memory_callback(pool, NULL, NULL));
  EXPECT(GPUMEM_RESOURCE_EXHAUSTED, gpumem_pool_allocate(pool, 6 * kMiB, NULL, &spare.block));
  CHECK(spare.calls == 2);
  OK(gpumem_pool_free(pool, &block, NULL));
  OK(gpumem_pool_destroy(pool));
  OK(gpumem_client_destroy(client));
}

static int CountCall(void* context) {
  ++*(int*)context;
  return GPUMEM_OK;
}

static int RefuseCall(void* context) {
  (void)context;
  return GPUMEM_ABORTED;
}

void TestPoolSuspension(void) {
  const struct gpumem_pool_options ipc = {.struct_size = sizeof(ipc), .kind = GPUMEM_KIND_IPC};
  int calls = 0, suspended = -1;
  const struct gpumem_suspend_options refuses = {.struct_size = sizeof(refuses),
                                                 .quiesce = RefuseCall};
  const struct gpumem_suspend_options counts = {
      .struct_size = sizeof(counts), .quiesce = CountCall, .context = &calls};
  const struct gpumem_resume_options waits = {.struct_size = sizeof(waits), .wait_ms = 60000};
  gpumem_client* const client = Connect();
  gpumem_pool* pool = NULL;
  struct gpumem_block kept = {0}, freed = {0}, none = {0};
  char ticket[512];
  size_t length = 0;

  OK(gpumem_pool_create(client, NULL, &pool));
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_pool_resume(pool, NULL));
  OK(gpumem_pool_allocate(pool, 12 * kMiB, NULL, &kept));
  OK(gpumem_pool_allocate(pool, 12 * kMiB, NULL, &freed));
  memset(kept.data, 7, kept.bytes);
  EXPECT(GPUMEM_ABORTED, gpumem_pool_suspend(pool, &refuses));
  OK(gpumem_pool_is_suspended(pool, &suspended));
  CHECK(suspended == 0 && *(const char*)kept.data == 7);

  OK(gpumem_pool_suspend(pool, &counts));
  OK(gpumem_pool_is_suspended(pool, &suspended));
  CHECK(calls == 1 && suspended == 1);
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_pool_suspend(pool, NULL));
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_pool_allocate(pool, 1, NULL, &none));
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_pool_allocate_synchronized(pool, 1, &none));
  EXPECT(GPUMEM_FAILED_PRECONDITION,
         gpumem_pool_share(pool, &kept, ticket, sizeof(ticket), &length));
  OK(gpumem_pool_try_allocate(pool, 1, NULL, &none));
  CHECK(none.data == NULL);
  OK(gpumem_pool_free(pool, &freed, NULL));

  OK(gpumem_pool_resume(pool, &waits));
  OK(gpumem_pool_is_suspended(pool, &suspended));
  CHECK(suspended == 0 && Stats(pool).used_blocks == 1);
  CHECK(((const char*)kept.data)[0] == 7 && ((const char*)kept.data)[kept.bytes - 1] == 7);
  OK(gpumem_pool_allocate(pool, 12 * kMiB, NULL, &freed));
  memset(freed.data, 8, freed.bytes);
  CHECK(((const char*)kept.data)[kept.bytes - 1] == 7);
  /* A suspended pool can be destroyed. */
  OK(gpumem_pool_suspend(pool, NULL));
  OK(gpumem_pool_destroy(pool));

  OK(gpumem_pool_create(client, &ipc, &pool));
  OK(gpumem_pool_allocate(pool, kMiB, NULL, &kept));
  EXPECT(GPUMEM_UNIMPLEMENTED, gpumem_pool_suspend(pool, NULL));
  OK(gpumem_pool_free(pool, &kept, NULL));
  OK(gpumem_pool_destroy(pool));
  OK(gpumem_client_destroy(client));
}
