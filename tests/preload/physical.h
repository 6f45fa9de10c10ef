/* SPDX-License-Identifier: Apache-2.0 */
/* What physical.c and physical_work.c do with memory of cuMemCreate(). All calls must succeed, or
 * the program ends with 4 and says which did not. */
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/preload/door.h"

#define MIB ((size_t)1 << 20)
/* The bytes that are lent to another process. */
#define SHARED (6 * MIB)

static inline void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(4);
}

static inline CUmemAllocationProp properties(void) {
  CUmemAllocationProp wanted;
  memset(&wanted, 0, sizeof(wanted));
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return wanted;
}

static inline CUmemGenericAllocationHandle create(size_t bytes, int types) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp wanted = properties();
  wanted.requestedHandleTypes = (CUmemAllocationHandleType)types;
  check(door.cuMemCreate_(&handle, bytes, &wanted, 0), "create");
  return handle;
}

static inline CUdeviceptr reserve(size_t bytes) {
  CUdeviceptr address = 0;
  check(door.cuMemAddressReserve_(&address, bytes, 0, 0, 0), "reserve");
  return address;
}

static inline CUresult let(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags) {
  CUmemAccessDesc access;
  memset(&access, 0, sizeof(access));
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = flags;
  return door.cuMemSetAccess_(address, bytes, &access, 1);
}

static inline void map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle) {
  check(door.cuMemMap_(address, bytes, 0, handle, 0), "map");
  check(let(address, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), "access");
}

static inline void set(CUdeviceptr address, size_t bytes, unsigned char value) {
  check(door.cuMemsetD8_(address, value, bytes), "set");
}

/* Returns how many of the bytes, of which it looks at some, have another value. */
static inline size_t wrong_bytes(CUdeviceptr address, size_t bytes, unsigned char value) {
  unsigned char* copy = malloc(bytes);
  size_t wrong = 0;
  check(door.cuMemcpyDtoH_(copy, address, bytes), "copy");
  for (size_t at = 0; at < bytes; at += 1024) wrong += copy[at] != value;
  wrong += copy[bytes - 1] != value;
  free(copy);
  return wrong;
}

static inline int access_at(CUdeviceptr address, CUresult* result) {
  unsigned long long flags = 99;
  CUmemLocation location;
  memset(&location, 0, sizeof(location));
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  *result = door.cuMemGetAccess_(&flags, &location, address);
  return (int)flags;
}

/* The name of this program. */
extern char* self;

/* Starts `self` with a descriptor. */
static inline pid_t spawn(const char* what, int fd, int preloaded) {
  char number[16];
  snprintf(number, sizeof(number), "%d", fd);
  fflush(stdout);
  pid_t child = fork();
  if (child != 0) return child;
  if (!preloaded) unsetenv("LD_PRELOAD");
  fcntl(fd, F_SETFD, 0);
  execl(self, self, what, number, NULL);
  _exit(5);
}

static inline int exported(CUmemGenericAllocationHandle handle) {
  int fd = -1;
  check(
      door.cuMemExportToShareableHandle_(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "export");
  return fd;
}

static inline CUdeviceptr imported(int fd, size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  check(door.cuMemImportFromShareableHandle_(&handle, (void*)(intptr_t)fd,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "import");
  CUdeviceptr address = reserve(bytes);
  map(address, bytes, handle);
  check(door.cuMemRelease_(handle), "release");
  return address;
}
