/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of operators to suspend and to demote, which the program serves. Publications that an
 * operator has suspended. */
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "tests/c_api/check.h"

/* Its handlers run in the watch's thread. `done` is counted last. */
struct Served {
  gpumem_segment* segments[2];
  int refuses; /* quiesce fails */
  int cause;
  int quiesced, suspended, resumed, failed, paused, proceeded, done;
};

static int Now(const int* number) { return __atomic_load_n(number, __ATOMIC_SEQ_CST); }

static void Count(int* number) { __atomic_add_fetch(number, 1, __ATOMIC_SEQ_CST); }

static void WaitFor(int number, const int* counter) {
  while (Now(counter) < number) sched_yield();
}

static size_t Segments(void* context, gpumem_segment* const** segments) {
  struct Served* const served = context;
  *segments = served->segments;
  return 2;
}

static int Quiesce(void* context) {
  struct Served* const served = context;
  Count(&served->quiesced);
  return served->refuses ? GPUMEM_ABORTED : GPUMEM_OK;
}

static void Suspended(void* context, int cause) {
  struct Served* const served = context;
  served->cause = cause;
  Count(&served->suspended);
}

static void Resumed(void* context) { Count(&((struct Served*)context)->resumed); }

static void Failed(void* context, int status, const char* message) {
  CHECK(status == GPUMEM_ABORTED && message[0] != '\0');
  Count(&((struct Served*)context)->failed);
}

static void Done(void* context) { Count(&((struct Served*)context)->done); }

static void Ended(void* context, int status, const char* message) {
  (void)context;
  FAIL("the watch has ended: %d %s", status, message);
}

/* True if `gpumemctl WORDS SESSION OPTIONS` succeeds. */
static int Operator(const char* words, uint64_t session, const char* options) {
  char line[256];
  snprintf(line, sizeof(line), "\"$TEST_GPUMEMCTL\" %s %llu %s >/dev/null 2>&1", words,
           (unsigned long long)session, options);
  return system(line) == 0;
}

static void CheckDemoted(const struct Served* served, int wanted) {
  size_t i;
  for (i = 0; i < 2; ++i) {
    int demoted = -1;
    OK(gpumem_segment_is_demoted(served->segments[i], &demoted));
    CHECK(demoted == wanted);
  }
}

static int Pause(void* context) {
  ++((struct Served*)context)->paused;
  return GPUMEM_OK;
}

static void Proceed(void* context) { ++((struct Served*)context)->proceeded; }

static void CheckSuspended(const struct Served* served, int wanted) {
  size_t i;
  for (i = 0; i < 2; ++i) {
    int suspended = -1;
    OK(gpumem_segment_is_suspended(served->segments[i], &suspended));
    CHECK(suspended == wanted);
  }
}

void TestSuspensionRequests(void) {
  const struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire), .bytes = kMiB};
  static struct Served served;
  struct gpumem_suspension_handlers handlers = {.struct_size = sizeof(handlers),
                                                .context = &served,
                                                .segments = Segments,
                                                .quiesce = Quiesce,
                                                .suspended = Suspended,
                                                .resumed = Resumed,
                                                .failed = Failed,
                                                .done = Done,
                                                .ended = Ended,
                                                .swappable = GPUMEM_SWAPPABLE_NEVER,
                                                .pause = Pause,
                                                .proceed = Proceed,
                                                .demotable = Segments};
  struct gpumem_segment_info info = {.struct_size = sizeof(info)};
  struct gpumem_client_info who = {.struct_size = sizeof(who)};
  gpumem_client* const client = Connect();
  gpumem_watch* watch = NULL;
  int tries;

  OK(gpumem_client_get_info(client, &who));
  OK(gpumem_client_acquire_many(client, &acquire, 2, served.segments));
  OK(gpumem_segment_get_info(served.segments[0], &info));
  memset(info.data, 7, info.bytes);
  OK(gpumem_client_report_activity(client));

  handlers.swappable = 3;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_serve_suspensions(client, &handlers, &watch));
  handlers.swappable = GPUMEM_SWAPPABLE_NEVER;
  handlers.segments = NULL;
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_client_serve_suspensions(client, &handlers, &watch));
  handlers.segments = Segments;
  OK(gpumem_client_serve_suspensions(client, &handlers, &watch));
  /* The daemon may learn of it a moment later. Nothing is suspended yet, so it asks nothing. */
  for (tries = 0; !Operator("resume", who.session_id, ""); ++tries) CHECK(tries < 200);
  CHECK(Now(&served.done) == 0);

  CHECK(Operator("suspend", who.session_id, "--timeout 60s"));
  WaitFor(1, &served.done);
  CHECK(served.quiesced == 1 && served.suspended == 1 && served.resumed == 0);
  CHECK(served.cause == GPUMEM_SUSPENSION_OPERATOR);
  CheckSuspended(&served, 1);
  CHECK(Operator("resume", who.session_id, "--timeout 60s"));
  WaitFor(2, &served.done);
  CHECK(served.quiesced == 1 && served.suspended == 1 && served.resumed == 1);
  CheckSuspended(&served, 0);
  CHECK(((const char*)info.data)[0] == 7 && ((const char*)info.data)[info.bytes - 1] == 7);

  /* A program that cannot stop its work says so, and goes on. */
  served.refuses = 1;
  CHECK(!Operator("suspend", who.session_id, "--timeout 3s"));
  WaitFor(3, &served.done);
  CHECK(served.failed == 1 && served.suspended == 1);
  CheckSuspended(&served, 0);

  CHECK(Operator("demote", who.session_id, "--timeout 60s"));
  WaitFor(4, &served.done);
  CHECK(served.paused >= 1 && served.proceeded == served.paused);
  CheckDemoted(&served, 1);
  CHECK(Operator("promote", who.session_id, "--timeout 60s"));
  WaitFor(5, &served.done);
  CheckDemoted(&served, 0);
  CHECK(((const char*)info.data)[0] == 7 && ((const char*)info.data)[info.bytes - 1] == 7);

  OK(gpumem_watch_destroy(watch));
  OK(gpumem_segment_release(served.segments[0]));
  OK(gpumem_segment_release(served.segments[1]));
  OK(gpumem_client_destroy(client));
}

/* A program with a pool: it names it, and then makes the calls itself. */
struct PoolServed {
  gpumem_pool* pools[1];
  int quiesced, done, served;
};

static size_t Pools(void* context, gpumem_pool* const** pools) {
  struct PoolServed* const served = context;
  *pools = served->pools;
  return 1;
}

/* The pool still allocates. */
static int QuiescePool(void* context) {
  struct PoolServed* const served = context;
  struct gpumem_block block;
  OK(gpumem_pool_allocate(served->pools[0], 1, NULL, &block));
  OK(gpumem_pool_free(served->pools[0], &block, NULL));
  Count(&served->quiesced);
  return GPUMEM_OK;
}

static void PoolDone(void* context) { Count(&((struct PoolServed*)context)->done); }

static void Serve(void* context, const struct gpumem_suspension_request* request) {
  struct PoolServed* const served = context;
  CHECK(request->cause == GPUMEM_SUSPENSION_OPERATOR && request->tag[0] == '\0');
  CHECK(request->left_ms > 0 && request->left_ms <= 60000);
  OK(request->resume ? gpumem_pool_resume(served->pools[0], NULL)
                     : gpumem_pool_suspend(served->pools[0], NULL));
  Count(&served->served);
}

static int IsSuspended(const gpumem_pool* pool) {
  int suspended = -1;
  OK(gpumem_pool_is_suspended(pool, &suspended));
  return suspended;
}

/* Suspends and resumes a new session with a pool. `count`: counts requests that are done. */
static void ServePool(struct PoolServed* served, const struct gpumem_suspension_handlers* handlers,
                      const int* count) {
  struct gpumem_client_info who = {.struct_size = sizeof(who)};
  gpumem_client* const client = Connect();
  gpumem_client* same = NULL;
  gpumem_watch* watch = NULL;
  struct gpumem_block kept;
  int tries;

  OK(gpumem_pool_create(client, NULL, &served->pools[0]));
  OK(gpumem_pool_allocate(served->pools[0], kMiB, NULL, &kept));
  memset(kept.data, 7, kept.bytes);
  OK(gpumem_pool_get_client(served->pools[0], &same));
  OK(gpumem_client_get_info(same, &who));
  OK(gpumem_client_serve_suspensions(client, handlers, &watch));
  for (tries = 0; !Operator("resume", who.session_id, ""); ++tries) CHECK(tries < 200);

  CHECK(Operator("suspend", who.session_id, "--timeout 60s"));
  WaitFor(1, count);
  CHECK(IsSuspended(served->pools[0]) == 1);
  CHECK(Operator("resume", who.session_id, "--timeout 60s"));
  WaitFor(2, count);
  CHECK(IsSuspended(served->pools[0]) == 0);
  CHECK(((const char*)kept.data)[0] == 7 && ((const char*)kept.data)[kept.bytes - 1] == 7);

  OK(gpumem_watch_destroy(watch));
  OK(gpumem_client_destroy(same));
  OK(gpumem_pool_free(served->pools[0], &kept, NULL));
  OK(gpumem_pool_destroy(served->pools[0]));
  OK(gpumem_client_destroy(client));
}

void TestSuspensionRequestsOfPools(void) {
  static struct PoolServed served;
  const struct gpumem_suspension_handlers named = {.struct_size = sizeof(named),
                                                   .context = &served,
                                                   .quiesce = QuiescePool,
                                                   .done = PoolDone,
                                                   .pools = Pools};
  const struct gpumem_suspension_handlers own = {
      .struct_size = sizeof(own), .context = &served, .serve = Serve};
  ServePool(&served, &named, &served.done);
  CHECK(served.quiesced == 1 && served.served == 0);
  ServePool(&served, &own, &served.served);
  CHECK(served.quiesced == 1 && served.done == 2);
}

/* Writes what the client sees of its tenant's only publication. */
static void Look(gpumem_client* client, struct gpumem_publication* publication) {
  gpumem_publication_list* list = NULL;
  size_t count = 0;
  publication->struct_size = sizeof(*publication);
  OK(gpumem_client_list_publications(client, "blue", &list, &count));
  CHECK(count == 1);
  OK(gpumem_publication_list_get(list, 0, publication));
  OK(gpumem_publication_list_destroy(list));
}

void TestSuspendedPublication(void) {
  const struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire), .bytes = 2 * kMiB};
  const struct gpumem_attach_options attach = {.struct_size = sizeof(attach)};
  struct gpumem_attachment_info info = {.struct_size = sizeof(info)};
  struct gpumem_segment_info filled = {.struct_size = sizeof(filled)};
  struct gpumem_publication publication;
  gpumem_attachment* attachment = NULL;
  gpumem_segment* segment = NULL;
  gpumem_client* const client = Connect();

  OK(gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_segment_get_info(segment, &filled));
  memset(filled.data, 9, filled.bytes);
  OK(gpumem_client_publish(client, "weights", (const gpumem_segment* const*)&segment, 1, NULL,
                           NULL));
  OK(gpumem_segment_release(segment));
  Look(client, &publication);
  CHECK(publication.bytes == 2 * kMiB && publication.suspended_bytes == 0);
  CHECK(system("\"$TEST_GPUMEMCTL\" suspend --publication blue/weights >/dev/null") == 0);
  Look(client, &publication);
  CHECK(publication.suspended_bytes == 2 * kMiB && publication.bytes == 2 * kMiB);
  OK(gpumem_client_attach(client, "weights", &attach, &attachment));
  Look(client, &publication);
  CHECK(publication.suspended_bytes == 0);
  OK(gpumem_attachment_get_info(attachment, &info));
  CHECK(((const char*)info.data)[info.bytes - 1] == 9);
  OK(gpumem_client_unpublish(client, "weights", NULL));
  OK(gpumem_attachment_release(attachment));
  OK(gpumem_client_destroy(client));
}
