/* SPDX-License-Identifier: Apache-2.0 */
/* async_work NAME: uses stream-ordered memory in several streams and threads, and looks if anything
 * is handed out twice. Prints key=value words.
 *   order       streams whose work is pending: nothing is handed out that it may still use
 *   crossed     the same with memory of cuMemAlloc(), and frees that wait
 *   race        threads with streams of all sorts that free each other's blocks. The processor
 *               must be able to use the memory
 *
 *   work PATH   adds up memory until PATH is there; prints begin= at once, and a dot each round
 */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "tests/preload/async.h"

static int apart(CUdeviceptr a, CUdeviceptr b, size_t bytes) {
  return a + bytes <= b || b + bytes <= a;
}

/* Host memory that a stream waits for. */
static uint32_t* word;

static void hold(CUstream stream) {
  *word = 0;
  check(door.cuStreamWaitValue32_(stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_EQ), "wait");
}
static void go_on(void) { __atomic_store_n(word, 1, __ATOMIC_RELEASE); }

static size_t count(CUdeviceptr block, size_t bytes, unsigned char value) {
  static unsigned char copy[8 << 20];
  size_t right = 0;
  check(door.cuMemcpyDtoH_(copy, block, bytes), "copy");
  for (size_t i = 0; i < bytes; ++i) right += copy[i] == value;
  return right;
}

static CUcontext shared_context;

/* Frees a block, and returns what the word is then. */
static void* free_and_look(void* block) {
  check(door.cuCtxSetCurrent_(shared_context), "context");
  check(door.cuMemFree_((CUdeviceptr)(uintptr_t)block), "cuMemFree");
  return (void*)(uintptr_t)__atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void order(void) {
  const size_t bytes = 4 * MIB;
  shared_context = start();
  CUstream one = stream_of(CU_STREAM_NON_BLOCKING), other = stream_of(CU_STREAM_NON_BLOCKING);
  CUevent event;
  void* host = NULL;
  keep_all();
  check(door.cuMemAllocHost_(&host, 4096), "host");
  check(door.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING), "event");
  word = host;
  /* Freed behind work that is pending: no other stream gets it. */
  CUdeviceptr first = get(bytes, one);
  hold(one);
  check(door.cuMemsetD8Async_(first, 1, bytes, one), "set");
  give(first, one);
  CUdeviceptr second = get(bytes, other), third = get(bytes, NULL);
  check(door.cuMemsetD8Async_(second, 2, bytes, other), "set");
  check(door.cuMemsetD8_(third, 3, bytes), "set");
  printf("apart=%d/%d ", apart(first, second, bytes), apart(first, third, bytes));
  go_on();
  check(door.cuStreamSynchronize_(one), "synchronize");
  check(door.cuStreamSynchronize_(other), "synchronize");
  printf("right=%d/%d ", count(second, bytes, 2) == bytes, count(third, bytes, 3) == bytes);
  /* Freed on another stream, which waits for the first: no stream may get it yet. */
  hold(one);
  check(door.cuMemsetD8Async_(second, 4, bytes, one), "set");
  check(door.cuEventRecord_(event, one), "record");
  check(door.cuStreamWaitEvent_(other, event, 0), "wait");
  give(second, other);
  CUdeviceptr again = get(bytes, NULL);
  check(door.cuMemsetD8_(again, 5, bytes), "set");
  printf("apart=%d ", apart(second, again, bytes));
  go_on();
  check(door.cuCtxSynchronize_(), "synchronize");
  printf("right=%d ", count(again, bytes, 5) == bytes);
  /* Pending frees outlive their stream. */
  CUstream third_stream = stream_of(CU_STREAM_NON_BLOCKING);
  CUdeviceptr fourth = get(bytes, third_stream);
  hold(third_stream);
  check(door.cuMemsetD8Async_(fourth, 6, bytes, third_stream), "set");
  give(fourth, third_stream);
  check(door.cuStreamDestroy_(third_stream), "destroy");
  third_stream = stream_of(CU_STREAM_NON_BLOCKING);
  CUdeviceptr fifth = get(bytes, third_stream), sixth = get(bytes, other);
  check(door.cuMemsetD8Async_(fifth, 7, bytes, third_stream), "set");
  check(door.cuMemsetD8Async_(sixth, 8, bytes, other), "set");
  printf("apart=%d/%d ", apart(fourth, fifth, bytes), apart(fourth, sixth, bytes));
  go_on();
  check(door.cuCtxSynchronize_(), "synchronize");
  printf("right=%d/%d ", count(fifth, bytes, 7) == bytes, count(sixth, bytes, 8) == bytes);
  printf("\n");
}

static void crossed(void) {
  const size_t bytes = 4 * MIB;
  shared_context = start();
  CUstream one = stream_of(CU_STREAM_NON_BLOCKING), other = stream_of(CU_STREAM_NON_BLOCKING);
  void* host = NULL;
  void* seen = NULL;
  check(door.cuMemAllocHost_(&host, 4096), "host");
  word = host;
  /* Memory of cuMemAlloc(), freed on a stream, and the other way round. */
  CUdeviceptr plain = 0;
  check(door.cuMemAlloc_(&plain, bytes), "cuMemAlloc");
  hold(one);
  check(door.cuMemsetD8Async_(plain, 9, bytes, one), "set");
  give(plain, one);
  CUdeviceptr seventh = get(bytes, other), eighth = 0;
  check(door.cuMemAlloc_(&eighth, bytes), "cuMemAlloc");
  printf("apart=%d/%d ", apart(plain, seventh, bytes), apart(plain, eighth, bytes));
  go_on();
  check(door.cuCtxSynchronize_(), "synchronize");
  /* cuMemFree() waits. */
  CUdeviceptr fifth = get(bytes, other);
  hold(one);
  check(door.cuMemsetD8Async_(fifth, 10, bytes, one), "set");
  pthread_t thread;
  pthread_create(&thread, NULL, free_and_look, (void*)(uintptr_t)fifth);
  go_on();
  pthread_join(thread, &seen);
  printf("waited=%d\n", (int)(uintptr_t)seen);
}

enum { kThreads = 8, kSlots = 64, kRounds = 400 };
static CUdeviceptr slots[kSlots];
static size_t wrong, refused;

static void bad(CUresult result) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
  } else if (result != CUDA_SUCCESS) {
    __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
  }
}

/* Each block begins and ends with its address. Any thread frees those in the slots. */
static void* race_one(void* argument) {
  unsigned int seed = (unsigned int)(size_t)argument;
  check(door.cuCtxSetCurrent_(shared_context), "context");
  CUstream own = stream_of(seed % 2 == 0 ? CU_STREAM_NON_BLOCKING : 0);
  for (int round = 0; round < kRounds; ++round) {
    const int way = (int)(rand_r(&seed) % 4);
    const size_t bytes = 64 + (size_t)(rand_r(&seed) % 64 == 0 ? 3 << 20 : rand_r(&seed) % 300000);
    CUdeviceptr block = 0, old;
    CUresult result = way == 0   ? alloc_per_thread(&block, bytes, NULL)
                      : way == 1 ? door.cuMemAllocAsync_(&block, bytes, NULL)
                      : way == 2 ? door.cuMemAlloc_(&block, bytes)
                                 : door.cuMemAllocAsync_(&block, bytes, own);
    bad(result);
    if (result != CUDA_SUCCESS) continue;
    memcpy((void*)(uintptr_t)block, &block, sizeof(block));
    memcpy((void*)(uintptr_t)(block + bytes - sizeof(block)), &block, sizeof(block));
    CUdeviceptr* slot = &slots[rand_r(&seed) % kSlots];
    old = __atomic_exchange_n(slot, block, __ATOMIC_ACQ_REL);
    if (old == 0) continue;
    CUdeviceptr begin = 0;
    size_t size = 0;
    bad(door.cuMemGetAddressRange_(&begin, &size, old));
    memcpy(&block, (const void*)(uintptr_t)old, sizeof(block));
    if (begin != old || block != old) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
    memcpy(&block, (const void*)(uintptr_t)(old + size - sizeof(block)), sizeof(block));
    if (block != old) __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
    switch (rand_r(&seed) % 8) {
      case 0:
        bad(door.cuMemFree_(old));
        break;
      case 1:
      case 2:
        bad(door.cuMemFreeAsync_(old, NULL));
        break;
      case 3:
        bad(free_per_thread(old, NULL));
        break;
      default:
        bad(door.cuMemFreeAsync_(old, own));
        break;
    }
    if (round % 100 == 99) {
      bad(door.cuStreamDestroy_(own));
      own = stream_of(round % 200 == 99 ? CU_STREAM_NON_BLOCKING : 0);
    }
  }
  bad(door.cuStreamDestroy_(own));
  return NULL;
}

static void race(void) {
  pthread_t threads[kThreads];
  shared_context = start();
  for (size_t i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, race_one, (void*)(i + 1));
  for (size_t i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  for (size_t i = 0; i < kSlots; ++i) {
    if (slots[i] != 0) bad(door.cuMemFree_(slots[i]));
  }
  cuuint64_t used = 1;
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), "used");
  printf("wrong=%zu refused=%zu used=%llu\n", wrong, refused, (unsigned long long)used);
}

static void work(const char* path) {
  enum { kBlocks = 5 };
  static unsigned char bytes[3 << 20];
  CUdeviceptr blocks[kBlocks], plain = 0;
  start();
  keep_all();
  CUstream streams[] = {NULL, CU_STREAM_PER_THREAD, stream_of(0),
                        stream_of(CU_STREAM_NON_BLOCKING)};
  for (int i = 0; i < kBlocks; ++i) {
    const size_t size = sizeof(bytes) * (size_t)(i + 1);
    blocks[i] = get(size, streams[i % 4]);
    check(door.cuMemsetD8Async_(blocks[i], (unsigned char)i, size, streams[i % 4]), "set");
  }
  check(door.cuMemAlloc_(&plain, 8 * MIB), "cuMemAlloc");
  check(door.cuMemsetD8_(plain, 99, 8 * MIB), "set");
  printf("begin=1 ");
  fflush(stdout);
  size_t bad_bytes = 0;
  for (unsigned int round = 0; access(path, F_OK) != 0; ++round) {
    CUstream stream = streams[round % 4];
    const size_t size = MIB + (round % 7) * 4096;
    CUdeviceptr scratch = get(size, stream);
    check(door.cuMemsetD8Async_(scratch, (unsigned char)round, size, stream), "set");
    check(door.cuMemcpyDtoHAsync_(bytes, scratch, size, stream), "copy");
    check(door.cuStreamSynchronize_(stream), "synchronize");
    bad_bytes += bytes[0] != (unsigned char)round || bytes[size - 1] != (unsigned char)round;
    /* Frees are pending whenever the program is held. */
    give(scratch, streams[round / 4 % 2 + 2]);
    for (int i = 0; i < kBlocks; ++i) {
      check(door.cuMemcpyDtoH_(bytes, blocks[i] + sizeof(bytes) * (size_t)i, sizeof(bytes)),
            "copy");
      for (size_t at = 0; at < sizeof(bytes); at += 4096) bad_bytes += bytes[at] != i;
    }
    check(door.cuMemcpyDtoH_(bytes, plain + 7 * MIB, MIB), "copy");
    bad_bytes += bytes[0] != 99;
    putchar('.');
    fflush(stdout);
  }
  printf(" wrong=%zu\n", bad_bytes);
}

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "work") == 0) {
    work(argv[2]);
  } else if (argc == 2 && strcmp(argv[1], "order") == 0) {
    order();
  } else if (argc == 2 && strcmp(argv[1], "crossed") == 0) {
    crossed();
  } else if (argc == 2 && strcmp(argv[1], "race") == 0) {
    race();
  } else {
    return 64;
  }
  return 0;
}
#endif
