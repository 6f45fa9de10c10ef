// SPDX-License-Identifier: Apache-2.0
// Memory of graphs: what graph.cc does for other files.
#pragma once

#include <stdint.h>

#include "client/preload/accounting.h"

namespace gpumem::preload {

// Notes that a stream is about to be captured: before that, no stream has to be asked.
void NoteCapture();

// Returns the graph that a stream is being captured into, or null.
CUgraph CapturedGraph(const Driver& driver, CUstream stream, bool per_thread);

// Charges an allocation that a graph makes when it runs. A refusal is CUDA_ERROR_OUT_OF_MEMORY.
// `before` is what CancelGraphAllocation() needs.
struct GraphPeak {
  uint64_t live = 0;
  uint64_t peak = 0;
};
// What the books have of a graph, or of an executable one.
struct Graph {
  int device = -1;
  uint64_t id = 0;  // handles come again
  GraphPeak memory;
};
CUresult PlanGraphAllocation(uint64_t graph, int device, uint64_t bytes, GraphPeak* before);
void CancelGraphAllocation(uint64_t graph, const GraphPeak& before);
void RememberGraphPointer(uint64_t graph, uint64_t address, uint64_t bytes);

// Makes `copy` stand for the memory of `original`, too: a clone, or an executable graph.
void CopyGraph(uint64_t original, uint64_t copy);

// Takes a graph out of the books before the driver destroys it, as another thread can get the same
// handle then. False if it has no memory.
bool TakeGraph(uint64_t graph, Graph* taken);
// Puts it back: the driver has refused.
void PutGraph(uint64_t graph, const Graph& taken);
// Refunds it: the driver has destroyed it.
void DropGraph(const Graph& taken);

// Returns what the books have of a graph's memory: nothing if it has none.
Graph FindGraph(uint64_t graph);

// Charges what the driver has taken for a graph that was launched or uploaded.
void SettleAfterLaunch(const Driver& driver, CUgraphExec exec);

// Counts memory as free from this node of the graph on.
void FreeInGraph(CUgraph graph, uint64_t address);

// Adds an allocation to a graph by `call`, which writes the address.
template <typename Call>
CUresult AllocateInGraph(const Driver&, CUgraph graph, int device, uint64_t bytes,
                         const CUdeviceptr* address, Call call) {
  uint64_t key = reinterpret_cast<uint64_t>(graph);
  GraphPeak before;
  CUresult result = PlanGraphAllocation(key, device, bytes, &before);
  if (result != CUDA_SUCCESS) return result;
  result = call();
  if (result == CUDA_SUCCESS) {
    RememberGraphPointer(key, *address, bytes);
  } else {
    CancelGraphAllocation(key, before);
  }
  return result;
}

// Adds a child to a graph by `call`, with the child's memory.
template <typename Call>
CUresult AddChild(CUgraph graph, CUgraph child, Call call) {
  const Graph known = FindGraph(reinterpret_cast<uint64_t>(child));
  if (known.device < 0) return call();
  uint64_t key = reinterpret_cast<uint64_t>(graph);
  GraphPeak before;
  CUresult result = PlanGraphAllocation(key, known.device, known.memory.peak, &before);
  if (result != CUDA_SUCCESS) return result;
  result = call();
  if (result != CUDA_SUCCESS) CancelGraphAllocation(key, before);
  return result;
}

// Destroys a graph or an executable graph by `call`.
template <typename Call>
CUresult DestroyGraph(uint64_t graph, Call call) {
  Graph taken;
  if (!TakeGraph(graph, &taken)) return call();
  CUresult result = call();
  if (result == CUDA_SUCCESS) {
    DropGraph(taken);
  } else {
    PutGraph(graph, taken);
  }
  return result;
}

}  // namespace gpumem::preload
