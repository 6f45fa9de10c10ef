/* SPDX-License-Identifier: Apache-2.0 */
/* physical_work NAME PATH: checks memory of cuMemCreate() until PATH is there. Prints begin= at
 * once, a dot each round, and wrong= at the end.
 *   work     at several addresses
 *   lend     the same, and a child without the preload writes to a part of it meanwhile
 *   pin      the same, with memory that others have in further ways
 *   both     the same, with 64 MiB of cuMemAlloc()
 *   threads  eight threads, which make, map and free memory
 *   leave    only waits, and ends as the runtime does: it lets the context go
 *   add FD   the child of lend
 */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/wait.h>

#include "tests/preload/physical.h"

char* self;
static CUcontext context;

static void begin(void) {
  printf("begin=1 ");
  fflush(stdout);
}

static void leave(const char* path) {
  context = start_cuda();
  CUdeviceptr address = reserve(64 * MIB);
  map(address, 64 * MIB, create(64 * MIB, 0));
  printf("begin=1.");
  fflush(stdout);
  while (access(path, F_OK) != 0) usleep(1000);
  printf("release=%d\n", (int)door.cuDevicePrimaryCtxRelease_(0));
}

/* Pieces that are mapped at two addresses each: one range of all, and each by itself, to be read
 * only. Half of the handles are released. */
enum { kPieces = 4 };
struct Work {
  CUdeviceptr whole, single[kPieces];
};

static void begin_work(struct Work* work) {
  const size_t bytes = 6 * MIB;
  work->whole = reserve(kPieces * bytes);
  for (size_t i = 0; i < kPieces; ++i) {
    CUmemGenericAllocationHandle handle = create(bytes, 0);
    work->single[i] = reserve(bytes + 2 * MIB) + 2 * MIB;
    map(work->whole + i * bytes, bytes, handle);
    map(work->single[i], bytes, handle);
    set(work->single[i], bytes, (unsigned char)(50 + i));
    check(let(work->single[i], bytes, CU_MEM_ACCESS_FLAGS_PROT_READ), "access");
    if (i % 2 == 0) check(door.cuMemRelease_(handle), "release");
  }
}

static size_t work_once(const struct Work* work, unsigned int round) {
  const size_t bytes = 6 * MIB;
  size_t wrong = 0;
  for (size_t i = 0; i < kPieces; ++i) {
    /* The last MiB has the number of the round. */
    CUdeviceptr at = work->whole + i * bytes;
    CUresult result;
    wrong += wrong_bytes(at, bytes - MIB, (unsigned char)(50 + i));
    set(at + bytes - MIB, MIB, (unsigned char)round);
    wrong += wrong_bytes(work->single[i], bytes - MIB, (unsigned char)(50 + i));
    wrong += wrong_bytes(work->single[i] + bytes - MIB, MIB, (unsigned char)round);
    wrong += access_at(work->single[i], &result) != CU_MEM_ACCESS_FLAGS_PROT_READ;
    wrong += access_at(at, &result) != CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  /* Memory comes and goes meanwhile. */
  CUdeviceptr scratch = reserve(2 * MIB);
  CUmemGenericAllocationHandle handle = create(2 * MIB, 0);
  map(scratch, 2 * MIB, handle);
  set(scratch, 2 * MIB, (unsigned char)round);
  wrong += wrong_bytes(scratch, 2 * MIB, (unsigned char)round);
  check(door.cuMemUnmap_(scratch, 2 * MIB), "unmap");
  check(door.cuMemRelease_(handle), "release");
  check(door.cuMemAddressFree_(scratch, 2 * MIB), "free");
  return wrong;
}

static size_t work_until(const char* path) {
  struct Work work;
  size_t wrong = 0;
  begin_work(&work);
  begin();
  for (unsigned int round = 0; access(path, F_OK) != 0; ++round) {
    wrong += work_once(&work, round);
    putchar('.');
    fflush(stdout);
  }
  return wrong;
}

/* The child adds to the first byte of each MiB until its standard input ends. */
static void add(int fd) {
  context = start_cuda();
  CUdeviceptr address = imported(fd, SHARED);
  char byte = 0;
  if (write(1, "+", 1) != 1) exit(4);
  fcntl(0, F_SETFL, O_NONBLOCK);
  for (unsigned char value = 0;; ++value) {
    set(address, SHARED, value);
    if (read(0, &byte, 1) == 0) break;
    usleep(1000);
  }
  set(address, SHARED, 201);
}

static void lend(const char* path) {
  context = start_cuda();
  CUmemGenericAllocationHandle handle = create(SHARED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUdeviceptr address = reserve(SHARED);
  map(address, SHARED, handle);
  int to_child[2], to_parent[2];
  char byte = 0;
  if (pipe(to_child) != 0 || pipe(to_parent) != 0) exit(4);
  for (int i = 0; i < 2; ++i) {
    fcntl(to_child[i], F_SETFD, FD_CLOEXEC);
    fcntl(to_parent[i], F_SETFD, FD_CLOEXEC);
  }
  int out = dup(1), in = dup(0);
  fcntl(out, F_SETFD, FD_CLOEXEC);
  fcntl(in, F_SETFD, FD_CLOEXEC);
  fflush(stdout);
  dup2(to_parent[1], 1);
  dup2(to_child[0], 0);
  pid_t child = spawn("add", exported(handle), 0);
  dup2(out, 1);
  dup2(in, 0);
  if (read(to_parent[0], &byte, 1) != 1) exit(4);
  size_t wrong = work_until(path);
  int status = 0;
  close(to_child[1]);
  waitpid(child, &status, 0);
  /* It is the same memory still. */
  wrong += wrong_bytes(address, SHARED, 201) + (size_t)WEXITSTATUS(status);
  printf(" wrong=%zu\n", wrong);
}

/* 4 MiB each in a dma-buf, in a multicast object by handle, and by address. */
static void pin(const char* path) {
  context = start_cuda();
  CUdeviceptr address = reserve(12 * MIB);
  CUmemGenericAllocationHandle pieces[3], group = 0;
  CUmulticastObjectProp wanted;
  int buffer = -1;
  memset(&wanted, 0, sizeof(wanted));
  wanted.numDevices = 1;
  wanted.size = 8 * MIB;
  for (size_t i = 0; i < 3; ++i) {
    pieces[i] = create(4 * MIB, 0);
    map(address + i * 4 * MIB, 4 * MIB, pieces[i]);
  }
  set(address, 12 * MIB, 77);
  check(door.cuMemGetHandleForAddressRange_(&buffer, address, 4 * MIB,
                                            CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
        "dma-buf");
  check(door.cuMulticastCreate_(&group, &wanted), "group");
  check(door.cuMulticastBindMem_(group, 0, pieces[1], 0, 4 * MIB, 0), "bind");
  check(door.cuMulticastBindAddr_(group, 4 * MIB, address + 8 * MIB, 4 * MIB, 0), "bind");
  size_t wrong = work_until(path);
  printf(" wrong=%zu\n", wrong + wrong_bytes(address, 12 * MIB, 77));
}

static void both(const char* path) {
  context = start_cuda();
  CUdeviceptr block = 0;
  check(door.cuMemAlloc_(&block, 64 * MIB), "allocate");
  set(block, 64 * MIB, 78);
  size_t wrong = work_until(path);
  printf(" wrong=%zu\n", wrong + wrong_bytes(block, 64 * MIB, 78));
}

static const char* until;
static size_t all_wrong;

static void* run_thread(void* number) {
  const unsigned char value = (unsigned char)(uintptr_t)number;
  size_t wrong = 0;
  check(door.cuCtxSetCurrent_(context), "context");
  CUdeviceptr range = reserve(8 * MIB);
  for (unsigned int round = 0; access(until, F_OK) != 0; ++round) {
    const unsigned char now = (unsigned char)(value + 8 * round);
    CUmemGenericAllocationHandle handle = create(4 * MIB, 0), retained = 0;
    check(door.cuMemMap_(range, 4 * MIB, 0, handle, 0), "map");
    check(door.cuMemRelease_(handle), "release");
    check(door.cuMemRetainAllocationHandle_(&retained, (void*)range), "retain");
    check(door.cuMemMap_(range + 4 * MIB, 4 * MIB, 0, retained, 0), "map");
    check(let(range, 8 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), "access");
    set(range + 4 * MIB, 4 * MIB, now);
    wrong += wrong_bytes(range, 4 * MIB, now);
    check(door.cuMemUnmap_(range + 4 * MIB, 4 * MIB), "unmap");
    wrong += wrong_bytes(range, 4 * MIB, now);
    check(door.cuMemRelease_(retained), "release");
    check(door.cuMemUnmap_(range, 4 * MIB), "unmap");
    putchar('.');
    fflush(stdout);
  }
  __atomic_add_fetch(&all_wrong, wrong, __ATOMIC_RELAXED);
  return NULL;
}

static void threads(const char* path) {
  enum { kThreads = 8 };
  pthread_t running[kThreads];
  context = start_cuda();
  until = path;
  /* An operator waits for memory that was there when he asked. */
  CUdeviceptr kept = reserve(2 * MIB);
  map(kept, 2 * MIB, create(2 * MIB, 0));
  set(kept, 2 * MIB, 200);
  begin();
  for (uintptr_t i = 0; i < kThreads; ++i) {
    if (pthread_create(&running[i], NULL, run_thread, (void*)i) != 0) exit(4);
  }
  for (int i = 0; i < kThreads; ++i) pthread_join(running[i], NULL);
  printf(" wrong=%zu\n", all_wrong + wrong_bytes(kept, 2 * MIB, 200));
}

int main(int argc, char** argv) {
  self = argv[0];
  const char* name = argc > 1 ? argv[1] : "";
  const char* more = argc > 2 ? argv[2] : "";
  if (strcmp(name, "work") == 0) {
    context = start_cuda();
    printf(" wrong=%zu\n", work_until(more));
  } else if (strcmp(name, "lend") == 0) {
    lend(more);
  } else if (strcmp(name, "pin") == 0) {
    pin(more);
  } else if (strcmp(name, "both") == 0) {
    both(more);
  } else if (strcmp(name, "threads") == 0) {
    threads(more);
  } else if (strcmp(name, "leave") == 0) {
    leave(more);
  } else if (strcmp(name, "add") == 0) {
    add(atoi(more));
  } else {
    return 64;
  }
  return 0;
}
#endif
