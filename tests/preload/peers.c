/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what two GPUs may do with memory of the first one, in broker mode: CUmemAccess_flags, of
 * which 3 is read and write. That is memory of cuMemAlloc() and cuMemAllocAsync() in the process
 * itself, and of an IPC handle in another one that uses the second GPU. */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/door.h"

#define MIB (1 << 20)

static void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(4);
}

static void tell(const char* name, CUdeviceptr address) {
  printf("%s=", name);
  for (int device = 0; device < 2; ++device) {
    unsigned long long flags = 0;
    CUmemLocation location;
    memset(&location, 0, sizeof(location));
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    check(door.cuMemGetAccess_(&flags, &location, address), "cuMemGetAccess");
    printf("%s%llu", device == 0 ? "" : "/", flags);
  }
  printf(" ");
}

static void open_elsewhere(int handles) {
  CUcontext context;
  CUipcMemHandle handle;
  CUdeviceptr first = 0, second = 0;
  if (read(handles, &handle, sizeof(handle)) != sizeof(handle)) exit(4);
  open_door();
  check(door.cuInit_(0), "cuInit");
  for (int device = 1; device >= 0; --device) {
    check(door.cuDevicePrimaryCtxRetain_(&context, device), "retain");
    check(door.cuCtxSetCurrent_(context), "current");
    check(door.cuIpcOpenMemHandle_(device == 1 ? &second : &first, handle, 1), "open");
  }
  tell("opened_on_second", second);
  tell("opened_on_first", first);
  printf("close=%d/%d\n", (int)door.cuIpcCloseMemHandle_(second),
         (int)door.cuIpcCloseMemHandle_(first));
}

int main(void) {
  int handles[2], done[2];
  char byte = 0;
  CUipcMemHandle handle;
  CUdeviceptr block = 0, ordered = 0;
  if (pipe(handles) != 0 || pipe(done) != 0) return 4;
  const pid_t child = fork();
  if (child == 0) {
    close(handles[1]); /* the read ends if the parent does */
    open_elsewhere(handles[0]);
    return 0;
  }
  start_cuda();
  check(door.cuMemAlloc_(&block, 16 * MIB), "cuMemAlloc");
  check(door.cuMemAllocAsync_(&ordered, 16 * MIB, NULL), "cuMemAllocAsync");
  tell("alloc", block);
  tell("ordered", ordered);
  fflush(stdout);
  check(door.cuIpcGetMemHandle_(&handle, block), "handle");
  if (write(handles[1], &handle, sizeof(handle)) != sizeof(handle)) return 4;
  /* Ends when the child does. */
  close(done[1]);
  if (read(done[0], &byte, 1) != 0) return 4;
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}
#endif
