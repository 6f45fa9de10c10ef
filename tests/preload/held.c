/* SPDX-License-Identifier: Apache-2.0 */
/* held NAME ...: programs that are suspended at awkward moments. Each prints begin=, a dot for each
 * round, and at last the number of wrong bytes.
 *   wait WAY PATH BYTES  once the file PATH.more is there, waits for BYTES of memory (alloc, async
 * or vmm), which it needs to go on; then until PATH is there pending PATH         its work takes a
 * while, and is always under way tangled PATH         its work waits for a thread that has to give
 * the GPU work first, once the file PATH.go is there given                reads by a dma-buf what
 * it has written, after others have had their memory
 */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#include <pthread.h>

#include "tests/preload/physical.h"

#define KEPT (48 * MIB)

static CUdeviceptr kept;
/* Host memory that a stream waits for. */
static uint32_t* word;
static CUstream stream;

static void hold(void) {
  __atomic_store_n(word, 0, __ATOMIC_RELEASE);
  check(door.cuStreamWaitValue32_(stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_EQ), "wait");
}
static void go_on(void) { __atomic_store_n(word, 1, __ATOMIC_RELEASE); }

static void begin(void) {
  void* host = NULL;
  start_cuda();
  check(door.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), "stream");
  check(door.cuMemAllocHost_(&host, 4096), "host");
  word = host;
  check(door.cuMemAlloc_(&kept, KEPT), "allocate");
  set(kept, KEPT, 17);
  printf("begin=1 .");
  fflush(stdout);
}

static size_t rounds_until(const char* path) {
  size_t wrong = 0;
  while (access(path, F_OK) != 0) {
    wrong += wrong_bytes(kept, KEPT, 17);
    putchar('.');
    fflush(stdout);
  }
  return wrong;
}

static CUdeviceptr more_of(const char* way, size_t bytes) {
  CUdeviceptr address = 0;
  if (strcmp(way, "vmm") == 0) {
    address = reserve(bytes);
    map(address, bytes, create(bytes, 0));
  } else if (strcmp(way, "async") == 0) {
    check(door.cuMemAllocAsync_(&address, bytes, stream), "async");
    check(door.cuStreamSynchronize_(stream), "synchronize");
  } else {
    check(door.cuMemAlloc_(&address, bytes), "alloc");
  }
  return address;
}

static void wait_for_file(const char* path, const char* end) {
  char name[4096];
  snprintf(name, sizeof(name), "%s.%s", path, end);
  while (access(name, F_OK) != 0) usleep(1000);
}

static void wait_for(const char* way, const char* path, size_t bytes) {
  begin();
  wait_for_file(path, "more");
  const CUdeviceptr more = more_of(way, bytes);
  set(more, bytes, 18);
  printf("got=1 ");
  const size_t wrong = rounds_until(path);
  printf(" wrong=%zu\n", wrong + wrong_bytes(more, bytes, 18));
}

static int ended = 0;

/* Lets the stream go on at any time, by no call of the driver. */
static void* let_go(void* unused) {
  (void)unused;
  while (!__atomic_load_n(&ended, __ATOMIC_ACQUIRE)) {
    usleep(500);
    go_on();
  }
  return NULL;
}

static void pending(const char* path) {
  pthread_t thread;
  size_t wrong = 0;
  CUdeviceptr block = 0;
  begin();
  check(door.cuMemAlloc_(&block, 8 * MIB), "allocate");
  pthread_create(&thread, NULL, let_go, NULL);
  for (unsigned char value = 0; access(path, F_OK) != 0; ++value) {
    set(block, 8 * MIB, 0);
    hold();
    check(door.cuMemsetD8Async_(block, value, 8 * MIB, stream), "set");
    check(door.cuStreamSynchronize_(stream), "synchronize");
    wrong += wrong_bytes(block, 8 * MIB, value);
    putchar('.');
    fflush(stdout);
  }
  __atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  printf(" wrong=%zu\n", wrong + wrong_bytes(kept, KEPT, 17));
}

static void tangled(const char* path) {
  begin();
  hold();
  check(door.cuMemsetD8Async_(kept, 17, KEPT, stream), "set");
  wait_for_file(path, "go");
  set(kept, 4096, 17);
  go_on();
  check(door.cuStreamSynchronize_(stream), "synchronize");
  printf(" wrong=%zu\n", rounds_until(path));
}

static void given(void) {
  enum { kPieces = 8 };
  unsigned char byte = 0;
  size_t wrong = 0;
  int buffers[kPieces];
  start_cuda();
  for (int use = 0; use < 2; ++use) {
    for (int i = 0; i < kPieces; ++i) {
      const CUdeviceptr address = reserve(4 * MIB);
      const CUmemGenericAllocationHandle handle = create(4 * MIB, 0);
      map(address, 4 * MIB, handle);
      set(address, 4 * MIB, (unsigned char)(use + 1));
      if (use == 0) {
        check(door.cuMemGetHandleForAddressRange_(&buffers[i], address, 4 * MIB,
                                                  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
              "dma-buf");
      }
      check(door.cuMemUnmap_(address, 4 * MIB), "unmap");
      check(door.cuMemRelease_(handle), "release");
    }
  }
  for (int i = 0; i < kPieces; ++i) {
    if (pread(buffers[i], &byte, 1, 0) != 1) exit(5);
    wrong += byte != 1;
  }
  CUdeviceptr block = 0;
  CUmemGenericAllocationHandle retained = 0;
  int buffer = -1;
  check(door.cuMemAlloc_(&block, 4 * MIB), "allocate");
  printf("wrong=%zu buffer=%d retained=%d\n", wrong,
         (int)door.cuMemGetHandleForAddressRange_(&buffer, block, 4 * MIB,
                                                  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
         (int)door.cuMemRetainAllocationHandle_(&retained, (void*)block));
}

int main(int argc, char** argv) {
  if (argc == 5 && strcmp(argv[1], "wait") == 0) {
    wait_for(argv[2], argv[3], strtoull(argv[4], NULL, 10));
  } else if (argc == 3 && strcmp(argv[1], "pending") == 0) {
    pending(argv[2]);
  } else if (argc == 3 && strcmp(argv[1], "tangled") == 0) {
    tangled(argv[2]);
  } else if (argc == 2 && strcmp(argv[1], "given") == 0) {
    given();
  } else {
    return 64;
  }
  return 0;
}
#endif
