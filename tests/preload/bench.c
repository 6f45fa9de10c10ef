/* SPDX-License-Identifier: Apache-2.0 */
/* bench: prints what calls take, in nanoseconds, medians. Run it with and without the preload, on a
 * machine with a GPU. `bench arrays` prints what arrays take of the device's memory, `bench info`
 * what cuMemGetInfo takes. */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/preload/door.h"

#define LIVE 10000
#define MIB ((size_t)1 << 20)

static CUstream stream;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void* a, const void* b) {
  double x = *(const double*)a;
  double y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values, int count) {
  qsort(values, (size_t)count, sizeof(*values), compare);
  return values[count / 2];
}

static void must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", call, (int)result);
  exit(4);
}

static CUresult alloc(CUdeviceptr* p, size_t bytes) { return door.cuMemAlloc_(p, bytes); }
static CUresult release(CUdeviceptr p) { return door.cuMemFree_(p); }
static CUresult alloc_async(CUdeviceptr* p, size_t bytes) {
  return door.cuMemAllocAsync_(p, bytes, stream);
}
static CUresult release_async(CUdeviceptr p) { return door.cuMemFreeAsync_(p, stream); }

static void pairs(const char* name, size_t bytes, int rounds, CUresult (*get)(CUdeviceptr*, size_t),
                  CUresult (*give)(CUdeviceptr)) {
  double* gets = malloc(sizeof(double) * (size_t)rounds);
  double* gives = malloc(sizeof(double) * (size_t)rounds);
  CUdeviceptr address;
  for (int i = -10; i < rounds; ++i) {
    double begin = now();
    must(get(&address, bytes), name);
    double middle = now();
    must(give(address), name);
    double end = now();
    if (i >= 0) {
      gets[i] = middle - begin;
      gives[i] = end - middle;
    }
  }
  printf("%s %zu: %.0f / %.0f\n", name, bytes, median(gets, rounds), median(gives, rounds));
  free(gets);
  free(gives);
}

static void memory_info(int rounds) {
  size_t left, whole;
  double begin;
  int i;
  for (i = 0; i < 1000; ++i) must(door.cuMemGetInfo_(&left, &whole), "cuMemGetInfo");
  begin = now();
  for (i = 0; i < rounds; ++i) must(door.cuMemGetInfo_(&left, &whole), "cuMemGetInfo");
  printf("cuMemGetInfo: %.0f\n", (now() - begin) / rounds);
}

static void physical(size_t bytes, int rounds) {
  double gets[1000], gives[1000];
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof(properties));
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  for (int i = 0; i < rounds; ++i) {
    CUmemGenericAllocationHandle handle;
    double begin = now();
    must(door.cuMemCreate_(&handle, bytes, &properties, 0), "cuMemCreate");
    double middle = now();
    must(door.cuMemRelease_(handle), "cuMemRelease");
    gets[i] = middle - begin;
    gives[i] = now() - middle;
  }
  printf("cuMemCreate %zu: %.0f / %.0f\n", bytes, median(gets, rounds), median(gives, rounds));
}

static void info(int rounds) {
  double times[1000];
  size_t left, total;
  for (int i = 0; i < rounds; ++i) {
    double begin = now();
    must(door.cuMemGetInfo_(&left, &total), "cuMemGetInfo");
    times[i] = now() - begin;
  }
  printf("cuMemGetInfo: %.0f\n", median(times, rounds));
}

/* Of a kernel that does nothing: batches which the GPU's queue has room for. */
static void launches(int rounds) {
  enum { kBatch = 200 };
  static const char kKernel[] =
      ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";
  double times[1000];
  CUmodule module;
  CUfunction nothing;
  must(door.cuModuleLoadData_(&module, kKernel), "module");
  must(door.cuModuleGetFunction_(&nothing, module, "nothing"), "function");
  for (int i = 0; i < rounds; ++i) {
    double begin = now();
    for (int j = 0; j < kBatch; ++j) {
      must(door.cuLaunchKernel_(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "launch");
    }
    times[i] = (now() - begin) / kBatch;
    must(door.cuStreamSynchronize_(stream), "synchronize");
  }
  printf("cuLaunchKernel: %.0f\n", median(times, rounds));
}

static void array(size_t width, size_t height, size_t depth, CUarray_format format,
                  unsigned int channels) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {width, height, depth, format, channels, 0};
  CUarray arrays[8];
  size_t before, after, total;
  must(door.cuMemGetInfo_(&before, &total), "cuMemGetInfo");
  for (int i = 0; i < 8; ++i) must(door.cuArray3DCreate_(&arrays[i], &descriptor), "array");
  must(door.cuMemGetInfo_(&after, &total), "cuMemGetInfo");
  for (int i = 0; i < 8; ++i) must(door.cuArrayDestroy_(arrays[i]), "destroy");
  printf("8 arrays of %zux%zux%zu format %d x%u: %zu KiB\n", width, height, depth, (int)format,
         channels, (before - after) >> 10);
}

int main(int argc, char** argv) {
  static CUdeviceptr live[LIVE];
  CUcontext context;
  open_door();
  must(door.cuInit_(0), "cuInit");
  must(door.cuDevicePrimaryCtxRetain_(&context, 0), "context");
  must(door.cuCtxSetCurrent_(context), "context");
  must(door.cuStreamCreate_(&stream, 0), "stream");
  /* Else each small allocation takes a page from the device, and gives it back. */
  CUdeviceptr anchor;
  must(alloc(&anchor, 512), "anchor");
  if (argc > 1 && strcmp(argv[1], "info") == 0) {
    memory_info(1000000);
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "arrays") == 0) {
    array(4096, 4096, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1);
    array(4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4);
    array(1000, 1000, 0, CU_AD_FORMAT_FLOAT, 1);
    array(1000, 1, 0, CU_AD_FORMAT_FLOAT, 1);
    array(100, 100, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1);
    array(33, 4097, 0, CU_AD_FORMAT_HALF, 2);
    array(100, 100, 100, CU_AD_FORMAT_UNSIGNED_INT8, 1);
    array(65, 9, 300, CU_AD_FORMAT_FLOAT, 1);
    array(256, 256, 256, CU_AD_FORMAT_HALF, 1);
    array(1024, 3, 0, CU_AD_FORMAT_FLOAT, 4);
    return 0;
  }
  pairs("cuMemAlloc", 512, 20000, alloc, release);
  pairs("cuMemAlloc", 2 * MIB, 1000, alloc, release);
  pairs("cuMemAlloc", 64 * MIB, 1000, alloc, release);
  cuuint64_t threshold = UINT64_MAX / 2;
  CUmemoryPool pool;
  must(door.cuDeviceGetDefaultMemPool_(&pool, 0), "pool");
  must(door.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "pool");
  pairs("cuMemAllocAsync", 64 << 10, 20000, alloc_async, release_async);
  must(door.cuStreamSynchronize_(stream), "synchronize");
  launches(300);
  physical(64 * MIB, 300);
  info(1000);
  for (int i = 0; i < LIVE; ++i) must(alloc(&live[i], 512), "live");
  pairs("10000 live, cuMemAlloc", 512, 20000, alloc, release);
  info(1000);
  for (int i = 0; i < LIVE; ++i) must(release(live[i]), "live");
  return 0;
}
#endif
