/* SPDX-License-Identifier: Apache-2.0 */
/* keeper BYTES: allocates once, frees that, and waits for a signal. */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; } /* nothing to run without the toolkit */
#else
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/preload/door.h"

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  open_door();
  CUcontext context;
  CUdeviceptr address = 0;
  if (door.cuInit_(0) != CUDA_SUCCESS ||
      door.cuDevicePrimaryCtxRetain_(&context, 0) != CUDA_SUCCESS ||
      door.cuCtxSetCurrent_(context) != CUDA_SUCCESS ||
      door.cuMemAlloc_(&address, strtoull(argv[1], NULL, 10)) != CUDA_SUCCESS ||
      door.cuMemFree_(address) != CUDA_SUCCESS)
    return 4;
  pause();
  return 0;
}
#endif
