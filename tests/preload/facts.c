/* SPDX-License-Identifier: Apache-2.0 */
/* facts NAME: prints what a program sees of one matter. With the preload it has to print the same
 * as without, unless the test says otherwise. */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/door.h"

#define MIB (UINT64_C(1) << 20)

static CUcontext context;

static void start(void) { context = start_cuda(); }

static CUmemAllocationProp on_device(void) {
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof(properties));
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return properties;
}

/* Prints if a function comes from the preload. */
static void origin(const char* name, void* address) {
  Dl_info info;
  const char* file = "none";
  if (address != NULL && dladdr(address, &info) != 0) file = info.dli_fname;
  printf("%s=%s ", name,
         strstr(file, "libgpumem-preload") != NULL ? "preload"
         : strstr(file, "libcuda.so") != NULL      ? "driver"
                                                   : "none");
}

/* Which function each door leads to. */
static void addresses(void) {
  /* Before the driver is loaded, its names are not defined. */
  printf("early=%d ", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL);
  void* first = dlopen("libcuda.so.1", RTLD_NOW);
  void* second = dlopen("libcuda.so", RTLD_NOW);
  origin("so.1", dlsym(first, "cuMemAlloc_v2"));
  printf("so_same=%d ", dlsym(first, "cuMemAlloc_v2") == dlsym(second, "cuMemAlloc_v2"));
  origin("untouched", dlsym(first, "cuInit"));
  void* (*find_in_driver)(const char*) = NULL;
  *(void**)&find_in_driver = dlsym(dlopen("libnvidia-ml.so.1", RTLD_NOW), "fake_nvml_find");
  origin("in_driver", find_in_driver("cuMemAlloc_v2"));
  printf("variants_differ=%d ",
         dlsym(first, "cuMemAllocAsync") != dlsym(first, "cuMemAllocAsync_ptsz"));
  printf("missing=%d ", dlsym(first, "cuNoSuchFunction") != NULL);
  printf("error=%d ", dlerror() != NULL);
  printf("v1=%d ", dlsym(first, "cuGetProcAddress") != NULL);
  origin("dlvsym", dlvsym(first, "cuMemAlloc_v2", "NO_SUCH_VERSION"));
  CUresult (*find)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  CUresult (*find_old)(const char*, void**, int, cuuint64_t);
  *(void**)&find = dlsym(first, "cuGetProcAddress_v2");
  *(void**)&find_old = dlsym(first, "cuGetProcAddress");
  CUdriverProcAddressQueryResult status;
  void* found = NULL;
  find("cuMemAlloc", &found, 13000, 0, &status);
  printf("proc_same=%d ", found == dlsym(first, "cuMemAlloc_v2"));
  find_old("cuMemAlloc", &found, 13000, 0);
  printf("old_same=%d ", found == dlsym(first, "cuMemAlloc_v2"));
  find("cuGetProcAddress", &found, 12000, 0, &status);
  printf("itself=%d ", found == *(void**)&find);
  find("cuMemAllocAsync", &found, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
  printf("per_thread=%d ", found == dlsym(first, "cuMemAllocAsync_ptsz"));
  found = &found;
  CUresult result = find("cuNoSuchFunction", &found, 13000, 0, &status);
  printf("unknown=%d/%d/%d ", (int)result, (int)status, found != NULL);
  result = find("cuMemAllocAsync", &found, 9000, 0, &status);
  printf("too_old=%d/%d/%d\n", (int)result, (int)status, found != NULL);
}

/* What the driver answers itself. */
static void refusals(void) {
  open_door();
  CUdeviceptr address = 0;
  printf("before_init=%d ", (int)door.cuMemAlloc_(&address, 512));
  if (door.cuInit_(0) != CUDA_SUCCESS) exit(4);
  printf("no_context=%d ", (int)door.cuMemAlloc_(&address, 512));
  start();
  printf("zero=%d ", (int)door.cuMemAlloc_(&address, 0));
  printf("too_much=%d ", (int)door.cuMemAlloc_(&address, SIZE_MAX));
  printf("bad_free=%d ", (int)door.cuMemFree_(12345));
  if (door.cuMemAlloc_(&address, 4096) != CUDA_SUCCESS) exit(4);
  CUdeviceptr inside = address + 512;
  printf("interior_free=%d ", (int)door.cuMemFree_(inside));
  printf("free=%d ", (int)door.cuMemFree_(address));
  printf("double_free=%d ", (int)door.cuMemFree_(address));
  CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle;
  printf("create_odd=%d ", (int)door.cuMemCreate_(&handle, 1000, &properties, 0));
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  printf("create_fabric=%d ", (int)door.cuMemCreate_(&handle, 2 * MIB, &properties, 0));
  properties.requestedHandleTypes = 0;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
  printf("create_host=%d ", (int)door.cuMemCreate_(&handle, 2 * MIB, &properties, 0));
  printf("release_twice=%d", (int)door.cuMemRelease_(handle));
  printf("/%d\n", (int)door.cuMemRelease_(handle));
}

/* A capture forbids cuMemAlloc(), which spoils it, and nothing stays charged. */
static void capture(void) {
  start();
  CUstream stream;
  CUgraph graph;
  CUdeviceptr address = 0;
  size_t before, after, total;
  if (door.cuStreamCreate_(&stream, 0) != CUDA_SUCCESS) exit(4);
  door.cuMemGetInfo_(&before, &total);
  door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  printf("alloc=%d ", (int)door.cuMemAlloc_(&address, 64 * MIB));
  printf("end=%d ", (int)door.cuStreamEndCapture_(stream, &graph));
  door.cuMemGetInfo_(&after, &total);
  printf("kept=%lld ", (long long)before - (long long)after);
  /* A thread that is not held to it may. */
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  door.cuThreadExchangeStreamCaptureMode_(&mode);
  printf("relaxed=%d ", (int)door.cuMemAlloc_(&address, 64 * MIB));
  printf("relaxed_free=%d ", (int)door.cuMemFree_(address));
  /* Memory of the graph: two allocations, of which one at a time is live. */
  CUdeviceptr first, second;
  printf("first=%d ", (int)door.cuMemAllocAsync_(&first, 200 * MIB, stream));
  printf("free=%d ", (int)door.cuMemFreeAsync_(first, stream));
  printf("second=%d ", (int)door.cuMemAllocAsync_(&second, 200 * MIB, stream));
  printf("free=%d ", (int)door.cuMemFreeAsync_(second, stream));
  printf("end=%d ", (int)door.cuStreamEndCapture_(stream, &graph));
  CUgraphExec exec;
  printf("instantiate=%d ", (int)door.cuGraphInstantiate_(&exec, graph, 0));
  printf("launch=%d ", (int)door.cuGraphLaunch_(exec, stream));
  printf("launch=%d\n", (int)door.cuGraphLaunch_(exec, stream));
}

/* What goes with a context comes back without a free. */
static void contexts(void) {
  start();
  size_t before, during, after, total;
  CUdeviceptr address;
  CUcontext own;
  door.cuMemGetInfo_(&before, &total);
  for (int i = 0; i < 3; ++i) {
    if (door.cuCtxCreate_(&own, NULL, 0, 0) != CUDA_SUCCESS) exit(4);
    if (door.cuMemAlloc_(&address, 64 * MIB) != CUDA_SUCCESS) exit(4);
    if (door.cuMemAlloc_(&address, 64 * MIB) != CUDA_SUCCESS) exit(4);
    door.cuMemGetInfo_(&during, &total);
    door.cuCtxDestroy_(own);
  }
  door.cuCtxSetCurrent_(context);
  door.cuMemGetInfo_(&after, &total);
  printf("taken=%lld kept=%lld ", (long long)before - (long long)during,
         (long long)before - (long long)after);
  CUmemoryPool pool;
  CUmemPoolProps properties;
  memset(&properties, 0, sizeof(properties));
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  if (door.cuMemAlloc_(&address, 64 * MIB) != CUDA_SUCCESS ||
      door.cuMemAllocAsync_(&address, 64 * MIB, NULL) != CUDA_SUCCESS ||
      door.cuMemPoolCreate_(&pool, &properties) != CUDA_SUCCESS ||
      door.cuMemAllocFromPoolAsync_(&address, 64 * MIB, pool, NULL) != CUDA_SUCCESS) {
    exit(4);
  }
  door.cuDevicePrimaryCtxReset_(0);
  door.cuDevicePrimaryCtxRetain_(&context, 0);
  door.cuCtxSetCurrent_(context);
  door.cuMemGetInfo_(&after, &total);
  printf("kept=%lld ", (long long)before - (long long)after);
  if (door.cuMemAllocAsync_(&address, 64 * MIB, NULL) != CUDA_SUCCESS) exit(4);
  door.cuMemGetInfo_(&after, &total);
  printf("again=%lld ", (long long)before - (long long)after);
  /* What was allocated in a green context goes with the primary one. */
  CUgreenCtx green;
  if (door.cuGreenCtxCreate_(&green, NULL, 0, 0) != CUDA_SUCCESS ||
      door.cuCtxFromGreenCtx_(&own, green) != CUDA_SUCCESS ||
      door.cuCtxSetCurrent_(own) != CUDA_SUCCESS ||
      door.cuMemAlloc_(&address, 64 * MIB) != CUDA_SUCCESS ||
      door.cuGreenCtxDestroy_(green) != CUDA_SUCCESS) {
    exit(4);
  }
  door.cuDevicePrimaryCtxReset_(0);
  door.cuDevicePrimaryCtxRetain_(&context, 0);
  door.cuCtxSetCurrent_(context);
  door.cuMemGetInfo_(&after, &total);
  printf("kept=%lld ", (long long)before - (long long)after);
  /* A context with two references. */
  if (door.cuCtxCreate_(&own, NULL, 0, 0) != CUDA_SUCCESS ||
      door.cuMemAlloc_(&address, 64 * MIB) != CUDA_SUCCESS ||
      door.cuCtxAttach_(&own, 0) != CUDA_SUCCESS || door.cuCtxDetach_(own) != CUDA_SUCCESS) {
    exit(4);
  }
  door.cuMemGetInfo_(&during, &total);
  if (door.cuCtxDetach_(own) != CUDA_SUCCESS) exit(4);
  door.cuCtxSetCurrent_(context);
  door.cuMemGetInfo_(&after, &total);
  printf("taken=%lld kept=%lld\n", (long long)before - (long long)during,
         (long long)before - (long long)after);
}

/* Memory that is mapped to a sparse array is charged until the array or the mapping goes. */
static CUmemGenericAllocationHandle tile_memory(void) {
  CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle;
  if (door.cuMemCreate_(&handle, 32 * MIB, &properties, 0) != CUDA_SUCCESS) exit(4);
  return handle;
}
static void map_tile(CUarray array, unsigned int at, CUmemGenericAllocationHandle handle) {
  CUarrayMapInfo info;
  memset(&info, 0, sizeof(info));
  info.resourceType = CU_RESOURCE_TYPE_ARRAY;
  info.resource.array = array;
  info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
  info.subresource.sparseLevel.offsetX = at;
  info.subresource.sparseLevel.extentWidth = 1024;
  info.subresource.sparseLevel.extentHeight = 1024;
  info.subresource.sparseLevel.extentDepth = 1;
  info.memOperationType = handle == 0 ? CU_MEM_OPERATION_TYPE_UNMAP : CU_MEM_OPERATION_TYPE_MAP;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.memHandle.memHandle = handle;
  info.deviceBitMask = 1;
  if (door.cuMemMapArrayAsync_(&info, 1, NULL) != CUDA_SUCCESS) exit(4);
}
/* Maps memory that goes with its mappings to some tiles. */
static void put_tiles(CUarray array, unsigned int count) {
  CUmemGenericAllocationHandle handle = tile_memory();
  for (unsigned int i = 0; i < count; ++i) map_tile(array, i * 1024, handle);
  if (door.cuMemRelease_(handle) != CUDA_SUCCESS) exit(4);
}
static void tell_taken(void) {
  size_t bytes, total;
  door.cuMemGetInfo_(&bytes, &total);
  printf("taken=%lld ", (long long)(total - bytes) / (long long)MIB);
}
static void sparse(void) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {
      4096, 1024, 1, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_SPARSE};
  CUarray array;
  CUcontext own;
  start();
  if (door.cuArray3DCreate_(&array, &descriptor) != CUDA_SUCCESS) exit(4);
  tell_taken();
  for (int i = 0; i < 20; ++i) put_tiles(array, 2); /* each time in place of the ones before */
  tell_taken();
  map_tile(array, 0, 0);
  tell_taken(); /* it is at the other place, too */
  map_tile(array, 1024, 0);
  tell_taken();
  put_tiles(array, 1);
  tell_taken();
  if (door.cuArrayDestroy_(array) != CUDA_SUCCESS) exit(4);
  tell_taken();
  if (door.cuCtxCreate_(&own, NULL, 0, 0) != CUDA_SUCCESS ||
      door.cuArray3DCreate_(&array, &descriptor) != CUDA_SUCCESS) {
    exit(4);
  }
  put_tiles(array, 1);
  tell_taken();
  if (door.cuCtxDestroy_(own) != CUDA_SUCCESS) exit(4);
  door.cuCtxSetCurrent_(context);
  tell_taken();
}

/* Memory of another process is not charged twice. */
static void imported(void) {
  start();
  CUmemAllocationProp properties = on_device();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle, copy;
  int fd = -1;
  if (door.cuMemCreate_(&handle, 200 * MIB, &properties, 0) != CUDA_SUCCESS) exit(4);
  printf("export=%d ", (int)door.cuMemExportToShareableHandle_(
                           &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  printf("import=%d ", (int)door.cuMemImportFromShareableHandle_(
                           &copy, (void*)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  printf("release=%d/%d\n", (int)door.cuMemRelease_(copy), (int)door.cuMemRelease_(handle));
}

/* A child of a process that uses CUDA is told so by its driver, and charges nothing. One that does
 * not use it yet may start. */
static void forked(void) {
  CUdeviceptr address;
  fflush(stdout);
  pid_t early = fork();
  if (early == 0) {
    start();
    printf("fresh_child=%d ", (int)door.cuMemAlloc_(&address, 64 * MIB));
    exit(0);
  }
  waitpid(early, NULL, 0);
  start();
  if (door.cuMemAlloc_(&address, 64 * MIB) != CUDA_SUCCESS) exit(4);
  fflush(stdout);
  pid_t late = fork();
  if (late == 0) {
    size_t bytes, total;
    CUdeviceptr other;
    printf("child_alloc=%d ", (int)door.cuMemAlloc_(&other, 64 * MIB));
    printf("child_free=%d ", (int)door.cuMemFree_(address));
    printf("child_info=%d ", (int)door.cuMemGetInfo_(&bytes, &total));
    printf("child_total=%d ", (int)door.cuDeviceTotalMem_(&bytes, 0));
    exit(0);
  }
  waitpid(late, NULL, 0);
  printf("parent_alloc=%d ", (int)door.cuMemAlloc_(&address, 64 * MIB));
  printf("parent_free=%d\n", (int)door.cuMemFree_(address));
}

/* NVML's figures, without a call of CUDA. */
static void nvml(void) {
  struct {
    unsigned long long total, free, used;
  } memory;
  struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
  } memory2 = {2u << 24 | 40, 0, 0, 0, 0};
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  int (*init)(void);
  int (*find)(unsigned int, void**);
  int (*get)(void*, void*);
  int (*get2)(void*, void*);
  void* device;
  if (library == NULL) exit(3);
  *(void**)&init = dlsym(library, "nvmlInit_v2");
  *(void**)&find = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
  *(void**)&get = dlsym(library, "nvmlDeviceGetMemoryInfo");
  *(void**)&get2 = dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
  if (init() != 0 || find(0, &device) != 0) exit(4);
  int result = get(device, &memory);
  printf("result=%d total=%llu free=%llu used=%llu ", result, memory.total, memory.free,
         memory.used);
  result = get2(device, &memory2);
  printf("result=%d total=%llu free=%llu used=%llu\n", result, memory2.total, memory2.free,
         memory2.used);
}

/* Two devices: memory allocated by way of a stream belongs to the device of the stream. */
static void devices(void) {
  CUcontext first, second;
  CUstream stream;
  CUdeviceptr address;
  size_t bytes, total;
  open_door();
  if (door.cuInit_(0) != CUDA_SUCCESS || door.cuCtxCreate_(&first, NULL, 0, 0) != CUDA_SUCCESS ||
      door.cuCtxCreate_(&second, NULL, 0, 1) != CUDA_SUCCESS ||
      door.cuStreamCreate_(&stream, 0) != CUDA_SUCCESS) {
    exit(4);
  }
  door.cuCtxSetCurrent_(first);
  printf("alloc=%d ", (int)door.cuMemAlloc_(&address, 32 * MIB));
  printf("async=%d ", (int)door.cuMemAllocAsync_(&address, 96 * MIB, stream));
  door.cuMemGetInfo_(&bytes, &total);
  printf("free=%zu ", bytes);
  door.cuCtxSetCurrent_(second);
  door.cuMemGetInfo_(&bytes, &total);
  printf("free=%zu\n", bytes);
}

/* The runtime-like library that a program loads last finds the next definition behind itself. */
static void neighbour(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  void* (*next)(const char*) = NULL;
  *(void**)&next = dlsym(RTLD_DEFAULT, "neighbour_next");
  if (library == NULL || next == NULL) exit(3);
  origin("next", next("cuMemAlloc_v2"));
  origin("untouched", next("cuInit"));
  printf("libc=%d ", next("getpid") == (void*)getpid || next("getpid") != NULL);
  printf("itself=%d\n", next("neighbour_next") != NULL);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*print)(void);
  } facts[] = {{"addresses", addresses}, {"refusals", refusals},   {"capture", capture},
               {"contexts", contexts},   {"sparse", sparse},       {"imported", imported},
               {"forked", forked},       {"neighbour", neighbour}, {"nvml", nvml},
               {"devices", devices}};
  for (size_t i = 0; argc == 2 && i < sizeof(facts) / sizeof(facts[0]); ++i) {
    if (strcmp(facts[i].name, argv[1]) != 0) continue;
    facts[i].print();
    return 0;
  }
  return 2;
}
#endif
