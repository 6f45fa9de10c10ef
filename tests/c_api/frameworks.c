/* SPDX-License-Identifier: Apache-2.0 */
/* What PyTorch, CuPy and RMM call, and the process's own pools behind it. */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/c_api/check.h"

static uint64_t UsedBlocks(gpumem_pool* pool) {
  struct gpumem_pool_stats stats = {.struct_size = sizeof(stats)};
  OK(gpumem_pool_get_stats(pool, &stats));
  return stats.used_blocks;
}

/* One of several that ask for the first default pool at once. */
static void* AllocateInThread(void* stream) {
  int i;
  for (i = 0; i < 1000; ++i) {
    const size_t bytes = (size_t)1 << (9 + i % 10);
    char* const data = gpumem_torch_malloc((ssize_t)bytes, 0, stream);
    CHECK(data != NULL);
    data[0] = data[bytes - 1] = (char)i;
    gpumem_torch_free(data, (ssize_t)bytes, 0, stream);
  }
  return NULL;
}

/* That the last call says that it failed, with these words in it. */
#define CHECK_SAYS(words) CHECK(strstr(gpumem_last_error(), words) != NULL)

void TestFrameworks(void) {
  struct gpumem_pool_info info = {.struct_size = sizeof(info)};
  gpumem_client* const client = Connect();
  gpumem_pool *first = NULL, *second = NULL, *own = NULL, *again = NULL;
  void *torch, *cupy, *rmm;
  pthread_t threads[4];
  size_t i;

  EXPECT(GPUMEM_NOT_FOUND, gpumem_find_default_pool(0, &first));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_find_default_pool(-1, &first));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_find_default_pool(1 << 20, &first));
  for (i = 0; i < 4; ++i) {
    CHECK(pthread_create(&threads[i], NULL, AllocateInThread, (void*)(i << 12)) == 0);
  }
  for (i = 0; i < 4; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  OK(gpumem_default_pool(0, &first));
  OK(gpumem_default_pool(0, &again));
  CHECK(first == again && UsedBlocks(first) == 0);
  OK(gpumem_find_default_pool(0, &again));
  CHECK(first == again);
  EXPECT(GPUMEM_NOT_FOUND, gpumem_find_default_pool(1, &again));
  OK(gpumem_default_pool(1, &second));
  CHECK(first != second);
  OK(gpumem_pool_get_info(second, &info));
  CHECK(strncmp(info.device_uuid, "HOST-00000001", 13) == 0);
  EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_pool_destroy(first));
  EXPECT(GPUMEM_NOT_FOUND, gpumem_default_pool(2, &again));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_default_pool(-1, &again));
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_default_pool(1 << 20, &again));

  torch = gpumem_torch_malloc(kMiB, 1, NULL);
  CHECK(torch != NULL && UsedBlocks(second) == 1 && UsedBlocks(first) == 0);
  memset(torch, 1, kMiB);
  cupy = gpumem_cupy_malloc(NULL, kMiB, 0);
  rmm = gpumem_rmm_allocate(kMiB, (void*)0x2000, NULL);
  CHECK(cupy != NULL && rmm != NULL && cupy != rmm);
  memset(cupy, 2, kMiB);
  memset(rmm, 3, kMiB);
  CHECK(UsedBlocks(first) == 2);
  gpumem_torch_free(torch, kMiB, 1, NULL);
  gpumem_cupy_free(NULL, cupy, 0);
  gpumem_rmm_deallocate(rmm, kMiB, (void*)0x2000, NULL);
  CHECK(UsedBlocks(first) == 0 && UsedBlocks(second) == 0);

  /* Over a pool of the program's own. */
  OK(gpumem_pool_create(client, NULL, &own));
  cupy = gpumem_cupy_malloc(own, kMiB, 0);
  rmm = gpumem_rmm_allocate(kMiB, NULL, own);
  CHECK(cupy != NULL && rmm != NULL && UsedBlocks(own) == 2 && UsedBlocks(first) == 0);
  gpumem_cupy_free(own, cupy, 0);
  gpumem_rmm_deallocate(rmm, kMiB, NULL, own);
  CHECK(UsedBlocks(own) == 0);
  OK(gpumem_pool_destroy(own));

  /* Nothing was asked for: nothing is wrong. */
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_default_pool(0, NULL));
  CHECK(gpumem_torch_malloc(0, 0, NULL) == NULL);
  CHECK(gpumem_cupy_malloc(NULL, 0, 0) == NULL);
  CHECK(gpumem_rmm_allocate(0, NULL, NULL) == NULL);
  gpumem_torch_free(NULL, 0, 0, NULL);
  gpumem_cupy_free(NULL, NULL, 0);
  gpumem_rmm_deallocate(NULL, 0, NULL, NULL);
  CHECK_SAYS("null where a pointer is needed: pool");

  CHECK(gpumem_torch_malloc(-1, 0, NULL) == NULL);
  CHECK_SAYS("-1 bytes");
  CHECK(gpumem_torch_malloc(1, 7, NULL) == NULL);
  CHECK_SAYS("no device 7");
  CHECK(gpumem_cupy_malloc(NULL, 128 * kMiB, 0) == NULL);
  CHECK_SAYS("limit");
  CHECK(gpumem_rmm_allocate(128 * kMiB, NULL, NULL) == NULL);
  CHECK_SAYS("limit");
  gpumem_torch_free(&info, 1, 0, NULL);
  CHECK(gpumem_last_error()[0] != '\0' && strstr(gpumem_last_error(), "limit") == NULL);
  OK(gpumem_client_destroy(client));
}

/* As its environment says: tenant green, pinned memory, half of what it may have. */
void TestEnvironment(void) {
  const struct gpumem_connect_options green = {.struct_size = sizeof(green), .tenant = "green"};
  struct gpumem_pool_info info = {.struct_size = sizeof(info)};
  gpumem_client* client = NULL;
  gpumem_pool* pool = NULL;
  uint64_t free_bytes = 0, total_bytes = 0;
  void* data;

  CHECK(setenv("GPUMEM_POOL_KIND", "virtual", 1) == 0);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_default_pool(0, &pool));
  CHECK_SAYS("GPUMEM_POOL_KIND");
  CHECK(setenv("GPUMEM_POOL_KIND", "ipc", 1) == 0);
  CHECK(setenv("GPUMEM_POOL_GROW", "some", 1) == 0);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_default_pool(0, &pool));
  CHECK_SAYS("GPUMEM_POOL_GROW");
  CHECK(setenv("GPUMEM_POOL_GROW", "2MiB", 1) == 0);
  CHECK(setenv("GPUMEM_POOL_WAIT", "soon", 1) == 0);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_default_pool(0, &pool));
  CHECK_SAYS("GPUMEM_POOL_WAIT");
  CHECK(setenv("GPUMEM_POOL_WAIT", "1ms", 1) == 0);
  CHECK(setenv("GPUMEM_POOL_PER_THREAD_STREAM", "maybe", 1) == 0);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_default_pool(0, &pool));
  CHECK_SAYS("GPUMEM_POOL_PER_THREAD_STREAM");
  CHECK(setenv("GPUMEM_POOL_PER_THREAD_STREAM", "1", 1) == 0);
  CHECK(setenv("GPUMEM_POOL_LIMIT", "101%", 1) == 0);
  EXPECT(GPUMEM_INVALID_ARGUMENT, gpumem_default_pool(0, &pool));
  CHECK_SAYS("GPUMEM_POOL_LIMIT");
  CHECK(setenv("GPUMEM_POOL_LIMIT", "50%", 1) == 0);
  CHECK(setenv("GPUMEM_POOL_RELEASE_THRESHOLD", "0", 1) == 0);
  CHECK(setenv("GPUMEM_TENANT", "green", 1) == 0);
  OK(gpumem_default_pool(0, &pool));
  OK(gpumem_pool_get_info(pool, &info));
  CHECK(info.kind == GPUMEM_KIND_IPC);
  OK(gpumem_pool_get_mem_info(pool, &free_bytes, &total_bytes));
  CHECK(info.limit_bytes == 32 * (uint64_t)kMiB && total_bytes == info.limit_bytes);
  CHECK(free_bytes <= total_bytes);

  OK(gpumem_client_connect(&green, &client));
  data = gpumem_torch_malloc(1, 0, NULL);
  CHECK(data != NULL);
  CHECK(Leased(client) == 2 * kMiB);
  gpumem_torch_free(data, 1, 0, NULL);
  OK(gpumem_client_destroy(client));
}

void TestFork(void) {
  gpumem_client* const client = Connect();
  struct gpumem_acquire_options acquire = {.struct_size = sizeof(acquire), .bytes = kMiB};
  gpumem_segment* segment = NULL;
  gpumem_segment* another = NULL;
  gpumem_client* connected = NULL;
  gpumem_pool *pool = NULL, *default_pool = NULL;
  struct gpumem_block block = {0}, more = {0};
  void* const data = gpumem_torch_malloc(kMiB, 0, NULL);
  int status = -1;
  pid_t child;

  CHECK(data != NULL);
  OK(gpumem_client_acquire(client, &acquire, &segment));
  OK(gpumem_pool_create(client, NULL, &pool));
  OK(gpumem_pool_allocate(pool, kMiB, NULL, &block));
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_client_connect(NULL, &connected));
    EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_client_acquire(client, &acquire, &another));
    EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_pool_create(client, NULL, &default_pool));
    EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_pool_allocate(pool, kMiB, NULL, &more));
    EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_pool_free(pool, &block, NULL));
    CHECK(gpumem_torch_malloc(kMiB, 0, NULL) == NULL);
    CHECK_SAYS("fork");
    EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_default_pool(1, &default_pool));
    EXPECT(GPUMEM_FAILED_PRECONDITION, gpumem_segment_release(segment));
    OK(gpumem_pool_destroy(pool));
    OK(gpumem_client_destroy(client));
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  /* The parent's are as they were. */
  memset(block.data, 1, block.bytes);
  memset(data, 1, kMiB);
  OK(gpumem_pool_free(pool, &block, NULL));
  OK(gpumem_pool_destroy(pool));
  gpumem_torch_free(data, kMiB, 0, NULL);
  OK(gpumem_segment_release(segment));
  CHECK(gpumem_torch_malloc(0, 0, NULL) == NULL);
  OK(gpumem_client_destroy(client));
}

static void* late_data;

static void FreeLate(void) {
  gpumem_pool* pool = NULL;
  void* more;
  OK(gpumem_default_pool(0, &pool));
  CHECK(UsedBlocks(pool) == 1);
  memset(late_data, 1, kMiB);
  gpumem_torch_free(late_data, kMiB, 0, NULL);
  CHECK(UsedBlocks(pool) == 0);
  more = gpumem_torch_malloc(kMiB, 0, NULL);
  CHECK(more != NULL);
  memset(more, 1, kMiB);
}

/* Whatever is destroyed first while the process ends, a default pool still works after it. */
void TestExit(void) {
  CHECK(atexit(FreeLate) == 0); /* before the library has registered anything: runs last */
  late_data = gpumem_torch_malloc(kMiB, 0, NULL);
  CHECK(late_data != NULL);
}
