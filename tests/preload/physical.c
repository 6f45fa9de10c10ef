/* SPDX-License-Identifier: Apache-2.0 */
/* physical NAME: uses memory of cuMemCreate() in ways that its owner must not see to be gpumem's.
 * Prints key=value words, which are the same without the preload.
 *   facts      what the driver tells of handles and mappings, and refuses
 *   fork       a child after fork() is refused as by the driver
 *   export     memory in child processes, with and without the preload
 *   import FD  such a child: adds 1 to each byte
 *   captured   memory is made and mapped while a stream is captured
 *   reset      handles and mappings when the primary context goes
 *   many N     N pieces of 2 MiB, all at once, after as much of managed memory
 *   once BYTES one piece, filled
 */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#include "tests/preload/physical.h"

#include <fcntl.h>
#include <sys/wait.h>

char* self;
static CUcontext context;

static void tell_access(const char* name, CUdeviceptr address) {
  CUresult result;
  int flags = access_at(address, &result);
  printf("%s=%d/%d ", name, (int)result, flags);
}

static size_t free_bytes(void) {
  size_t left = 0, total = 0;
  check(door.cuMemGetInfo_(&left, &total), "info");
  return left;
}

static void tell_properties(const char* name, CUmemGenericAllocationHandle handle) {
  CUmemAllocationProp told;
  memset(&told, 0xee, sizeof(told));
  int result = (int)door.cuMemGetAllocationPropertiesFromHandle_(&told, handle);
  printf("%s=%d ", name, result);
  if (result != 0) return;
  printf("%s_types=%d %s_location=%d/%d %s_rdma=%d %s_usage=%d ", name,
         (int)told.requestedHandleTypes, name, (int)told.location.type, told.location.id, name,
         told.allocFlags.gpuDirectRDMACapable, name, told.allocFlags.usage);
}

static void refusals(void) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp wanted = properties();
  printf("odd_size=%d ", (int)door.cuMemCreate_(&handle, 1000, &wanted, 0));
  printf("no_size=%d ", (int)door.cuMemCreate_(&handle, 0, &wanted, 0));
  printf("flags=%d ", (int)door.cuMemCreate_(&handle, 2 * MIB, &wanted, 1));
  printf("too_much=%d ", (int)door.cuMemCreate_(&handle, (size_t)1 << 40, &wanted, 0));
  wanted.location.id = 77;
  printf("no_device=%d ", (int)door.cuMemCreate_(&handle, 2 * MIB, &wanted, 0));
  wanted.location.id = 0;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  int fabric = (int)door.cuMemCreate_(&handle, 2 * MIB, &wanted, 0);
  printf("fabric=%d ", fabric);
  if (fabric == 0) check(door.cuMemRelease_(handle), "release");
  CUdeviceptr address = reserve(4 * MIB);
  handle = create(4 * MIB, 0);
  int offset = (int)door.cuMemMap_(address, 2 * MIB, 2 * MIB, handle, 0);
  printf("offset=%d ", offset == 0);
  if (offset == 0) check(door.cuMemUnmap_(address, 2 * MIB), "unmap");
  int part = (int)door.cuMemMap_(address, 2 * MIB, 0, handle, 0);
  printf("part=%d ", part == 0);
  if (part == 0) check(door.cuMemUnmap_(address, 2 * MIB), "unmap");
  int fd = -1;
  printf("export=%d ", (int)door.cuMemExportToShareableHandle_(
                           &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != 0);
  printf("release=%d ", (int)door.cuMemRelease_(handle));
  check(door.cuMemAddressFree_(address, 4 * MIB), "free");
  printf("\n");
}

static void facts(void) {
  context = start_cuda();
  const size_t before = free_bytes();
  CUmemAllocationProp wanted = properties();
  CUmemGenericAllocationHandle first = 0, second = create(4 * MIB, 0), retained = 0;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  wanted.allocFlags.gpuDirectRDMACapable = 1;
  check(door.cuMemCreate_(&first, 6 * MIB, &wanted, 0), "create");
  printf("taken=%d ", before - free_bytes() >= 10 * MIB);
  tell_properties("first", first);
  tell_properties("second", second);
  /* The driver's memory between two pieces that can be gpumem's. */
  wanted = properties();
  wanted.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  CUmemGenericAllocationHandle host = 0;
  check(door.cuMemCreate_(&host, 2 * MIB, &wanted, 0), "create");
  CUdeviceptr range = reserve(12 * MIB), again = reserve(8 * MIB);
  check(door.cuMemMap_(range, 6 * MIB, 0, first, 0), "map");
  check(door.cuMemMap_(range + 6 * MIB, 2 * MIB, 0, host, 0), "map");
  check(door.cuMemMap_(range + 8 * MIB, 4 * MIB, 0, second, 0), "map");
  printf("taken_twice=%d ", (int)door.cuMemMap_(range, 6 * MIB, 0, first, 0) != 0);
  tell_access("none", range + MIB);
  check(let(range, 12 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), "access");
  tell_access("one", range + MIB);
  tell_access("two", range + 7 * MIB);
  tell_access("three", range + 11 * MIB);
  set(range, 6 * MIB, 5);
  set(range + 6 * MIB, 2 * MIB, 5);
  set(range + 8 * MIB, 4 * MIB, 5);
  map(again + 2 * MIB, 6 * MIB, first);
  printf("same=%d ", wrong_bytes(again + 2 * MIB, 6 * MIB, 5) == 0);
  set(again + 4 * MIB, MIB, 6);
  printf("seen=%d ", wrong_bytes(range + 2 * MIB, MIB, 6) == 0);
  check(let(again + 2 * MIB, 6 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READ), "access");
  tell_access("read", again + 3 * MIB);
  unsigned long long types = 0;
  printf("types=%d/", (int)door.cuPointerGetAttribute_(
                          &types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, range + MIB));
  printf("%d ", (int)types);
  check(door.cuPointerGetAttribute_(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                    range + 9 * MIB),
        "types");
  printf("no_types=%d ", (int)types);

  printf("release=%d ", (int)door.cuMemRelease_(first));
  printf("retain=%d ", (int)door.cuMemRetainAllocationHandle_(&retained, (void*)(again + 3 * MIB)));
  tell_properties("retained", retained);
  printf("release=%d/%d/%d ", (int)door.cuMemRelease_(retained), (int)door.cuMemRelease_(second),
         (int)door.cuMemRelease_(host));
  printf("kept=%d ", wrong_bytes(range, 2 * MIB, 5) == 0);
  printf("free_mapped=%d ", (int)door.cuMemAddressFree_(range, 12 * MIB) != 0);
  printf("unmap=%d ", (int)door.cuMemUnmap_(range, 12 * MIB));
  CUresult result;
  access_at(range + MIB, &result);
  printf("gone=%d ", result != CUDA_SUCCESS);
  printf("still=%d ", wrong_bytes(again + 2 * MIB, 2 * MIB, 5) == 0);
  printf("unmap=%d ", (int)door.cuMemUnmap_(again + 2 * MIB, 6 * MIB));
  printf("stale=%d ",
         (int)door.cuMemRetainAllocationHandle_(&retained, (void*)(again + 3 * MIB)) != 0);
  printf("free=%d/%d ", (int)door.cuMemAddressFree_(range, 12 * MIB),
         (int)door.cuMemAddressFree_(again, 8 * MIB));
  /* The driver may keep tables. */
  printf("back=%d\n", free_bytes() + 4 * MIB >= before);
  refusals();
}

static void forked(void) {
  context = start_cuda();
  CUmemGenericAllocationHandle handle = create(4 * MIB, 0), other = 0;
  CUdeviceptr address = reserve(4 * MIB);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    CUmemAllocationProp wanted = properties();
    printf("create=%d ", (int)door.cuMemCreate_(&other, 2 * MIB, &wanted, 0));
    printf("map=%d ", (int)door.cuMemMap_(address, 4 * MIB, 0, handle, 0));
    printf("release=%d ", (int)door.cuMemRelease_(handle));
    fflush(stdout);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  map(address, 4 * MIB, handle);
  set(address, 4 * MIB, 1);
  printf("child=%d parent=%d\n", WEXITSTATUS(status), wrong_bytes(address, 4 * MIB, 1) == 0);
}

static void import(int fd) {
  context = start_cuda();
  static unsigned char bytes[SHARED];
  CUdeviceptr address = imported(fd, SHARED);
  check(door.cuMemcpyDtoH_(bytes, address, SHARED), "copy");
  set(address, SHARED, (unsigned char)(bytes[SHARED - 1] + 1));
}

static void share(void) {
  context = start_cuda();
  CUmemGenericAllocationHandle handle = create(SHARED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUdeviceptr address = reserve(SHARED);
  map(address, SHARED, handle);
  set(address, SHARED, 40);
  int fd = exported(handle), other = exported(handle);
  printf("two=%d inherited=%d ", fd != other, (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0);
  for (int preloaded = 0; preloaded < 2; ++preloaded) {
    int status = 0;
    waitpid(spawn("import", fd, preloaded), &status, 0);
    printf("child=%d ", WEXITSTATUS(status));
  }
  printf("added=%d ", wrong_bytes(address, SHARED, 42) == 0);
  CUdeviceptr here = imported(other, SHARED);
  set(here, SHARED, 7);
  printf("here=%d ", wrong_bytes(address, SHARED, 7) == 0);
  printf("release=%d unmap=%d ", (int)door.cuMemRelease_(handle),
         (int)door.cuMemUnmap_(address, SHARED));
  /* Memory that others still have is not given to the next request. */
  CUmemGenericAllocationHandle more = create(SHARED, 0);
  map(address, SHARED, more);
  set(address, SHARED, 1);
  printf("apart=%d\n", wrong_bytes(here, SHARED, 7) == 0);
}

static void captured(void) {
  context = start_cuda();
  CUstream stream;
  CUgraph graph;
  CUdeviceptr address = reserve(4 * MIB);
  check(door.cuStreamCreate_(&stream, 1), "stream");
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  CUmemGenericAllocationHandle handle = create(4 * MIB, 0);
  map(address, 4 * MIB, handle);
  printf("end=%d ", (int)door.cuStreamEndCapture_(stream, &graph));
  set(address, 4 * MIB, 3);
  printf("right=%d\n", wrong_bytes(address, 4 * MIB, 3) == 0);
}

static void reset(void) {
  context = start_cuda();
  CUmemGenericAllocationHandle handle = create(64 * MIB, 0);
  CUdeviceptr address = reserve(64 * MIB);
  map(address, 64 * MIB, handle);
  set(address, 64 * MIB, 9);
  check(door.cuDevicePrimaryCtxReset_(0), "reset");
  check(door.cuDevicePrimaryCtxRelease_(0), "release");
  context = start_cuda();
  printf("kept=%d ", wrong_bytes(address, 64 * MIB, 9) == 0);
  printf("unmap=%d release=%d\n", (int)door.cuMemUnmap_(address, 64 * MIB),
         (int)door.cuMemRelease_(handle));
}

static void many(int count) {
  context = start_cuda();
  CUdeviceptr managed = 0;
  check(door.cuMemAllocManaged_(&managed, 2 * MIB, CU_MEM_ATTACH_GLOBAL), "managed");
  CUdeviceptr address = reserve((size_t)count * 2 * MIB);
  size_t wrong = 0;
  for (int i = 0; i < count; ++i) {
    CUdeviceptr at = address + (size_t)i * 2 * MIB;
    map(at, 2 * MIB, create(2 * MIB, 0));
    set(at, 2 * MIB, (unsigned char)i);
  }
  for (int i = 0; i < count; ++i) {
    wrong += wrong_bytes(address + (size_t)i * 2 * MIB, 2 * MIB, (unsigned char)i);
  }
  printf("wrong=%zu\n", wrong);
}

static void once(size_t bytes) {
  context = start_cuda();
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp wanted = properties();
  CUresult result = door.cuMemCreate_(&handle, bytes, &wanted, 0);
  printf("code=%d\n", (int)result);
  if (result != CUDA_SUCCESS) return;
  CUdeviceptr address = reserve(bytes);
  map(address, bytes, handle);
  set(address, bytes, 1);
}

int main(int argc, char** argv) {
  self = argv[0];
  const char* name = argc > 1 ? argv[1] : "";
  const char* more = argc > 2 ? argv[2] : "";
  if (strcmp(name, "facts") == 0) {
    facts();
  } else if (strcmp(name, "fork") == 0) {
    forked();
  } else if (strcmp(name, "export") == 0) {
    share();
  } else if (strcmp(name, "import") == 0) {
    import(atoi(more));
  } else if (strcmp(name, "captured") == 0) {
    captured();
  } else if (strcmp(name, "reset") == 0) {
    reset();
  } else if (strcmp(name, "many") == 0) {
    many(atoi(more));
  } else if (strcmp(name, "once") == 0) {
    once(strtoull(more, NULL, 10));
  } else {
    return 64;
  }
  return 0;
}
#endif
