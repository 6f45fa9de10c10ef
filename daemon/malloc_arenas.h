// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumemd {

// Has glibc's malloc(3) take memory from two arenas, in place of eight for each processor. An arena
// gives memory back to the kernel only where whole pages are free; with many, what a burst of
// requests leaves behind held 180 MiB for 12 MiB in use (docs/assurance.md, Soak). Call before
// other threads start. The environment's MALLOC_ARENA_MAX and GLIBC_TUNABLES have precedence.
void LimitMallocArenas();

}  // namespace gpumemd
