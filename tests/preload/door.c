/* SPDX-License-Identifier: Apache-2.0 */
#if !GPUMEM_WITH_CUDA
typedef int nothing_without_the_toolkit;
#else
#include "tests/preload/door.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct Door door;

#if defined(DOOR_LINKED)

const char* door_name(void) { return "linked"; }

void open_door(void) {
#define FILL(name, version) door.name##_ = &name;
  DRIVER_FUNCTIONS(FILL)
#undef FILL
}

#else

static void* library(void) {
  const char* name = getenv("TEST_LIBCUDA");
  void* handle = dlopen(name != NULL ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
  return handle;
}

static void check(const void* function, const char* name) {
  if (function != NULL) return;
  fprintf(stderr, "no %s\n", name);
  exit(3);
}

#if defined(DOOR_DLSYM)

const char* door_name(void) { return "dlsym"; }

void open_door(void) {
  void* handle = library();
#define FILL(name, version)                                    \
  *(void**)&door.name##_ = dlsym(handle, EXPORTED_NAME(name)); \
  check(*(void**)&door.name##_, EXPORTED_NAME(name));
  DRIVER_FUNCTIONS(FILL)
#undef FILL
}

#elif defined(DOOR_PROC)

const char* door_name(void) { return "cuGetProcAddress"; }

void open_door(void) {
  CUresult (*find)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  CUdriverProcAddressQueryResult status;
  *(void**)&find = dlsym(library(), "cuGetProcAddress_v2");
  check(*(void**)&find, "cuGetProcAddress_v2");
  /* As the runtime does: it asks for the function again by the function. */
  if (find("cuGetProcAddress", (void**)&find, 12000, 0, &status) != CUDA_SUCCESS) exit(3);
#define FILL(name, version)                                                             \
  if (find(#name, (void**)&door.name##_, version, 0, &status) != CUDA_SUCCESS) exit(3); \
  check(*(void**)&door.name##_, #name);
  DRIVER_FUNCTIONS(FILL)
#undef FILL
}

#endif
#endif

CUcontext start_cuda(void) {
  CUcontext context = NULL;
  open_door();
  CUresult result = door.cuInit_(0);
  if (result == CUDA_SUCCESS) result = door.cuDevicePrimaryCtxRetain_(&context, 0);
  if (result == CUDA_SUCCESS) result = door.cuCtxSetCurrent_(context);
  if (result == CUDA_SUCCESS) return context;
  fprintf(stderr, "context: %d\n", (int)result);
  exit(4);
}

#endif
