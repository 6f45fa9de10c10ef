/* SPDX-License-Identifier: Apache-2.0 */
/* gpumem_foreign: a program that does not know gpumem, and opens its memory all the same.
 *
 *   gpumem_foreign HANDLE BYTES
 *
 * HANDLE is a cudaIpcMemHandle_t as 128 hexadecimal digits, BYTES how much memory there is behind
 * it, on the first GPU that CUDA_VISIBLE_DEVICES leaves. Prints the CRC-32 of all of it. Knows the
 * CUDA driver's interface by its documents alone, and needs no toolkit.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char reserved[64];
} IpcMemHandle; /* CUipcMemHandle */

enum { kLazyEnablePeerAccess = 1 }; /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
typedef int Result;                 /* CUresult; 0 is success */
typedef int Device;                 /* CUdevice */
typedef struct Context* Context;    /* CUcontext */
typedef unsigned long long Pointer; /* CUdeviceptr */

static void* driver;

static void* Find(const char* name) {
  void* function = dlsym(driver, name);
  if (function == NULL) {
    fprintf(stderr, "gpumem_foreign: the driver has no %s\n", name);
    exit(1);
  }
  return function;
}

static void Check(Result result, const char* what) {
  Result (*get_name)(Result, const char**);
  const char* name = NULL;
  if (result == 0) return;
  *(void**)&get_name = Find("cuGetErrorName");
  get_name(result, &name);
  fprintf(stderr, "gpumem_foreign: %s: %s\n", what, name != NULL ? name : "unknown error");
  exit(1);
}

static IpcMemHandle ParseHandle(const char* hex) {
  IpcMemHandle handle;
  size_t i;
  if (strlen(hex) != 2 * sizeof(handle.reserved)) {
    fprintf(stderr, "gpumem_foreign: a handle has %zu digits\n", 2 * sizeof(handle.reserved));
    exit(2);
  }
  for (i = 0; i < sizeof(handle.reserved); ++i) {
    unsigned byte;
    if (sscanf(hex + 2 * i, "%2x", &byte) != 1) {
      fprintf(stderr, "gpumem_foreign: no hexadecimal digits: %s\n", hex);
      exit(2);
    }
    handle.reserved[i] = (char)byte;
  }
  return handle;
}

static uint32_t Crc32(const unsigned char* bytes, size_t count) {
  uint32_t crc = 0xffffffff;
  size_t i;
  int bit;
  for (i = 0; i < count; ++i) {
    crc ^= bytes[i];
    for (bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320 & -(crc & 1));
  }
  return ~crc;
}

int main(int argc, char** argv) {
  Result (*init)(unsigned);
  Result (*get_device)(Device*, int);
  Result (*retain_context)(Context*, Device);
  Result (*set_context)(Context);
  Result (*open_handle)(Pointer*, IpcMemHandle, unsigned);
  Result (*close_handle)(Pointer);
  Result (*copy_out)(void*, Pointer, size_t);
  IpcMemHandle handle;
  Device device;
  Context context;
  Pointer memory;
  unsigned char* copy;
  size_t bytes;

  if (argc != 3) {
    fprintf(stderr, "usage: gpumem_foreign HANDLE BYTES\n");
    return 2;
  }
  handle = ParseHandle(argv[1]);
  bytes = strtoull(argv[2], NULL, 10);
  copy = malloc(bytes);
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL || copy == NULL) {
    fprintf(stderr, "gpumem_foreign: %s\n", driver == NULL ? dlerror() : "out of memory");
    return 1;
  }
  /* So POSIX has it: a cast from void* to a function's pointer is no ISO C. */
  *(void**)&init = Find("cuInit");
  *(void**)&get_device = Find("cuDeviceGet");
  *(void**)&retain_context = Find("cuDevicePrimaryCtxRetain");
  *(void**)&set_context = Find("cuCtxSetCurrent");
  *(void**)&open_handle = Find("cuIpcOpenMemHandle_v2");
  *(void**)&close_handle = Find("cuIpcCloseMemHandle");
  *(void**)&copy_out = Find("cuMemcpyDtoH_v2");

  Check(init(0), "cuInit");
  Check(get_device(&device, 0), "cuDeviceGet");
  Check(retain_context(&context, device), "cuDevicePrimaryCtxRetain");
  Check(set_context(context), "cuCtxSetCurrent");
  Check(open_handle(&memory, handle, kLazyEnablePeerAccess), "cuIpcOpenMemHandle");
  Check(copy_out(copy, memory, bytes), "cuMemcpyDtoH");
  printf("%08x\n", (unsigned)Crc32(copy, bytes));
  Check(close_handle(memory), "cuIpcCloseMemHandle");
  free(copy);
  return 0;
}
