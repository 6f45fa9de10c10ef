// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumemd {

// Has glibc's malloc(3) take memory from two arenas, in place of eight for each processor. An arena
// gives memory back to the kernel only where whole pages are free; with many, what a burst of
// requests leaves behind held 180 MiB for 12 MiB in use (docs/assurance.md, Soak). Call before
// other threads start. MALLOC_ARENA_MAX and the tunable glibc.malloc.arena_max of the environment
// have precedence; other tunables do not matter.
void LimitMallocArenas();

// Has each arena give the free memory at its end back to the kernel from 4 MiB. By default glibc
// raises that threshold up to 64 MiB, to twice the largest mapped block that was freed, and
// malloc_trim() does not reach the end of an arena other than the first. A block of 1 MiB or more
// is mapped alone: each time it is allocated, its pages are new. Call before other threads start.
// The environment's parameters of both thresholds have precedence.
void LimitMallocTrimThreshold();

}  // namespace gpumemd
