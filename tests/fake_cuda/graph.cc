// SPDX-License-Identifier: Apache-2.0
// Graphs, of which nodes of memory do something. A launch takes the most that the nodes have live
// at a time from the device, into the memory that all graphs share; cuDeviceGraphMemTrim() gives it
// back.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/fake_cuda/graph.h"

using fake_cuda::Call;

struct CUgraphNode_st {
  CUgraphNodeType type;
  uint64_t address;
};

struct CUgraph_st {
  int device = 0;
  std::vector<CUgraphNode> nodes;
  std::map<uint64_t, uint64_t> live;  // address -> bytes
  uint64_t now = 0;
  uint64_t peak = 0;
};

struct CUgraphExec_st {
  int device = 0;
  uint64_t peak = 0;
};

namespace fake_cuda {

namespace {

// Objects whose handles come again soon, for another thread too, as the driver's do. Under the
// state's lock.
template <typename Object>
std::vector<Object*>& Spare() {
  static auto* const spare = new std::vector<Object*>;
  return *spare;
}

template <typename Object>
Object* New() {
  if (Spare<Object>().empty()) return new Object;
  Object* object = Spare<Object>().back();
  Spare<Object>().pop_back();
  *object = {};
  return object;
}

}  // namespace

CUgraph CaptureOf(State& state, CUstream stream) {
  if (state.streams.count(stream) != 0) return stream->graph;
  // The driver reads the memory of a stream that was destroyed, and crashes at times.
  if (reinterpret_cast<uintptr_t>(stream) > reinterpret_cast<uintptr_t>(CU_STREAM_PER_THREAD)) {
    fputs("fake driver: there is no such stream\n", stderr);
    abort();
  }
  return nullptr;
}

CUresult AddAllocation(State& state, CUgraph graph, int device, uint64_t bytes,
                       CUdeviceptr* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *address = AddAllocation(state, {Kind::kGraph, bytes, device});
  if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  graph->device = device;
  graph->live[*address] = RoundUp(bytes, kPage);
  graph->now += RoundUp(bytes, kPage);
  if (graph->now > graph->peak) graph->peak = graph->now;
  graph->nodes.push_back(new CUgraphNode_st{CU_GRAPH_NODE_TYPE_MEM_ALLOC, *address});
  return CUDA_SUCCESS;
}

CUresult AddFree(CUgraph graph, uint64_t address) {
  auto found = graph->live.find(address);
  if (found == graph->live.end()) return CUDA_ERROR_INVALID_VALUE;
  graph->now -= found->second;
  graph->live.erase(found);
  graph->nodes.push_back(new CUgraphNode_st{CU_GRAPH_NODE_TYPE_MEM_FREE, address});
  return CUDA_SUCCESS;
}

namespace {

CUresult InstantiateGraph(CUgraphExec* exec, CUgraph graph) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (exec == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *exec = New<CUgraphExec_st>();
  **exec = {graph->device, graph->peak};
  return CUDA_SUCCESS;
}

CUresult DestroyGraph(CUgraph graph) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (CUgraphNode node : graph->nodes) {
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) RemoveAllocation(call.state, node->address);
    delete node;
  }
  Spare<CUgraph_st>().push_back(graph);
  return CUDA_SUCCESS;
}

CUresult DestroyExec(CUgraphExec exec) {
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) Spare<CUgraphExec_st>().push_back(exec);
  return ready;
}

CUresult LaunchGraph(CUgraphExec exec) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  Device& device = call.state.devices[static_cast<size_t>(exec->device)];
  if (exec->peak <= device.graph_reserved) return CUDA_SUCCESS;
  if (!TakeMemory(exec->device, exec->peak - device.graph_reserved)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  device.graph_reserved = exec->peak;
  return CUDA_SUCCESS;
}

CUresult BeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (call.state.streams.count(stream) == 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->graph != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  static uint64_t last_id = 0;
  stream->graph = New<CUgraph_st>();
  stream->broken = false;
  stream->mode = mode;
  stream->capture_id = ++last_id;
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) ++call.state.global_captures;
  return CUDA_SUCCESS;
}

CUresult EndCapture(CUstream stream, CUgraph* graph) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  *graph = nullptr;
  if (CaptureOf(call.state, stream) == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  CUgraph captured = stream->graph;
  stream->graph = nullptr;
  if (stream->mode == CU_STREAM_CAPTURE_MODE_GLOBAL) --call.state.global_captures;
  if (stream->broken) {
    DestroyGraph(captured);
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *graph = captured;
  return CUDA_SUCCESS;
}

CUresult IsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (CaptureOf(call.state, stream) != nullptr) {
    *status =
        stream->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  }
  return CUDA_SUCCESS;
}

CUresult CaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                     size_t* dependencies) {
  CUresult result = IsCapturing(stream, status);
  if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return result;
  if (id != nullptr) *id = stream->capture_id;
  if (graph != nullptr) *graph = stream->graph;
  if (dependencies != nullptr) *dependencies = 0;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake_cuda

extern "C" {

CUresult CUDAAPI cuGraphCreate(CUgraph* phGraph, unsigned int) {
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) *phGraph = fake_cuda::New<CUgraph_st>();
  return ready;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph) {
  CUresult result = fake_cuda::DestroyGraph(hGraph);
  fake_cuda::CallHook("cuGraphDestroy");
  return result;
}

CUresult CUDAAPI cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  // The addresses stay the original's.
  *phGraphClone = fake_cuda::New<CUgraph_st>();
  (*phGraphClone)->device = originalGraph->device;
  (*phGraphClone)->peak = originalGraph->peak;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                        const CUgraphNode*, size_t,
                                        CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (hGraph == nullptr || nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = fake_cuda::AddAllocation(call.state, hGraph, nodeParams->poolProps.location.id,
                                             nodeParams->bytesize, &nodeParams->dptr);
  if (result == CUDA_SUCCESS) *phGraphNode = hGraph->nodes.back();
  return result;
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode*,
                                       size_t, CUdeviceptr dptr) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  CUresult result = fake_cuda::AddFree(hGraph, dptr);
  if (result == CUDA_SUCCESS) *phGraphNode = hGraph->nodes.back();
  return result;
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode*,
                                   const CUgraphEdgeData*, size_t, CUgraphNodeParams* nodeParams) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    result = fake_cuda::AddAllocation(call.state, hGraph, nodeParams->alloc.poolProps.location.id,
                                      nodeParams->alloc.bytesize, &nodeParams->alloc.dptr);
  } else if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    result = fake_cuda::AddFree(hGraph, nodeParams->free.dptr);
  }
  if (result == CUDA_SUCCESS) *phGraphNode = hGraph->nodes.back();
  return result;
}

// Graphs with allocations cannot be children, as long as a child is a copy.
CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                          const CUgraphNode*, size_t, CUgraph childGraph) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (hGraph == nullptr || childGraph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (childGraph->peak != 0) return CUDA_ERROR_NOT_SUPPORTED;
  hGraph->nodes.push_back(new CUgraphNode_st{CU_GRAPH_NODE_TYPE_GRAPH, 0});
  *phGraphNode = hGraph->nodes.back();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                             unsigned long long) {
  return fake_cuda::InstantiateGraph(phGraphExec, hGraph);
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS*) {
  return fake_cuda::InstantiateGraph(phGraphExec, hGraph);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec) {
  CUresult result = fake_cuda::DestroyExec(hGraphExec);
  fake_cuda::CallHook("cuGraphExecDestroy");
  return result;
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream) {
  return fake_cuda::LaunchGraph(hGraphExec);
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream) {
  return fake_cuda::LaunchGraph(hGraphExec);
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  fake_cuda::Device& owner = call.state.devices[static_cast<size_t>(device)];
  fake_cuda::GiveMemory(device, owner.graph_reserved);
  owner.graph_reserved = 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr,
                                              void* value) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (attr != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<cuuint64_t*>(value) = call.state.devices[static_cast<size_t>(device)].graph_reserved;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  return fake_cuda::BeginCapture(hStream, mode);
}
CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode) {
  return fake_cuda::BeginCapture(hStream, mode);
}
CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  return fake_cuda::EndCapture(hStream, phGraph);
}
CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream hStream, CUgraph* phGraph) {
  return fake_cuda::EndCapture(hStream, phGraph);
}
CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  return fake_cuda::IsCapturing(hStream, captureStatus);
}
CUresult CUDAAPI cuStreamIsCapturing_ptsz(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  return fake_cuda::IsCapturing(hStream, captureStatus);
}
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream hStream,
                                           CUstreamCaptureStatus* captureStatus_out,
                                           cuuint64_t* id_out, CUgraph* graph_out,
                                           const CUgraphNode**, size_t* numDependencies_out) {
  return fake_cuda::CaptureInfo(hStream, captureStatus_out, id_out, graph_out, numDependencies_out);
}
CUresult CUDAAPI cuStreamGetCaptureInfo_v2_ptsz(CUstream hStream,
                                                CUstreamCaptureStatus* captureStatus_out,
                                                cuuint64_t* id_out, CUgraph* graph_out,
                                                const CUgraphNode**, size_t* numDependencies_out) {
  return fake_cuda::CaptureInfo(hStream, captureStatus_out, id_out, graph_out, numDependencies_out);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(fake_cuda::ThreadCaptureMode(), *mode);
  return CUDA_SUCCESS;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
