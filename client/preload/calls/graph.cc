// SPDX-License-Identifier: Apache-2.0
// The driver's functions of graphs and captures that graph.cc keeps the books of.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/gate.h"
#include "client/preload/graph.h"

namespace gpumem::preload {
namespace {

template <typename Call>
CUresult Instantiate(const Entry& entry, CUgraphExec* exec, CUgraph graph, Call call) {
  CUresult result = call();
  if (result == CUDA_SUCCESS && entry.outermost) {
    CopyGraph(reinterpret_cast<uint64_t>(graph), reinterpret_cast<uint64_t>(*exec));
  }
  return result;
}

// After a launch or an upload, in which the driver takes the memory of the graph.
CUresult AfterLaunch(const Entry& entry, CUgraphExec exec, CUresult result) {
  if (entry.outermost) SettleAfterLaunch(entry.driver, exec);
  return result;
}

template <typename Call>
CUresult BeginCapture(CUstream stream, Call call) {
  Entry entry;
  NoteCapture();
  CaptureBegins();
  CUresult result = call(entry.driver);
  if (result != CUDA_SUCCESS) {
    CaptureEnds();
  } else {
    NoteCaptureOf(stream);
  }
  return result;
}

// A capture that fails leaves no graph.
template <typename Call>
CUresult EndCapture(CUstream stream, CUgraph* graph, bool per_thread, Call call) {
  Entry entry;
  CUgraph captured = entry.outermost ? CapturedGraph(entry.driver, stream, per_thread) : nullptr;
  Graph taken;
  bool known = captured != nullptr && TakeGraph(reinterpret_cast<uint64_t>(captured), &taken);
  CUstream named = per_thread && stream == nullptr ? CU_STREAM_PER_THREAD : stream;
  bool was_captured = IsCaptured(entry.driver, named);
  CUresult result = call(entry.driver);
  if (was_captured && !IsCaptured(entry.driver, named)) {
    EndsCapture(stream);
    CaptureEnds();
  }
  if (known && result == CUDA_SUCCESS) PutGraph(reinterpret_cast<uint64_t>(*graph), taken);
  if (known && result != CUDA_SUCCESS) DropGraph(taken);
  return result;
}

template <typename Params, typename Call>
CUresult AddNode(CUgraph graph, Params* params, Call call) {
  Entry entry;
  if (!entry.outermost || params == nullptr) return call(entry.driver);
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return AllocateInGraph(entry.driver, graph, params->alloc.poolProps.location.id,
                             params->alloc.bytesize, &params->alloc.dptr,
                             [&] { return call(entry.driver); });
    case CU_GRAPH_NODE_TYPE_MEM_FREE: {
      CUresult result = call(entry.driver);
      if (result == CUDA_SUCCESS) FreeInGraph(graph, params->free.dptr);
      return result;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return AddChild(graph, params->graph.graph, [&] { return call(entry.driver); });
    default:
      return call(entry.driver);
  }
}

}  // namespace
}  // namespace gpumem::preload

using gpumem::preload::AddNode;
using gpumem::preload::AfterLaunch;
using gpumem::preload::BeginCapture;
using gpumem::preload::DestroyGraph;
using gpumem::preload::Driver;
using gpumem::preload::EndCapture;
using gpumem::preload::Entry;
using gpumem::preload::Instantiate;

extern "C" {

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                        const CUgraphNode* dependencies, size_t numDependencies,
                                        CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
  Entry entry;
  auto call = [&] {
    return entry.driver.cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies,
                                               nodeParams);
  };
  if (!entry.outermost || nodeParams == nullptr) return call();
  return gpumem::preload::AllocateInGraph(entry.driver, hGraph, nodeParams->poolProps.location.id,
                                          nodeParams->bytesize, &nodeParams->dptr, call);
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                       const CUgraphNode* dependencies, size_t numDependencies,
                                       CUdeviceptr dptr) {
  Entry entry;
  CUresult result =
      entry.driver.cuGraphAddMemFreeNode(phGraphNode, hGraph, dependencies, numDependencies, dptr);
  if (result == CUDA_SUCCESS && entry.outermost) gpumem::preload::FreeInGraph(hGraph, dptr);
  return result;
}

CUresult CUDAAPI cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                const CUgraphNode* dependencies, size_t numDependencies,
                                CUgraphNodeParams* nodeParams) {
  return AddNode(hGraph, nodeParams, [&](const Driver& driver) {
    return driver.cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
  });
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                   const CUgraphNode* dependencies,
                                   const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                   CUgraphNodeParams* nodeParams) {
  return AddNode(hGraph, nodeParams, [&](const Driver& driver) {
    return driver.cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData,
                                    numDependencies, nodeParams);
  });
}

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                          const CUgraphNode* dependencies, size_t numDependencies,
                                          CUgraph childGraph) {
  Entry entry;
  auto call = [&] {
    return entry.driver.cuGraphAddChildGraphNode(phGraphNode, hGraph, dependencies, numDependencies,
                                                 childGraph);
  };
  return entry.outermost ? gpumem::preload::AddChild(hGraph, childGraph, call) : call();
}

CUresult CUDAAPI cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  Entry entry;
  CUresult result = entry.driver.cuGraphClone(phGraphClone, originalGraph);
  if (result == CUDA_SUCCESS && entry.outermost) {
    gpumem::preload::CopyGraph(reinterpret_cast<uint64_t>(originalGraph),
                               reinterpret_cast<uint64_t>(*phGraphClone));
  }
  return result;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph) {
  Entry entry;
  auto call = [&] { return entry.driver.cuGraphDestroy(hGraph); };
  return entry.outermost ? DestroyGraph(reinterpret_cast<uint64_t>(hGraph), call) : call();
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph,
                                    CUgraphNode* phErrorNode, char* logBuffer, size_t bufferSize) {
  Entry entry;
  return Instantiate(entry, phGraphExec, hGraph, [&] {
    return entry.driver.cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
  });
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph,
                                       CUgraphNode* phErrorNode, char* logBuffer,
                                       size_t bufferSize) {
  Entry entry;
  return Instantiate(entry, phGraphExec, hGraph, [&] {
    return entry.driver.cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer,
                                              bufferSize);
  });
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                             unsigned long long flags) {
  Entry entry;
  return Instantiate(entry, phGraphExec, hGraph, [&] {
    return entry.driver.cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags);
  });
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  Entry entry;
  return Instantiate(entry, phGraphExec, hGraph, [&] {
    return entry.driver.cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams);
  });
}

CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(
    CUgraphExec* phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  Entry entry;
  return Instantiate(entry, phGraphExec, hGraph, [&] {
    return entry.driver.cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, instantiateParams);
  });
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec) {
  Entry entry;
  auto call = [&] { return entry.driver.cuGraphExecDestroy(hGraphExec); };
  return entry.outermost ? DestroyGraph(reinterpret_cast<uint64_t>(hGraphExec), call) : call();
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  Entry entry;
  const gpumem::preload::GateHold hold;
  return AfterLaunch(entry, hGraphExec, entry.driver.cuGraphUpload(hGraphExec, hStream));
}

CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  Entry entry;
  const gpumem::preload::GateHold hold;
  return AfterLaunch(entry, hGraphExec, entry.driver.cuGraphUpload_ptsz(hGraphExec, hStream));
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  Entry entry;
  const gpumem::preload::GateHold hold;
  return AfterLaunch(entry, hGraphExec, entry.driver.cuGraphLaunch(hGraphExec, hStream));
}

CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  Entry entry;
  const gpumem::preload::GateHold hold;
  return AfterLaunch(entry, hGraphExec, entry.driver.cuGraphLaunch_ptsz(hGraphExec, hStream));
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device) {
  Entry entry;
  CUresult result = entry.driver.cuDeviceGraphMemTrim(device);
  if (entry.outermost) gpumem::preload::SettleGraphs(device);
  return result;
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream hStream) {
  return BeginCapture(hStream,
                      [&](const Driver& driver) { return driver.cuStreamBeginCapture(hStream); });
}

CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream hStream) {
  return BeginCapture(
      hStream, [&](const Driver& driver) { return driver.cuStreamBeginCapture_ptsz(hStream); });
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  return BeginCapture(
      hStream, [&](const Driver& driver) { return driver.cuStreamBeginCapture_v2(hStream, mode); });
}

CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode) {
  return BeginCapture(hStream, [&](const Driver& driver) {
    return driver.cuStreamBeginCapture_v2_ptsz(hStream, mode);
  });
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                             const CUgraphNode* dependencies,
                                             const CUgraphEdgeData* dependencyData,
                                             size_t numDependencies, CUstreamCaptureMode mode) {
  return BeginCapture(hStream, [&](const Driver& driver) {
    return driver.cuStreamBeginCaptureToGraph(hStream, hGraph, dependencies, dependencyData,
                                              numDependencies, mode);
  });
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph,
                                                  const CUgraphNode* dependencies,
                                                  const CUgraphEdgeData* dependencyData,
                                                  size_t numDependencies,
                                                  CUstreamCaptureMode mode) {
  return BeginCapture(hStream, [&](const Driver& driver) {
    return driver.cuStreamBeginCaptureToGraph_ptsz(hStream, hGraph, dependencies, dependencyData,
                                                   numDependencies, mode);
  });
}

CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  return EndCapture(hStream, phGraph, false, [&](const Driver& driver) {
    return driver.cuStreamEndCapture(hStream, phGraph);
  });
}

CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream hStream, CUgraph* phGraph) {
  return EndCapture(hStream, phGraph, true, [&](const Driver& driver) {
    return driver.cuStreamEndCapture_ptsz(hStream, phGraph);
  });
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
