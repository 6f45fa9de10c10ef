/* SPDX-License-Identifier: Apache-2.0 */
/* brokered NAME: uses memory of cuMemAlloc() in ways that its owner must not see to be gpumem's.
 * Prints key=value words, which are the same without the preload.
 *   pointers      what the driver tells of addresses
 *   ipc           memory of a child process
 *   deferred      frees during a capture
 *   reset         what goes with the primary context
 *   mixed         memory that is gpumem's, then the driver's, then gpumem's, each most of the limit
 *   nvml          how much more memory NVML counts to processes after 64 MiB
 *   once BYTES    one allocation
 *   leave PATH    waits for PATH with 64 MiB, and ends as the runtime does: it lets the context go
 *   work PATH     adds up memory until PATH is there; prints begin= at once, and a dot each round
 */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/door.h"

#define MIB ((size_t)1 << 20)

static CUcontext context;

static void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(4);
}

static void start(void) { context = start_cuda(); }

static CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr address = 0;
  check(door.cuMemAlloc_(&address, bytes), "cuMemAlloc");
  return address;
}

static void describe(const char* name, CUdeviceptr address, CUdeviceptr base) {
  CUdeviceptr begin = 0, begin_again = 0;
  size_t size = 0, size_again = 0;
  int ipc = -1, device = -1;
  CUcontext of = NULL;
  CUmemorytype type = 0;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_CONTEXT,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* data[] = {&begin_again, &size_again, &ipc, &of, &device};
  printf("%s_range=%d ", name, (int)door.cuMemGetAddressRange_(&begin, &size, address));
  printf("%s_base=%lld %s_size=%zu ", name, (long long)(base - begin), name, size);
  printf("%s_attributes=%d ", name,
         (int)door.cuPointerGetAttributes_(5, attributes, data, address));
  printf("%s_same=%d/%d ", name, begin == begin_again, size == size_again);
  printf("%s_ipc=%d %s_context=%d %s_device=%d ", name, ipc, name, of == context, name, device);
  CUresult result = door.cuPointerGetAttribute_(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  printf("%s_type=%d/%d ", name, (int)result, (int)type);
  size_again = 0;
  door.cuPointerGetAttribute_(&size_again, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
  printf("%s_one=%d\n", name, size == size_again);
}

static void pointers(void) {
  start();
  CUdeviceptr small = allocate(1000), large = allocate(3 * MIB + 17), pitched = 0;
  size_t pitch = 0;
  check(door.cuMemAllocPitch_(&pitched, &pitch, 1000, 10, 4), "pitch");
  describe("small", small, small);
  describe("inside", large + 2 * MIB, large);
  describe("last", large + 3 * MIB + 16, large);
  describe("pitched", pitched + 5 * pitch, pitched);
  printf("pitch=%zu ", pitch);
  printf("bad_element=%d ", (int)door.cuMemAllocPitch_(&pitched, &pitch, 1000, 10, 3));
  check(door.cuMemFree_(large), "free");
  size_t size = 0;
  CUdeviceptr begin = 0;
  printf("gone=%d\n", (int)door.cuMemGetAddressRange_(&begin, &size, small + 2000 * MIB));
}

/* The parent makes two blocks, of which the child opens one twice. */
static void ipc(void) {
  int to_child[2], to_parent[2];
  if (pipe(to_child) != 0 || pipe(to_parent) != 0) exit(4);
  pid_t child = fork();
  CUipcMemHandle handle;
  char byte = 0;
  static unsigned char bytes[40 << 20];
  if (child == 0) {
    start();
    CUdeviceptr first = 0, second = 0, begin = 0;
    size_t size = 0;
    if (read(to_child[0], &handle, sizeof(handle)) != sizeof(handle)) exit(4);
    printf("open=%d ", (int)door.cuIpcOpenMemHandle_(&first, handle, 1));
    printf("again=%d ", (int)door.cuIpcOpenMemHandle_(&second, handle, 1));
    printf("same=%d ", first == second);
    printf("range=%d ", (int)door.cuMemGetAddressRange_(&begin, &size, first + 100));
    printf("base=%d size=%zu ", begin == first, size);
    check(door.cuMemcpyDtoH_(bytes, first, sizeof(bytes)), "copy");
    size_t right = 0;
    for (size_t i = 0; i < sizeof(bytes); ++i) right += bytes[i] == 42;
    printf("right=%d ", right == sizeof(bytes));
    check(door.cuMemsetD8_(first, 7, sizeof(bytes)), "set");
    printf("free=%d ", (int)door.cuMemFree_(first) == CUDA_SUCCESS);
    printf("close=%d/", (int)door.cuIpcCloseMemHandle_(first));
    printf("%d/", (int)door.cuIpcCloseMemHandle_(second));
    printf("%d ", (int)door.cuIpcCloseMemHandle_(second) == CUDA_SUCCESS);
    memset(&handle, 0xee, sizeof(handle));
    printf("forged=%d\n", (int)door.cuIpcOpenMemHandle_(&first, handle, 1) == CUDA_SUCCESS);
    fflush(stdout);
    if (write(to_parent[1], &byte, 1) != 1) exit(4);
    exit(0);
  }
  start();
  CUdeviceptr block = allocate(sizeof(bytes));
  check(door.cuMemsetD8_(block, 42, sizeof(bytes)), "set");
  check(door.cuIpcGetMemHandle_(&handle, block), "handle");
  if (write(to_child[1], &handle, sizeof(handle)) != sizeof(handle)) exit(4);
  if (read(to_parent[0], &byte, 1) != 1) exit(4);
  int status = 0;
  waitpid(child, &status, 0);
  check(door.cuMemcpyDtoH_(bytes, block, sizeof(bytes)), "copy");
  printf("child=%d ", WEXITSTATUS(status));
  printf("changed=%d ", bytes[0] == 7 && bytes[sizeof(bytes) - 1] == 7);
  printf("free=%d ", (int)door.cuMemFree_(block));
  printf("stale=%d\n", (int)door.cuIpcOpenMemHandle_(&block, handle, 1) == CUDA_SUCCESS);
}

static void deferred(void) {
  start();
  CUstream stream;
  CUgraph graph;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUdeviceptr first = allocate(4 * MIB), second = allocate(4 * MIB), third = allocate(4 * MIB);
  check(door.cuStreamCreate_(&stream, 1), "stream");
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  printf("forbidden=%d ", (int)door.cuMemFree_(first));
  printf("end=%d ", (int)door.cuStreamEndCapture_(stream, &graph));
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  printf("captured=%d ", (int)door.cuMemFreeAsync_(third, stream) == CUDA_SUCCESS);
  door.cuStreamEndCapture_(stream, &graph);
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  door.cuThreadExchangeStreamCaptureMode_(&mode);
  printf("free=%d ", (int)door.cuMemFree_(second));
  printf("twice=%d ", (int)door.cuMemFree_(second));
  /* Too small to get the addresses of the others. */
  CUdeviceptr meanwhile = allocate(1000);
  printf("end=%d ", (int)door.cuStreamEndCapture_(stream, &graph));
  printf("after=%d ", (int)door.cuMemFree_(second));
  printf("others=%d/%d/%d ", (int)door.cuMemFree_(first), (int)door.cuMemFree_(third),
         (int)door.cuMemFree_(meanwhile));
  /* A capture goes with its stream. */
  first = allocate(4 * MIB);
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  printf("free=%d ", (int)door.cuMemFree_(first));
  printf("destroy=%d ", (int)door.cuStreamDestroy_(stream));
  printf("later=%d\n", (int)door.cuMemFree_(allocate(64 * MIB)));
}

static void reset(void) {
  start();
  CUdeviceptr block = allocate(64 * MIB);
  check(door.cuDevicePrimaryCtxReset_(0), "reset");
  printf("stale=%d ", (int)door.cuMemFree_(block) == CUDA_SUCCESS);
  check(door.cuDevicePrimaryCtxRelease_(0), "release");
  start();
  block = allocate(200 * MIB);
  check(door.cuMemsetD8_(block, 1, 200 * MIB), "set");
  check(door.cuDevicePrimaryCtxRelease_(0), "release");
  start();
  printf("again=%d\n", allocate(200 * MIB) != 0);
}

static void mixed(void) {
  CUdeviceptr block = 0;
  start();
  check(door.cuMemFree_(allocate(200 * MIB)), "free");
  printf("managed=%d ", (int)door.cuMemAllocManaged_(&block, 120 * MIB, CU_MEM_ATTACH_GLOBAL));
  check(door.cuMemFree_(block), "free");
  printf("again=%d\n", (int)door.cuMemAlloc_(&block, 200 * MIB));
}

static void once(size_t bytes) {
  CUdeviceptr block;
  start();
  printf("code=%d\n", (int)door.cuMemAlloc_(&block, bytes));
}

static void leave(const char* path) {
  start();
  allocate(64 * MIB);
  printf("begin=1.");
  fflush(stdout);
  while (access(path, F_OK) != 0) usleep(1000);
  printf("release=%d\n", (int)door.cuDevicePrimaryCtxRelease_(0));
}

struct Row {
  unsigned int pid;
  unsigned long long used;
  unsigned int instances[2];
};

static unsigned long long used_by(int (*list)(void*, unsigned int*, struct Row*), void* device,
                                  unsigned int pid) {
  struct Row rows[64];
  unsigned int count = 64;
  if (list(device, &count, rows) != 0) exit(5);
  for (unsigned int i = 0; i < count; ++i) {
    if (rows[i].pid == pid) return rows[i].used;
  }
  exit(6);
}

static void nvml(void) {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == NULL) exit(3);
  int (*init)(void);
  int (*find)(unsigned int, void**);
  int (*list)(void*, unsigned int*, struct Row*);
  int (*list_v2)(void*, unsigned int*, struct Row*);
  void* device = NULL;
  unsigned int few = 1;
  struct Row row = {0};
  unsigned int self = (unsigned int)getpid(), others[] = {1, (unsigned int)getppid()};
  *(void**)&init = dlsym(library, "nvmlInit_v2");
  *(void**)&find = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
  *(void**)&list = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
  *(void**)&list_v2 = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v2");
  if (init() != 0 || find(0, &device) != 0) exit(4);
  printf("few=%d ", list(device, &few, &row));
  printf("before=%llu ", used_by(list, device, self));
  start();
  CUdeviceptr address = allocate(64 * MIB);
  printf("after=%llu after_v2=%llu ", used_by(list, device, self), used_by(list_v2, device, self));
  for (int i = 0; i < 2; ++i) printf("other=%llu ", used_by(list, device, others[i]));
  check(door.cuMemFree_(address), "free");
  printf("\n");
}

static void work(const char* path) {
  enum { kBlocks = 5 };
  static unsigned char bytes[3 << 20];
  CUdeviceptr blocks[kBlocks];
  start();
  for (int i = 0; i < kBlocks; ++i) {
    blocks[i] = allocate(sizeof(bytes) * (size_t)(i + 1));
    check(door.cuMemsetD8_(blocks[i], (unsigned char)i, sizeof(bytes) * (size_t)(i + 1)), "set");
  }
  CUdeviceptr scratch = allocate(MIB);
  printf("begin=1 ");
  fflush(stdout);
  size_t wrong = 0;
  for (unsigned int round = 0; access(path, F_OK) != 0; ++round) {
    check(door.cuMemsetD8_(scratch, (unsigned char)round, MIB), "set");
    for (int i = 0; i < kBlocks; ++i) {
      check(door.cuMemcpyDtoH_(bytes, blocks[i] + sizeof(bytes) * (size_t)i, sizeof(bytes)),
            "copy");
      for (size_t at = 0; at < sizeof(bytes); at += 4096) wrong += bytes[at] != i;
    }
    check(door.cuMemcpyDtoH_(bytes, scratch, MIB), "copy");
    wrong += bytes[MIB - 1] != (unsigned char)round;
    /* Blocks come and go meanwhile. */
    check(door.cuMemFree_(scratch), "free");
    scratch = allocate(MIB);
    putchar('.');
    fflush(stdout);
  }
  printf(" wrong=%zu\n", wrong);
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "pointers") == 0) {
    pointers();
  } else if (argc == 2 && strcmp(argv[1], "ipc") == 0) {
    ipc();
  } else if (argc == 2 && strcmp(argv[1], "deferred") == 0) {
    deferred();
  } else if (argc == 2 && strcmp(argv[1], "reset") == 0) {
    reset();
  } else if (argc == 2 && strcmp(argv[1], "mixed") == 0) {
    mixed();
  } else if (argc == 2 && strcmp(argv[1], "nvml") == 0) {
    nvml();
  } else if (argc == 3 && strcmp(argv[1], "once") == 0) {
    once(strtoull(argv[2], NULL, 10));
  } else if (argc == 3 && strcmp(argv[1], "leave") == 0) {
    leave(argv[2]);
  } else if (argc == 3 && strcmp(argv[1], "work") == 0) {
    work(argv[2]);
  } else {
    return 64;
  }
  return 0;
}
#endif
