/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses, words and denials; null pointers; structs of other sizes than the library's. */
#include <pthread.h>
#include <string.h>

#include "tests/c_api/check.h"

static void* InAnotherThread(void* unused) {
  (void)unused;
  CHECK(strcmp(gpumem_last_error(), "") == 0);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_connect(NULL, NULL));
  return NULL;
}

void TestErrors(void) {
  const struct gpumem_connect_options nowhere = {
      .struct_size = sizeof(nowhere), .runtime_dir = "/tmp/no-such-folder", .timeout_ms = 5000};
  struct gpumem_denial denial = {.struct_size = sizeof(denial)};
  struct gpumem_acquire_options huge = {.struct_size = sizeof(huge), .bytes = 128 * kMiB};
  gpumem_segment* segment = NULL;
  gpumem_client* client = NULL;
  pthread_t thread;
  char words[256];

  CHECK(gpumem_version() == GPUMEM_API_VERSION);
  CHECK(strcmp(gpumem_status_name(GPUMEM_OK), "OK") == 0);
  CHECK(strcmp(gpumem_status_name(GPUMEM_UNAUTHENTICATED), "UNAUTHENTICATED") == 0);
  CHECK(gpumem_status_name(-1)[0] != '\0');
  CHECK(strcmp(gpumem_last_error(), "") == 0);
  EXPECT(GPUMEM_UNAVAILABLE, gpumem_client_connect(&nowhere, &client));
  CHECK(client == NULL);
  CHECK(strstr(gpumem_last_error(), "/tmp/no-such-folder") != NULL);
  EXPECT(GPUMEM_NOT_FOUND, gpumem_last_denial(&denial));

  /* Each thread has a last error. */
  strncpy(words, gpumem_last_error(), sizeof(words) - 1);
  CHECK(pthread_create(&thread, NULL, InAnotherThread, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(strncmp(words, gpumem_last_error(), sizeof(words) - 1) == 0);

  client = Connect();
  EXPECT(GPUMEM_RESOURCE_EXHAUSTED, gpumem_client_acquire(client, &huge, &segment));
  CHECK(segment == NULL);
  OK(gpumem_last_denial(&denial));
  CHECK(denial.cause == GPUMEM_CAUSE_DEVICE_LIMIT);
  CHECK(strcmp(denial.tenant, "blue") == 0);
  CHECK(strncmp(denial.device_uuid, "HOST-00000000", 13) == 0);
  CHECK(denial.asked == huge.bytes && denial.used == 0 && denial.limit == 64 * (uint64_t)kMiB);
  CHECK(denial.help[0] != '\0' && strstr(gpumem_last_error(), denial.help) != NULL);
  /* A call that went well changes nothing, one that did not says what it has to say. */
  OK(gpumem_client_destroy(NULL));
  OK(gpumem_last_denial(&denial));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_acquire(NULL, &huge, &segment));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_last_denial(&denial));
  OK(gpumem_client_destroy(client));
}

#define WANTS_POINTER(call) EXPECT(GPUMEM_INVALID_ARGUMENT, call)

void TestNulls(void) {
  gpumem_client* const client = Connect();
  struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire), .bytes = 1};
  const char* const names[] = {NULL};
  const char* text = NULL;
  struct gpumem_handle handle;
  struct gpumem_block block;
  gpumem_segment* segment = NULL;
  gpumem_event* event = NULL;
  gpumem_pool* pool = NULL;
  gpumem_shared_block* shared = NULL;
  struct gpumem_shared_block_info shared_info = {.struct_size = sizeof(shared_info)};
  gpumem_watch* watch = NULL;
  gpumem_cancel_token* token = NULL;
  gpumem_usage* usage = NULL;
  gpumem_device_list* devices = NULL;
  void* data = NULL;
  int number = 0;
  size_t count = 0;

  WANTS_POINTER(gpumem_client_connect(NULL, NULL));
  WANTS_POINTER(gpumem_client_get_info(NULL, NULL));
  WANTS_POINTER(gpumem_client_get_info(client, NULL));
  WANTS_POINTER(gpumem_client_acquire(NULL, &acquire, &segment));
  WANTS_POINTER(gpumem_client_acquire(client, &acquire, NULL));
  WANTS_POINTER(gpumem_client_acquire(client, NULL, &segment)); /* zero bytes */
  WANTS_POINTER(gpumem_client_acquire_many(client, &acquire, 1, NULL));
  acquire.map_devices = names;
  acquire.map_device_count = 1;
  WANTS_POINTER(gpumem_client_acquire(client, &acquire, &segment));
  acquire.map_devices = NULL;
  WANTS_POINTER(gpumem_client_acquire(client, &acquire, &segment));
  WANTS_POINTER(gpumem_client_open(client, NULL, NULL, &segment));
  WANTS_POINTER(gpumem_client_open(NULL, "gmt_", NULL, &segment));
  WANTS_POINTER(gpumem_client_open_many(client, NULL, 1, NULL, &segment));
  WANTS_POINTER(gpumem_client_open_many(client, names, 1, NULL, NULL));
  WANTS_POINTER(gpumem_segment_get_info(NULL, NULL));
  WANTS_POINTER(gpumem_segment_share(NULL, GPUMEM_SCOPE_TENANT, &text));
  WANTS_POINTER(gpumem_segment_get_ipc_handle(NULL, &handle));
  WANTS_POINTER(gpumem_segment_get_export_data(NULL, &handle));
  WANTS_POINTER(gpumem_segment_get_pool_fd(NULL, &number));
  WANTS_POINTER(gpumem_segment_get_fd(NULL, &number));
  WANTS_POINTER(gpumem_client_suspend(NULL, NULL, 0, NULL));
  WANTS_POINTER(gpumem_client_suspend(client, NULL, 1, NULL));
  WANTS_POINTER(gpumem_client_suspend(client, &segment, 1, NULL));
  WANTS_POINTER(gpumem_client_resume(NULL, NULL, 0, NULL));
  WANTS_POINTER(gpumem_client_resume(client, NULL, 1, NULL));
  WANTS_POINTER(gpumem_client_resume(client, &segment, 1, NULL));
  WANTS_POINTER(gpumem_segment_is_suspended(NULL, &number));
  WANTS_POINTER(gpumem_client_demote(NULL, NULL, 0, NULL));
  WANTS_POINTER(gpumem_client_demote(client, NULL, 1, NULL));
  WANTS_POINTER(gpumem_client_demote(client, &segment, 1, NULL));
  WANTS_POINTER(gpumem_client_promote(NULL, NULL, 0, NULL));
  WANTS_POINTER(gpumem_client_promote(client, NULL, 1, NULL));
  WANTS_POINTER(gpumem_client_promote(client, &segment, 1, NULL));
  WANTS_POINTER(gpumem_segment_is_demoted(NULL, &number));
  WANTS_POINTER(gpumem_pool_suspend(NULL, NULL));
  WANTS_POINTER(gpumem_pool_resume(NULL, NULL));
  WANTS_POINTER(gpumem_pool_is_suspended(NULL, &number));
  WANTS_POINTER(gpumem_client_serve_suspensions(NULL, NULL, &watch));
  WANTS_POINTER(gpumem_client_serve_suspensions(client, NULL, NULL));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_serve_suspensions(client, NULL, &watch));
  WANTS_POINTER(gpumem_client_report_activity(NULL));
  WANTS_POINTER(gpumem_pool_get_client(NULL, NULL));
  WANTS_POINTER(gpumem_client_list_devices(NULL, &devices, &count));
  WANTS_POINTER(gpumem_client_list_devices(client, NULL, &count));
  WANTS_POINTER(gpumem_device_list_get(NULL, 0, NULL));
  WANTS_POINTER(gpumem_device_list_get_peer(NULL, 0, 0, NULL));
  WANTS_POINTER(gpumem_client_get_usage(NULL, &usage));
  WANTS_POINTER(gpumem_client_get_memory(client, NULL, NULL));
  WANTS_POINTER(gpumem_usage_get_tenant(NULL, NULL));
  WANTS_POINTER(gpumem_usage_get_device(NULL, 0, NULL));
  WANTS_POINTER(gpumem_client_create_event(NULL, NULL, &event));
  WANTS_POINTER(gpumem_client_create_event(client, NULL, &event)); /* neither name nor segment */
  WANTS_POINTER(gpumem_client_open_event(client, NULL, &event));
  WANTS_POINTER(gpumem_client_open_events(client, NULL, &event, 1, &count));
  WANTS_POINTER(gpumem_event_record(NULL, NULL));
  WANTS_POINTER(gpumem_event_wait(NULL, NULL));
  WANTS_POINTER(gpumem_event_synchronize(NULL));
  WANTS_POINTER(gpumem_event_is_done(NULL, &number));
  WANTS_POINTER(gpumem_event_get_handle(NULL, &handle));
  WANTS_POINTER(gpumem_event_get_cuda_event(NULL, &data));
  WANTS_POINTER(gpumem_client_start_watch(NULL, NULL, &watch));
  WANTS_POINTER(gpumem_client_start_watch(client, NULL, NULL));
  WANTS_POINTER(gpumem_cancel_token_create(NULL));
  WANTS_POINTER(gpumem_cancel_token_cancel(NULL));
  WANTS_POINTER(gpumem_cancel_token_is_cancelled(NULL, &number));
  WANTS_POINTER(gpumem_cancel_token_is_cancelled(token, &number));
  WANTS_POINTER(gpumem_pool_create(NULL, NULL, &pool));
  WANTS_POINTER(gpumem_pool_create(client, NULL, NULL));
  WANTS_POINTER(gpumem_pool_allocate(NULL, 1, NULL, &block));
  WANTS_POINTER(gpumem_pool_try_allocate(NULL, 1, NULL, &block));
  WANTS_POINTER(gpumem_pool_allocate_synchronized(NULL, 1, &block));
  WANTS_POINTER(gpumem_pool_free(NULL, &block, NULL));
  WANTS_POINTER(gpumem_pool_free_pointer(NULL, &block, NULL));
  WANTS_POINTER(gpumem_pool_try_free_pointer(NULL, &block, NULL, &number));
  WANTS_POINTER(gpumem_pool_free_synchronized(NULL, &block));
  WANTS_POINTER(gpumem_pool_find(NULL, &block, &block));
  WANTS_POINTER(gpumem_pool_share(NULL, &block, NULL, 0, &count));
  WANTS_POINTER(gpumem_client_open_block(NULL, "", NULL, &shared));
  WANTS_POINTER(gpumem_client_open_block(client, NULL, NULL, &shared));
  WANTS_POINTER(gpumem_shared_block_get(NULL, &block));
  WANTS_POINTER(gpumem_shared_block_get_info(NULL, &shared_info));
  WANTS_POINTER(gpumem_pool_stream_waits(NULL, NULL, NULL));
  WANTS_POINTER(gpumem_pool_forget_stream(NULL, NULL));
  WANTS_POINTER(gpumem_pool_trim(NULL, 0, NULL));
  WANTS_POINTER(gpumem_pool_free_all_blocks(NULL, NULL));
  WANTS_POINTER(gpumem_pool_free_all_blocks_of_stream(NULL, NULL, NULL));
  WANTS_POINTER(gpumem_pool_set_limit(NULL, 1));
  WANTS_POINTER(gpumem_pool_set_limit_fraction(NULL, 1));
  WANTS_POINTER(gpumem_pool_set_release_threshold(NULL, 1));
  WANTS_POINTER(gpumem_pool_set_gives_under_pressure(NULL, 1));
  WANTS_POINTER(gpumem_pool_set_reuse(NULL, GPUMEM_REUSE_DEFAULT));
  WANTS_POINTER(gpumem_pool_get_info(NULL, NULL));
  WANTS_POINTER(gpumem_pool_get_stats(NULL, NULL));
  WANTS_POINTER(gpumem_pool_reset_peaks(NULL));
  WANTS_POINTER(gpumem_pool_get_mem_info(NULL, NULL, NULL));
  WANTS_POINTER(gpumem_pool_set_hook(NULL, NULL, NULL));
  WANTS_POINTER(gpumem_pool_set_out_of_memory_callback(NULL, NULL, NULL));
  WANTS_POINTER(gpumem_default_pool(0, NULL));
  WANTS_POINTER(gpumem_find_default_pool(0, NULL));
  OK(gpumem_pool_create(client, NULL, &pool));
  WANTS_POINTER(gpumem_pool_allocate(pool, 1, NULL, NULL));
  WANTS_POINTER(gpumem_pool_try_allocate(pool, 1, NULL, NULL));
  WANTS_POINTER(gpumem_pool_free(pool, NULL, NULL));
  WANTS_POINTER(gpumem_pool_share(pool, NULL, NULL, 0, &count));
  WANTS_POINTER(gpumem_pool_free_pointer(pool, NULL, NULL));
  WANTS_POINTER(gpumem_pool_try_free_pointer(pool, NULL, NULL, &number));
  WANTS_POINTER(gpumem_pool_try_free_pointer(pool, &block, NULL, NULL));
  WANTS_POINTER(gpumem_pool_get_info(pool, NULL));
  WANTS_POINTER(gpumem_pool_get_mem_info(pool, NULL, NULL));
  OK(gpumem_pool_destroy(pool));
  CHECK(segment == NULL && event == NULL && watch == NULL && usage == NULL && devices == NULL);

  OK(gpumem_client_destroy(NULL));
  OK(gpumem_segment_release(NULL));
  OK(gpumem_segment_release_async(NULL));
  OK(gpumem_attachment_release_async(NULL));
  OK(gpumem_device_list_destroy(NULL));
  OK(gpumem_usage_destroy(NULL));
  OK(gpumem_event_destroy(NULL));
  OK(gpumem_watch_destroy(NULL));
  OK(gpumem_cancel_token_destroy(NULL));
  OK(gpumem_pool_destroy(NULL));
  OK(gpumem_shared_block_destroy(NULL));
  OK(gpumem_client_destroy(client));
}

void TestStructSizes(void) {
  gpumem_client* const client = Connect();
  gpumem_pool* pool = NULL;
  gpumem_segment* segment = NULL;
  struct gpumem_acquire_options old = {.bytes = 1, .kind = 77};
  struct {
    struct gpumem_pool_options known;
    uint64_t unknown;
  } newer = {.known = {.struct_size = sizeof(newer)}};
  struct {
    struct gpumem_pool_stats known;
    uint64_t unknown;
  } newer_stats = {.unknown = 7};
  struct gpumem_pool_stats old_stats = {.used_bytes = 7};

  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_acquire(client, &old, &segment));
  old.struct_size = SIZE_MAX;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_acquire(client, &old, &segment));
  /* A program that was compiled when the kind was not there yet. */
  old.struct_size = offsetof(struct gpumem_acquire_options, kind);
  OK(gpumem_client_acquire(client, &old, &segment));
  OK(gpumem_segment_release(segment));
  old.struct_size = sizeof(old);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_acquire(client, &old, &segment));

  /* One that was compiled for a newer library: what it does not set does not matter. */
  OK(gpumem_pool_create(client, &newer.known, &pool));
  OK(gpumem_pool_destroy(pool));
  newer.unknown = 1;
  EXPECT(GPUMEM_UNIMPLEMENTED, gpumem_pool_create(client, &newer.known, &pool));
  newer.known.struct_size = sizeof(newer.known);
  newer.known.reuse = 1u << 31;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_create(client, &newer.known, &pool));
  newer.known.reuse = GPUMEM_REUSE_SAME_STREAM;
  OK(gpumem_pool_create(client, &newer.known, &pool));

  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_pool_get_stats(pool, &newer_stats.known));
  newer_stats.known.struct_size = sizeof(newer_stats);
  OK(gpumem_pool_get_stats(pool, &newer_stats.known));
  CHECK(newer_stats.unknown == 0 && newer_stats.known.struct_size == sizeof(newer_stats));
  old_stats.struct_size = offsetof(struct gpumem_pool_stats, used_bytes);
  OK(gpumem_pool_get_stats(pool, &old_stats));
  CHECK(old_stats.used_bytes == 7);
  OK(gpumem_pool_destroy(pool));
  OK(gpumem_client_destroy(client));
}
