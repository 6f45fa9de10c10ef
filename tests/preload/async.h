/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory, for the programs that use it. */
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/preload/door.h"

#define MIB ((size_t)1 << 20)

/* The default pool, and functions for per-thread default streams, after start(). */
static CUmemoryPool pool;
static CUresult (*alloc_per_thread)(CUdeviceptr*, size_t, CUstream);
static CUresult (*free_per_thread)(CUdeviceptr, CUstream);

static inline void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(4);
}

static inline CUcontext start(void) {
  CUcontext context = start_cuda();
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  *(void**)&alloc_per_thread = dlsym(library, "cuMemAllocAsync_ptsz");
  *(void**)&free_per_thread = dlsym(library, "cuMemFreeAsync_ptsz");
  check(door.cuDeviceGetDefaultMemPool_(&pool, 0), "pool");
  return context;
}

static inline CUstream stream_of(unsigned int flags) {
  CUstream stream;
  check(door.cuStreamCreate_(&stream, flags), "stream");
  return stream;
}

static inline CUdeviceptr get(size_t bytes, CUstream stream) {
  CUdeviceptr address = 0;
  check(door.cuMemAllocAsync_(&address, bytes, stream), "cuMemAllocAsync");
  return address;
}

static inline void give(CUdeviceptr address, CUstream stream) {
  check(door.cuMemFreeAsync_(address, stream), "cuMemFreeAsync");
}

static inline void keep_all(void) {
  cuuint64_t threshold = UINT64_MAX / 2;
  check(door.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "keep");
}
