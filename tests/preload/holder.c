/* SPDX-License-Identifier: Apache-2.0 */
/* holder BYTES [freed]: allocates once, and frees that if asked to; prints held=CODE, and waits for
 * a signal. */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; } /* nothing to run without the toolkit */
#else
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/preload/door.h"

int main(int argc, char** argv) {
  if (argc < 2) return 64;
  start_cuda();
  CUdeviceptr address = 0;
  CUresult result = door.cuMemAlloc_(&address, strtoull(argv[1], NULL, 10));
  if (argc > 2 && result == CUDA_SUCCESS) result = door.cuMemFree_(address);
  printf("held=%d\n", (int)result);
  fflush(stdout);
  pause();
  return 0;
}
#endif
