/* SPDX-License-Identifier: Apache-2.0 */
/* async NAME: uses stream-ordered memory in ways that its owner must not see to be gpumem's. Prints
 * key=value words, which are the same without the preload.
 *   figures     the attributes of the default pool
 *   pointers    what the driver tells of addresses
 *   codes       frees of all sorts, captures, other contexts and pools
 *   mixed       each sort of memory in turn, each most of the limit
 *   peers       memory of the default pool after another device may use it
 */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#include "tests/preload/async.h"

#include <string.h>

static void tell(const char* name) {
  cuuint64_t used = 1, used_high = 1, reserved = 1, reserved_high = 1;
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), "used");
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used_high), "high");
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved), "held");
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &reserved_high),
        "most");
  printf("%s=%llu/%llu/%llu/%llu ", name, (unsigned long long)used, (unsigned long long)used_high,
         (unsigned long long)reserved, (unsigned long long)reserved_high);
}

static void figures(void) {
  start();
  CUdeviceptr other = 0;
  cuuint64_t threshold = 1, zero = 0, one = 1;
  int flag = 0;
  tell("empty");
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "get");
  printf("threshold=%llu ", (unsigned long long)threshold);
  keep_all();
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "get");
  printf("threshold=%llu ", (unsigned long long)threshold);
  check(door.cuMemAlloc_(&other, 16 * MIB), "cuMemAlloc");
  tell("other");
  CUdeviceptr first = get(64 * MIB, NULL);
  tell("first");
  CUdeviceptr second = get(32 * MIB, NULL), small = 0;
  tell("second");
  give(second, NULL);
  check(door.cuStreamSynchronize_(NULL), "synchronize");
  tell("freed");
  printf("bad_reset=%d/%d ",
         (int)door.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one),
         (int)door.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &zero));
  check(door.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero), "reset");
  tell("reset");
  check(door.cuMemPoolTrimTo_(pool, 0), "trim");
  check(door.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero), "reset");
  tell("trimmed");
  small = get(1000, NULL);
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &one), "used");
  printf("small=%llu ", (unsigned long long)one);
  give(small, NULL);
  give(first, NULL);
  first = get(128 * MIB, NULL);
  give(first, NULL);
  check(door.cuCtxSynchronize_(), "synchronize");
  check(door.cuMemPoolTrimTo_(pool, 64 * MIB), "trim");
  tell("least");
  check(door.cuMemPoolTrimTo_(pool, 0), "trim");
  tell("none");
  check(door.cuMemFree_(other), "free");
  const CUmemPool_attribute reuse[] = {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                                       CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                                       CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES};
  for (size_t i = 0; i < 3; ++i) {
    check(door.cuMemPoolGetAttribute_(pool, reuse[i], &flag), "flag");
    printf("reuse=%d ", flag);
    flag = 0;
    check(door.cuMemPoolSetAttribute_(pool, reuse[i], &flag), "flag");
    flag = 1;
    check(door.cuMemPoolGetAttribute_(pool, reuse[i], &flag), "flag");
    printf("reuse=%d ", flag);
  }
  give(get(MIB, NULL), NULL);
  printf("\n");
}

static void pointers(void) {
  start();
  CUdeviceptr block = get(3 * MIB + 17, NULL), begin = 0, begin_again = 0;
  size_t size = 0, size_again = 0;
  int ipc = -1, device = -1;
  CUcontext of = NULL;
  CUmemoryPool its = NULL;
  CUmemorytype type = 0;
  uint64_t handles = 7;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                      CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                      CU_POINTER_ATTRIBUTE_CONTEXT,
                                      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
  void* data[] = {&begin_again, &size_again, &of, &ipc, &device, &its, &handles};
  CUdeviceptr inside = block + 2 * MIB;
  printf("range=%d ", (int)door.cuMemGetAddressRange_(&begin, &size, inside));
  printf("base=%lld size=%zu ", (long long)(block - begin), size);
  printf("attributes=%d ", (int)door.cuPointerGetAttributes_(7, attributes, data, inside));
  printf("same=%d/%d ", begin == begin_again, size == size_again);
  printf("context=%d ipc=%d device=%d pool=%d handles=%d ", of == NULL, ipc, device, its == pool,
         (int)handles);
  its = NULL;
  check(door.cuPointerGetAttribute_(&its, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block), "pool");
  check(door.cuPointerGetAttribute_(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block), "type");
  printf("one=%d type=%d ", its == pool, (int)type);
  CUipcMemHandle handle;
  CUmemPoolPtrExportData exported;
  printf("handle=%d ", (int)door.cuIpcGetMemHandle_(&handle, block));
  printf("export=%d ", (int)door.cuMemPoolExportPointer_(&exported, block));
  CUdeviceptr other = 0;
  check(door.cuMemAlloc_(&other, 1000), "cuMemAlloc");
  its = pool;
  check(door.cuPointerGetAttribute_(&its, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, other), "none");
  printf("none=%d\n", its == NULL);
}

static void codes(void) {
  CUcontext context = start(), own;
  CUstream stream = stream_of(CU_STREAM_NON_BLOCKING);
  CUdeviceptr a = 0, b = 0;
  CUgraph graph;
  printf("zero=%d ", (int)door.cuMemAllocAsync_(&a, 0, stream));
  printf("too_much=%d ", (int)door.cuMemAllocAsync_(&a, SIZE_MAX / 2, stream));
  a = get(MIB, stream);
  printf("inside=%d ", (int)door.cuMemFreeAsync_(a + 512, stream));
  printf("free=%d ", (int)door.cuMemFreeAsync_(a, stream));
  printf("twice=%d/%d ", (int)door.cuMemFreeAsync_(a, stream), (int)door.cuMemFree_(a));
  printf("crossed=%d ", (int)door.cuMemFree_(get(MIB, stream)));
  check(door.cuMemAlloc_(&a, MIB), "cuMemAlloc");
  printf("back=%d ", (int)door.cuMemFreeAsync_(a, stream));
  printf("pool=%d ", (int)door.cuMemAllocFromPoolAsync_(&a, MIB, pool, stream));
  printf("legacy=%d ", (int)door.cuMemFreeAsync_(a, NULL));
  check(alloc_per_thread(&a, MIB, NULL), "per thread");
  printf("per_thread=%d ", (int)free_per_thread(a, NULL));
  /* A capture has separate memory, and does not free that from outside. */
  a = get(MIB, stream);
  CUstream free_stream = stream_of(CU_STREAM_NON_BLOCKING);
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  printf("node=%d ", (int)door.cuMemAllocAsync_(&b, MIB, stream));
  printf("node_free=%d ", (int)door.cuMemFreeAsync_(b, stream));
  printf("elsewhere=%d ", (int)door.cuMemFreeAsync_(a, free_stream));
  printf("end=%d ", (int)door.cuStreamEndCapture_(stream, &graph));
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  printf("alloc_elsewhere=%d ", (int)door.cuMemAllocAsync_(&b, MIB, free_stream));
  printf("legacy=%d ", (int)door.cuMemAllocAsync_(&b, MIB, NULL));
  printf("end=%d ", (int)door.cuStreamEndCapture_(stream, &graph));
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
  printf("relaxed=%d ", (int)door.cuMemAllocAsync_(&b, MIB, free_stream));
  printf("relaxed_free=%d ", (int)door.cuMemFreeAsync_(b, free_stream));
  printf("free_of_earlier=%d ", (int)door.cuMemFreeAsync_(a, free_stream));
  printf("end=%d ", (int)door.cuStreamEndCapture_(stream, &graph));
  a = get(MIB, free_stream);
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  printf("outside=%d ", (int)door.cuMemFreeAsync_(a, stream));
  door.cuStreamEndCapture_(stream, &graph);
  printf("later=%d ", (int)door.cuMemFreeAsync_(a, stream));
  /* A capture goes with its stream, on which memory was freed. */
  give(get(4 * MIB, stream), stream);
  check(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
  printf("destroy=%d ", (int)door.cuStreamDestroy_(stream));
  a = get(64 * MIB, free_stream);
  b = get(4 * MIB, NULL);
  printf("after=%d/%d ", (int)door.cuMemFreeAsync_(a, NULL), (int)door.cuMemFree_(b));
  /* A context of the program's own: the memory is of the device all the same. */
  a = get(MIB, free_stream);
  check(door.cuCtxCreate_(&own, NULL, 0, 0), "context");
  CUstream others = stream_of(0);
  printf("other_free=%d ", (int)door.cuMemFreeAsync_(a, others));
  a = get(MIB, others);
  b = get(MIB, NULL);
  printf("other=%d/%d ", (int)door.cuMemFreeAsync_(a, others), (int)door.cuMemFreeAsync_(b, NULL));
  a = get(MIB, free_stream);
  check(door.cuStreamDestroy_(others), "destroy");
  check(door.cuCtxDestroy_(own), "context");
  check(door.cuCtxSetCurrent_(context), "context");
  printf("kept=%d ", (int)door.cuMemFreeAsync_(a, free_stream));
  /* Another pool is current. */
  CUmemPoolProps properties;
  CUmemoryPool mine, its = NULL;
  memset(&properties, 0, sizeof(properties));
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  check(door.cuMemPoolCreate_(&mine, &properties), "pool");
  check(door.cuDeviceSetMemPool_(0, mine), "set");
  a = get(MIB, NULL);
  check(door.cuPointerGetAttribute_(&its, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a), "attribute");
  printf("mine=%d ", its == mine);
  check(door.cuDeviceSetMemPool_(0, pool), "set");
  give(a, NULL);
  check(door.cuMemPoolDestroy_(mine), "destroy");
  a = get(MIB, NULL);
  check(door.cuPointerGetAttribute_(&its, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a), "attribute");
  printf("default=%d\n", its == pool);
  give(a, NULL);
}

static void mixed(void) {
  start();
  CUdeviceptr block = 0;
  CUstream stream = stream_of(CU_STREAM_NON_BLOCKING);
  for (int round = 0; round < 2; ++round) {
    printf("async=%d ", (int)door.cuMemAllocAsync_(&block, 200 * MIB, stream));
    give(block, stream);
    check(door.cuStreamSynchronize_(stream), "synchronize");
    printf("alloc=%d ", (int)door.cuMemAlloc_(&block, 200 * MIB));
    check(door.cuMemFree_(block), "free");
    printf("managed=%d ", (int)door.cuMemAllocManaged_(&block, 200 * MIB, CU_MEM_ATTACH_GLOBAL));
    check(door.cuMemFree_(block), "free");
  }
  printf("\n");
}

static void peers(void) {
  start();
  CUdeviceptr block = get(64 * MIB, NULL), further = 0;
  CUmemAccessDesc access;
  memset(&access, 0, sizeof(access));
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(door.cuMemPoolSetAccess_(pool, &access, 1), "own");
  further = get(32 * MIB, NULL);
  tell("own");
  give(further, NULL);
  access.location.id = 1;
  check(door.cuMemPoolSetAccess_(pool, &access, 1), "other");
  further = get(96 * MIB, NULL);
  cuuint64_t used = 0;
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), "used");
  printf("used=%llu ", (unsigned long long)used);
  give(further, NULL);
  give(block, NULL);
  check(door.cuMemPoolGetAttribute_(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), "used");
  printf("used=%llu\n", (unsigned long long)used);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*print)(void);
  } matters[] = {{"figures", figures},
                 {"pointers", pointers},
                 {"codes", codes},
                 {"mixed", mixed},
                 {"peers", peers}};
  for (size_t i = 0; argc == 2 && i < sizeof(matters) / sizeof(matters[0]); ++i) {
    if (strcmp(matters[i].name, argv[1]) != 0) continue;
    matters[i].print();
    return 0;
  }
  return 64;
}
#endif
