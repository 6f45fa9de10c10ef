/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of operators to suspend and to resume, which the program serves. Publications that an
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
  int quiesced, suspended, resumed, failed, done;
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
                                                .swappable = GPUMEM_SWAPPABLE_NEVER};
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

  OK(gpumem_watch_destroy(watch));
  OK(gpumem_segment_release(served.segments[0]));
  OK(gpumem_segment_release(served.segments[1]));
  OK(gpumem_client_destroy(client));
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
