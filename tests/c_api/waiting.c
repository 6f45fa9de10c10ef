/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for memory, and memory that may be taken back. What a daemon says of these, as a test of
 * the library with a scripted one has it, is client/c_api/waiting_test.cc's. */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "tests/c_api/check.h"

static void* Cancel(void* token) {
  OK(gpumem_cancel_token_cancel(token));
  return NULL;
}

void TestWaiting(void) {
  struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire), .bytes = 64 * kMiB};
  struct gpumem_denial denial = {.struct_size = sizeof(denial)};
  gpumem_client* const client = Connect();
  gpumem_cancel_token* token = NULL;
  gpumem_segment *all = NULL, *segment = NULL;
  pthread_t thread;
  int cancelled = 1;

  /* Takes all free memory. Free memory is granted without a wait. */
  acquire.wait_ms = GPUMEM_UNLIMITED;
  OK(gpumem_client_acquire(client, &acquire, &all));
  acquire.bytes = 2 * kMiB;
  acquire.wait_ms = 20;
  acquire.without_pressure = 1;
  EXPECT(GPUMEM_RESOURCE_EXHAUSTED, gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_last_denial(&denial));
  CHECK(denial.limited_tenant[0] == '\0' || strcmp(denial.limited_tenant, denial.tenant) != 0);
  CHECK(denial.holder_count == 0 || denial.holders[0].used > 0);

  OK(gpumem_cancel_token_create(&token));
  OK(gpumem_cancel_token_is_cancelled(token, &cancelled));
  CHECK(!cancelled);
  acquire.cancel = token;
  acquire.wait_ms = GPUMEM_UNLIMITED;
  CHECK(pthread_create(&thread, NULL, Cancel, token) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  OK(gpumem_cancel_token_is_cancelled(token, &cancelled));
  CHECK(cancelled);
  EXPECT(GPUMEM_CANCELLED, gpumem_client_acquire(client, &acquire, &segment));
  CHECK(segment == NULL);
  OK(gpumem_cancel_token_destroy(token));
  OK(gpumem_segment_release(all));
  CHECK(Leased(client) == 0);
  OK(gpumem_client_destroy(client));
}

static void OnRevocation(void* context, const uint64_t* lease_ids, size_t count,
                         uint64_t until_end_ms) {
  (void)context, (void)lease_ids, (void)count, (void)until_end_ms;
  FAIL("nobody needs it%s", "");
}

static void OnPressure(void* context, const char* device_uuid, uint64_t bytes,
                       uint64_t deadline_ms) {
  (void)context, (void)device_uuid, (void)bytes, (void)deadline_ms;
}

static void OnQuota(void* context, const struct gpumem_quota* quota) {
  uint64_t* const told = context;
  CHECK(quota->struct_size == sizeof(*quota));
  __atomic_store_n(told, quota->limit_bytes, __ATOMIC_SEQ_CST);
}

void TestRevocable(void) {
  static uint64_t told;
  const struct gpumem_watch_handlers handlers = {.struct_size = sizeof(handlers),
                                                 .context = &told,
                                                 .pressure_until = OnPressure,
                                                 .revocation = OnRevocation,
                                                 .quota_changed = OnQuota};
  const struct gpumem_acquire_options acquire = {
      .struct_size = sizeof(acquire), .bytes = 2 * kMiB, .revocable = 1};
  const struct gpumem_open_options open = {.struct_size = sizeof(open), .revocable = 1};
  const struct gpumem_pool_options options = {.struct_size = sizeof(options),
                                              .grow_bytes = kMiB,
                                              .revocable = 1,
                                              .on_revocation = OnRevocation};
  struct gpumem_segment_info info = {.struct_size = sizeof(info)};
  struct gpumem_segment_info same = {.struct_size = sizeof(same)};
  gpumem_client* const client = Connect();
  gpumem_segment *segment = NULL, *opened = NULL;
  gpumem_watch* watch = NULL;
  gpumem_pool* pool = NULL;
  struct gpumem_block block;
  const char* ticket = NULL;

  OK(gpumem_client_start_watch(client, &handlers, &watch));
  OK(gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_segment_get_info(segment, &info));
  OK(gpumem_segment_share(segment, GPUMEM_SCOPE_TENANT, &ticket));
  OK(gpumem_client_open(client, ticket, &open, &opened));
  OK(gpumem_segment_get_info(opened, &same));
  CHECK(info.revocable == 1);
  CHECK(same.segment_id == info.segment_id && same.revocable == 1);
  OK(gpumem_segment_release(opened));
  OK(gpumem_segment_release(segment));

  OK(gpumem_pool_create(client, &options, &pool));
  OK(gpumem_pool_allocate(pool, kMiB, NULL, &block));
  memset(block.data, 1, block.bytes);
  OK(gpumem_pool_free(pool, &block, NULL));
  OK(gpumem_pool_destroy(pool));

  CHECK(system("\"$TEST_GPUMEMCTL\" quota set blue --limit 48MiB >/dev/null") == 0);
  while (__atomic_load_n(&told, __ATOMIC_SEQ_CST) != 48 * (uint64_t)kMiB) sched_yield();
  OK(gpumem_watch_destroy(watch));
  OK(gpumem_client_destroy(client));
}
