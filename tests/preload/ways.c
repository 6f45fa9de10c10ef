/* SPDX-License-Identifier: Apache-2.0 */
/* ways WAY PIECE: allocates pieces of PIECE bytes in one way until that is refused, prints how many
 * it got and the code of the refusal, frees them, and does it once more. */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; } /* nothing to run without the toolkit */
#else
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/preload/door.h"

#define MOST 4096

/* What a piece consists of. */
struct Piece {
  CUdeviceptr address;
  CUmemGenericAllocationHandle handle;
  CUarray array;
  CUmipmappedArray mipmap;
};

static struct Piece pieces[MOST];
static size_t size;
static CUstream stream;
static CUmemoryPool pool;
static CUgraph graph;

static void must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(4);
}

static CUresult get_alloc(struct Piece* p) { return door.cuMemAlloc_(&p->address, size); }
static CUresult get_managed(struct Piece* p) {
  return door.cuMemAllocManaged_(&p->address, size, CU_MEM_ATTACH_GLOBAL);
}
static CUresult get_pitch(struct Piece* p) {
  size_t pitch;
  return door.cuMemAllocPitch_(&p->address, &pitch, 4096, size / 4096, 4);
}
static CUresult free_alloc(struct Piece* p) { return door.cuMemFree_(p->address); }

static CUresult get_vmm(struct Piece* p) {
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof(properties));
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUresult result = door.cuMemCreate_(&p->handle, size, &properties, 0);
  if (result != CUDA_SUCCESS) return result;
  must(door.cuMemAddressReserve_(&p->address, size, 0, 0, 0), "reserve");
  must(door.cuMemMap_(p->address, size, 0, p->handle, 0), "map");
  CUmemAccessDesc access;
  memset(&access, 0, sizeof(access));
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  must(door.cuMemSetAccess_(p->address, size, &access, 1), "access");
  must(door.cuMemsetD8_(p->address, 1, size < 4096 ? size : 4096), "set");
  return result;
}
static CUresult free_vmm(struct Piece* p) {
  must(door.cuMemUnmap_(p->address, size), "unmap");
  must(door.cuMemAddressFree_(p->address, size), "address free");
  return door.cuMemRelease_(p->handle);
}

/* The handle goes while the memory is mapped. */
static CUresult get_early(struct Piece* p) {
  CUresult result = get_vmm(p);
  if (result == CUDA_SUCCESS) must(door.cuMemRelease_(p->handle), "release");
  return result;
}
static CUresult free_early(struct Piece* p) {
  must(door.cuMemUnmap_(p->address, size), "unmap");
  return door.cuMemAddressFree_(p->address, size);
}

/* The only handle is one that was got back from the mapping. */
static CUresult get_retained(struct Piece* p) {
  CUresult result = get_early(p);
  if (result != CUDA_SUCCESS) return result;
  must(door.cuMemRetainAllocationHandle_(&p->handle, (void*)(p->address + 4096)), "retain");
  must(door.cuMemUnmap_(p->address, size), "unmap");
  return door.cuMemAddressFree_(p->address, size);
}
static CUresult free_retained(struct Piece* p) { return door.cuMemRelease_(p->handle); }

static CUresult get_async(struct Piece* p) {
  return door.cuMemAllocAsync_(&p->address, size, stream);
}
static CUresult free_async(struct Piece* p) { return door.cuMemFreeAsync_(p->address, stream); }

static CUresult get_from_pool(struct Piece* p, CUmemAllocationType type,
                              CUmemLocationType location) {
  if (pool == NULL) {
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof(properties));
    properties.allocType = type;
    properties.location.type = location;
    must(door.cuMemPoolCreate_(&pool, &properties), "pool");
    cuuint64_t threshold = UINT64_MAX / 2;
    must(door.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
         "threshold");
  }
  return door.cuMemAllocFromPoolAsync_(&p->address, size, pool, stream);
}
static CUresult get_pool(struct Piece* p) {
  return get_from_pool(p, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE);
}
#if CUDA_VERSION >= 13000
static CUresult get_managed_pool(struct Piece* p) {
  return get_from_pool(p, CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_LOCATION_TYPE_NONE);
}
static CUresult get_host_pool(struct Piece* p) {
  CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  must(door.cuMemGetDefaultMemPool_(&pool, &host, CU_MEM_ALLOCATION_TYPE_PINNED), "host pool");
  return door.cuMemAllocFromPoolAsync_(&p->address, size, pool, stream);
}
#endif
/* The pool keeps the memory until it is destroyed. */
static CUresult free_pool(struct Piece* p) {
  CUresult result = door.cuMemFreeAsync_(p->address, stream);
  if (p == pieces) {
    must(door.cuMemPoolDestroy_(pool), "pool destroy");
    pool = NULL;
  }
  return result;
}

static CUresult get_node(struct Piece* p) {
  if (graph == NULL) must(door.cuGraphCreate_(&graph, 0), "graph");
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  memset(&params, 0, sizeof(params));
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params.bytesize = size;
  CUgraphNode node;
  CUresult result = door.cuGraphAddMemAllocNode_(&node, graph, NULL, 0, &params);
  p->address = params.dptr;
  return result;
}
static CUresult get_any_node(struct Piece* p) {
  if (graph == NULL) must(door.cuGraphCreate_(&graph, 0), "graph");
  CUgraphNodeParams params;
  memset(&params, 0, sizeof(params));
  params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params.alloc.bytesize = size;
  CUgraphNode node;
  CUresult result = door.cuGraphAddNode_(&node, graph, NULL, NULL, 0, &params);
  p->address = params.alloc.dptr;
  return result;
}
/* The last one runs the graph, and gives everything back. */
static CUresult free_node(struct Piece* p) {
  if (p != pieces) return CUDA_SUCCESS;
  CUgraphExec exec;
  must(door.cuGraphInstantiate_(&exec, graph, 0), "instantiate");
  must(door.cuGraphDestroy_(graph), "graph destroy");
  graph = NULL;
  must(door.cuGraphLaunch_(exec, stream), "launch");
  must(door.cuStreamSynchronize_(stream), "synchronize"); /* else the memory is still in use */
  must(door.cuGraphExecDestroy_(exec), "exec destroy");
  return door.cuDeviceGraphMemTrim_(0);
}

static int capturing;
static CUresult get_capture(struct Piece* p) {
  if (!capturing) {
    must(door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
    capturing = 1;
  }
  return door.cuMemAllocAsync_(&p->address, size, stream);
}
static CUresult free_capture(struct Piece* p) {
  if (p == pieces) {
    capturing = 0;
    must(door.cuStreamEndCapture_(stream, &graph), "end");
  }
  return free_node(p);
}

static CUresult get_array(struct Piece* p) {
  CUDA_ARRAY_DESCRIPTOR array = {4096, size / 4096, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  return door.cuArrayCreate_(&p->array, &array);
}
static CUresult get_array3d(struct Piece* p) {
  CUDA_ARRAY3D_DESCRIPTOR array = {1024, size / 131072, 64, CU_AD_FORMAT_HALF, 1, 0};
  return door.cuArray3DCreate_(&p->array, &array);
}
static CUresult free_array(struct Piece* p) { return door.cuArrayDestroy_(p->array); }
static CUresult get_mipmap(struct Piece* p) {
  CUDA_ARRAY3D_DESCRIPTOR array = {4096, size / 4096, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
  return door.cuMipmappedArrayCreate_(&p->mipmap, &array, 1);
}
static CUresult free_mipmap(struct Piece* p) { return door.cuMipmappedArrayDestroy_(p->mipmap); }

struct Way {
  const char* name;
  CUresult (*get)(struct Piece*);
  CUresult (*give)(struct Piece*);
};
static const struct Way ways[] = {
    {"alloc", get_alloc, free_alloc},
    {"managed", get_managed, free_alloc},
    {"pitch", get_pitch, free_alloc},
    {"vmm", get_vmm, free_vmm},
    {"early", get_early, free_early},
    {"retained", get_retained, free_retained},
    {"async", get_async, free_async},
    {"pool", get_pool, free_pool},
    {"node", get_node, free_node},
    {"any_node", get_any_node, free_node},
    {"capture", get_capture, free_capture},
    {"array", get_array, free_array},
    {"array3d", get_array3d, free_array},
    {"mipmap", get_mipmap, free_mipmap},
#if CUDA_VERSION >= 13000
    {"managed_pool", get_managed_pool, free_pool},
    {"host_pool", get_host_pool, free_async},
#endif
    {"crossed", get_alloc, free_async},
    {"crossed_back", get_async, free_alloc},
};

static void round_of(const struct Way* way) {
  int count = 0;
  CUresult result = CUDA_SUCCESS;
  while (count < MOST && (result = way->get(&pieces[count])) == CUDA_SUCCESS) ++count;
  size_t told_free = 0;
  size_t told_total = 0;
  must(door.cuMemGetInfo_(&told_free, &told_total), "info");
  printf("got=%d code=%d free=%zu total=%zu ", count, (int)result, told_free, told_total);
  /* Backwards: where a group is given back at once, that is with the first. */
  for (int i = count; i-- > 0;) must(way->give(&pieces[i]), "give");
  must(door.cuStreamSynchronize_(stream), "synchronize");
}

int main(int argc, char** argv) {
  CUcontext context;
  size_t total;
  if (argc != 3) return 2;
  size = strtoull(argv[2], NULL, 10);
  open_door();
  must(door.cuInit_(0), "init");
  must(door.cuDeviceTotalMem_(&total, 0), "total");
  must(door.cuDevicePrimaryCtxRetain_(&context, 0), "context");
  must(door.cuCtxSetCurrent_(context), "current");
  must(door.cuStreamCreate_(&stream, 0), "stream");
  for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); ++i) {
    if (strcmp(ways[i].name, argv[1]) != 0) continue;
    printf("door=%s device_total=%zu ", door_name(), total);
    round_of(&ways[i]);
    round_of(&ways[i]);
    size_t told_free;
    must(door.cuMemGetInfo_(&told_free, &total), "info");
    printf("end_free=%zu\n", told_free);
    must(door.cuStreamDestroy_(stream), "stream destroy");
    must(door.cuDevicePrimaryCtxRelease_(0), "context release");
    return 0;
  }
  return 2;
}

#endif
