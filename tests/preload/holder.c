/* SPDX-License-Identifier: Apache-2.0 */
/* holder BYTES [freed|rounds]: allocates once, and frees that if asked to; prints held=CODE, and
 * waits for a signal. With rounds it first waits for a line on its stdin, and after the answer for
 * another one, at which it frees what it got and prints freed=CODE; and again until the input ends.
 */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; } /* nothing to run without the toolkit */
#else
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/preload/door.h"

static void tell(const char* what, CUresult result) {
  printf("%s=%d\n", what, (int)result);
  fflush(stdout);
}

static int rounds(size_t bytes) {
  tell("ready", CUDA_SUCCESS);
  char line[8];
  while (fgets(line, sizeof(line), stdin) != NULL) {
    CUdeviceptr address = 0;
    CUresult result = door.cuMemAlloc_(&address, bytes);
    tell("held", result);
    if (fgets(line, sizeof(line), stdin) == NULL) break;
    tell("freed", result == CUDA_SUCCESS ? door.cuMemFree_(address) : CUDA_SUCCESS);
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 2) return 64;
  start_cuda();
  size_t bytes = strtoull(argv[1], NULL, 10);
  if (argc > 2 && strcmp(argv[2], "rounds") == 0) return rounds(bytes);
  CUdeviceptr address = 0;
  CUresult result = door.cuMemAlloc_(&address, bytes);
  if (argc > 2 && result == CUDA_SUCCESS) result = door.cuMemFree_(address);
  tell("held", result);
  pause();
  return 0;
}
#endif
