/* SPDX-License-Identifier: Apache-2.0 */
/* Interprocess events, and what the daemon tells. */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/c_api/check.h"

/* The maker's process: an event under a name and one beside a segment, until its input ends. */
static void MakeEvents(int tickets, int until) {
  gpumem_client* const client = Connect();
  struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire), .bytes = kMiB};
  struct gpumem_event_options named = {.struct_size = sizeof(named), .name = "batch"};
  struct gpumem_event_options beside = {.struct_size = sizeof(beside)};
  gpumem_segment* segment = NULL;
  gpumem_event* by_name = NULL;
  gpumem_event* by_segment = NULL;
  const char* ticket = NULL;
  struct gpumem_handle handle;
  void* cuda_event = &handle;
  int done = 0;
  char byte;

  OK(gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_segment_share(segment, GPUMEM_SCOPE_TENANT, &ticket));
  OK(gpumem_client_create_event(client, &named, &by_name));
  EXPECT(GPUMEM_ALREADY_EXISTS, gpumem_client_create_event(client, &named, &by_segment));
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_client_open_event(client, "batch", &by_segment));
  beside.segment = segment;
  beside.device = "0";
  OK(gpumem_client_create_event(client, &beside, &by_segment));
  OK(gpumem_event_record(by_name, NULL));
  OK(gpumem_event_record(by_segment, NULL));
  OK(gpumem_event_is_done(by_name, &done));
  CHECK(done == 1);
  OK(gpumem_event_get_handle(by_name, &handle));
  OK(gpumem_event_get_cuda_event(by_name, &cuda_event));
  CHECK(cuda_event == NULL); /* there is no CUDA here */
  CHECK(write(tickets, ticket, strlen(ticket)) == (ssize_t)strlen(ticket));
  CHECK(close(tickets) == 0);
  CHECK(read(until, &byte, 1) == 0);
  OK(gpumem_event_destroy(by_segment));
  OK(gpumem_event_destroy(by_name));
  OK(gpumem_segment_release(segment));
  OK(gpumem_client_destroy(client));
}

void TestEvents(void) {
  int tickets[2], until[2], status = -1, done = 0;
  char ticket[64] = "";
  gpumem_client* client = NULL;
  gpumem_segment* segment = NULL;
  gpumem_event* event = NULL;
  gpumem_event* events[2] = {NULL};
  size_t count = 0;
  pid_t maker;

  CHECK(pipe(tickets) == 0 && pipe(until) == 0);
  maker = fork(); /* before either has connected */
  CHECK(maker >= 0);
  if (maker == 0) {
    CHECK(close(until[1]) == 0);
    MakeEvents(tickets[1], until[0]);
    _exit(0);
  }
  CHECK(close(tickets[1]) == 0);
  CHECK(read(tickets[0], ticket, sizeof(ticket) - 1) > 0);

  client = Connect();
  OK(gpumem_client_open(client, ticket, NULL, &segment));
  OK(gpumem_client_open_event(client, "batch", &event));
  OK(gpumem_event_wait(event, NULL));
  OK(gpumem_event_synchronize(event));
  OK(gpumem_event_is_done(event, &done));
  CHECK(done == 1);
  OK(gpumem_event_destroy(event));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_client_open_event(client, "no such event", &event));
  OK(gpumem_client_open_events(client, segment, NULL, 0, &count));
  CHECK(count == 1);
  OK(gpumem_client_open_events(client, segment, events, 2, &count));
  CHECK(count == 1 && events[0] != NULL && events[1] == NULL);
  OK(gpumem_event_wait(events[0], NULL));
  OK(gpumem_event_destroy(events[0]));
  OK(gpumem_segment_release(segment));
  CHECK(close(until[1]) == 0);
  CHECK(waitpid(maker, &status, 0) == maker && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(gpumem_client_destroy(client));
}

/* What a watch has told. */
struct Told {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t lost;
  int draining;
  int ended;
};

static void OnLost(void* context, const uint64_t* lease_ids, size_t count) {
  struct Told* const told = context;
  CHECK(count == 1);
  pthread_mutex_lock(&told->mutex);
  told->lost = lease_ids[0];
  pthread_cond_signal(&told->changed);
  pthread_mutex_unlock(&told->mutex);
}

static void OnDraining(void* context, int draining) {
  struct Told* const told = context;
  pthread_mutex_lock(&told->mutex);
  told->draining = draining;
  pthread_cond_signal(&told->changed);
  pthread_mutex_unlock(&told->mutex);
}

static void OnEnded(void* context, int status, const char* message) {
  struct Told* const told = context;
  CHECK(message[0] != '\0');
  pthread_mutex_lock(&told->mutex);
  told->ended = status;
  pthread_cond_signal(&told->changed);
  pthread_mutex_unlock(&told->mutex);
}

/* The process that holds the daemon's CUDA context: its only child. */
static pid_t ContextProcess(void) {
  DIR* const folder = opendir("/proc");
  const struct dirent* entry;
  pid_t found = 0;
  CHECK(folder != NULL);
  while (found == 0 && (entry = readdir(folder)) != NULL) {
    char path[300];
    int parent = 0;
    FILE* file;
    snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
    file = fopen(path, "r");
    if (file == NULL) continue;
    if (fscanf(file, "%*d (%*[^)]) %*c %d", &parent) == 1 && parent == DaemonPid()) {
      found = atoi(entry->d_name);
    }
    fclose(file);
  }
  closedir(folder);
  return found;
}

void TestLostSegments(void) {
  static struct Told told = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                             .changed = PTHREAD_COND_INITIALIZER};
  struct gpumem_watch_handlers handlers = {
      .struct_size = sizeof(handlers), .context = &told, .segments_lost = OnLost};
  struct gpumem_acquire_options acquire = {
      .struct_size = sizeof(acquire), .bytes = kMiB, .kind = GPUMEM_KIND_IPC};
  struct gpumem_segment_info info = {.struct_size = sizeof(info)};
  gpumem_client* const client = Connect();
  gpumem_segment* segment = NULL;
  gpumem_watch* watch = NULL;
  const char* ticket = NULL;
  pid_t context;
  OK(gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_segment_get_info(segment, &info));
  OK(gpumem_client_start_watch(client, &handlers, &watch));
  context = ContextProcess();
  CHECK(context > 0);
  CHECK(kill(context, SIGKILL) == 0);
  pthread_mutex_lock(&told.mutex);
  while (told.lost == 0) pthread_cond_wait(&told.changed, &told.mutex);
  CHECK(told.lost == info.lease_id);
  pthread_mutex_unlock(&told.mutex);
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_segment_share(segment, GPUMEM_SCOPE_TENANT, &ticket));
  OK(gpumem_watch_destroy(watch));
  OK(gpumem_segment_release(segment));
  OK(gpumem_client_destroy(client));
}

static void EndDaemon(void) {
  struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, DaemonPid(), 0), .events = POLLIN};
  CHECK(end.fd >= 0);
  CHECK(kill(DaemonPid(), SIGTERM) == 0);
  CHECK(poll(&end, 1, -1) == 1);
  close(end.fd);
}

void TestDaemonGone(void) {
  static struct Told told = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                             .changed = PTHREAD_COND_INITIALIZER};
  const struct gpumem_watch_handlers handlers = {
      .struct_size = sizeof(handlers), .context = &told, .draining = OnDraining, .ended = OnEnded};
  const struct gpumem_connect_options options = {.struct_size = sizeof(options), .no_reconnect = 1};
  gpumem_client* client = NULL;
  gpumem_client* other = NULL;
  gpumem_watch* watch = NULL;
  gpumem_watch* silent = NULL;
  gpumem_pool* pool = NULL;
  struct gpumem_block block, kept;
  OK(gpumem_client_connect(&options, &client));
  OK(gpumem_pool_create(client, NULL, &pool));
  OK(gpumem_pool_allocate(pool, kMiB, NULL, &kept));
  OK(gpumem_client_start_watch(client, NULL, &silent));
  OK(gpumem_client_start_watch(client, &handlers, &watch));
  CHECK(system("\"$TEST_GPUMEMCTL\" drain >/dev/null") == 0);
  pthread_mutex_lock(&told.mutex);
  while (told.draining == 0) pthread_cond_wait(&told.changed, &told.mutex);
  pthread_mutex_unlock(&told.mutex);
  EndDaemon();
  pthread_mutex_lock(&told.mutex);
  while (told.ended == 0) pthread_cond_wait(&told.changed, &told.mutex);
  CHECK(told.draining == 1 && told.ended == GPUMEM_UNAVAILABLE);
  pthread_mutex_unlock(&told.mutex);
  EXPECT(GPUMEM_UNAVAILABLE, gpumem_client_connect(NULL, &other));
  /* Leased memory stays usable. */
  memset(kept.data, 1, kept.bytes);
  OK(gpumem_pool_allocate(pool, kMiB, NULL, &block));
  memset(block.data, 2, block.bytes);
  OK(gpumem_pool_free(pool, &block, NULL));
  EXPECT(GPUMEM_UNAVAILABLE, gpumem_pool_allocate(pool, 48 * kMiB, NULL, &block));
  OK(gpumem_pool_free(pool, &kept, NULL));
  OK(gpumem_pool_destroy(pool));
  OK(gpumem_watch_destroy(watch));
  OK(gpumem_watch_destroy(silent));
  OK(gpumem_client_destroy(client));
}
