// SPDX-License-Identifier: Apache-2.0
// Captures and the memory of graphs, for the files of the fake driver.
#pragma once

#include "tests/fake_cuda/state.h"

namespace fake_cuda {

// Returns the graph that a stream is captured into, or null.
CUgraph CaptureOf(State& state, CUstream stream);

// Add nodes to a graph.
CUresult AddAllocation(State& state, CUgraph graph, int device, uint64_t bytes,
                       CUdeviceptr* address);
CUresult AddFree(CUgraph graph, uint64_t address);

// Lets pools give back memory above their thresholds (pool.cc).
void SynchronizePools(State& state);

}  // namespace fake_cuda
