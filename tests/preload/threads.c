/* SPDX-License-Identifier: Apache-2.0 */
/* threads COUNT ROUNDS [together]: allocates and frees in many threads at a time, in several ways,
 * close to the limit. Prints the refusals, which are no error, and all other codes that it met.
 * together: all threads initialize the driver. */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/preload/door.h"

#define LIVE 16

static CUcontext context;
static int rounds;
static int refused;
static int others;
static int together;
static pthread_barrier_t start;

static void count(CUresult result) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
  } else if (result != CUDA_SUCCESS) {
    __atomic_fetch_add(&others, 1, __ATOMIC_RELAXED);
  }
}

static void* work(void* argument) {
  unsigned int seed = (unsigned int)(size_t)argument;
  CUdeviceptr live[LIVE] = {0};
  int asynchronous[LIVE] = {0};
  CUstream stream;
  if (together) {
    CUcontext same;
    pthread_barrier_wait(&start);
    count(door.cuInit_(0));
    count(door.cuDevicePrimaryCtxRetain_(&same, 0));
    count(door.cuCtxSetCurrent_(same));
  } else {
    count(door.cuCtxSetCurrent_(context));
  }
  count(door.cuStreamCreate_(&stream, 0));
  for (int i = 0; i < rounds; ++i) {
    int at = rand_r(&seed) % LIVE;
    if (live[at] != 0) {
      count(asynchronous[at] ? door.cuMemFreeAsync_(live[at], stream) : door.cuMemFree_(live[at]));
      live[at] = 0;
      continue;
    }
    size_t bytes = (size_t)(1 + rand_r(&seed) % 4096) * (rand_r(&seed) % 2 ? 512 : 4096);
    asynchronous[at] = rand_r(&seed) % 3 == 0;
    CUresult result = asynchronous[at] ? door.cuMemAllocAsync_(&live[at], bytes, stream)
                                       : door.cuMemAlloc_(&live[at], bytes);
    if (result != CUDA_SUCCESS) live[at] = 0;
    count(result);
  }
  for (int at = 0; at < LIVE; ++at) {
    if (live[at] != 0) count(door.cuMemFree_(live[at]));
  }
  count(door.cuStreamSynchronize_(stream));
  count(door.cuStreamDestroy_(stream));
  if (together) count(door.cuDevicePrimaryCtxRelease_(0));
  return NULL;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  int threads = atoi(argv[1]);
  rounds = atoi(argv[2]);
  pthread_t ids[64];
  together = argc > 3;
  pthread_barrier_init(&start, NULL, (unsigned int)threads);
  open_door();
  if (!together) {
    count(door.cuInit_(0));
    count(door.cuDevicePrimaryCtxRetain_(&context, 0));
    count(door.cuCtxSetCurrent_(context));
  }
  for (int i = 0; i < threads; ++i) pthread_create(&ids[i], NULL, work, (void*)(size_t)(i + 1));
  for (int i = 0; i < threads; ++i) pthread_join(ids[i], NULL);
  size_t bytes, total;
  if (together) {
    count(door.cuDevicePrimaryCtxRetain_(&context, 0));
    count(door.cuCtxSetCurrent_(context));
  }
  count(door.cuMemGetInfo_(&bytes, &total));
  printf("refused=%d others=%d free=%zu\n", refused, others, bytes);
  count(door.cuDevicePrimaryCtxRelease_(0));
  return others != 0;
}
#endif
