// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumemd {

// Has glibc's malloc(3) take memory from two arenas, in place of eight for each processor. An arena
// gives memory back to the kernel only where whole pages are free; with many, what a burst of
// requests leaves behind held 180 MiB for 12 MiB in use (docs/assurance.md, Soak). Call before
// other threads start. MALLOC_ARENA_MAX and the tunable glibc.malloc.arena_max of the environment
// have precedence; other tunables do not matter.
void LimitMallocArenas();

}  // namespace gpumemd
