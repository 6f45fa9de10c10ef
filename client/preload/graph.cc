// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate when they run.
//
// The driver keeps it in one pool for each device, which all graphs of the process share, and takes
// it from the device when a graph is uploaded or first launched. Then it is too late to refuse. So
// each graph is charged in advance, when its nodes are made. The charge is the most that it has
// allocated and not freed, in the order of its nodes. The device is charged for the largest graph.
// After each launch the driver's own figure is read, and charged if it is larger: for graphs that
// run at the same time, or whose branches do.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <atomic>

#include "client/preload/books.h"
#include "client/preload/graph.h"

namespace gpumem::preload {
namespace {

struct GraphPointer {
  uint64_t graph;  // its id
  uint64_t bytes;
};

Mutex g_graphs_mutex;
// Graphs with allocations, and executable graphs made of such: handles of both are addresses.
HashMap<Graph> g_graphs;
HashMap<GraphPointer> g_graph_pointers;
uint64_t g_last_graph = 0;  // id
uint64_t g_graphs_charged[kMaxDevices];
std::atomic<bool> g_captured{false};  // a capture has begun in this process
std::atomic<bool> g_any{false};       // a graph of this process has allocations

uint64_t PageUp(uint64_t bytes) {
  constexpr uint64_t kPage = uint64_t{2} << 20;
  return bytes > (uint64_t{1} << 60) ? bytes : (bytes + kPage - 1) / kPage * kPage;
}

// Requires g_graphs_mutex.
uint64_t LargestPeak(int device) {
  uint64_t most = 0;
  g_graphs.ForEach([&](uint64_t, const Graph& graph) {
    if (graph.device == device && graph.memory.peak > most) most = graph.memory.peak;
  });
  return most;
}

uint64_t HeldByGraphs(const Driver& driver, int device) {
  cuuint64_t bytes = 0;
  if (driver.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) !=
      CUDA_SUCCESS) {
    return 0;
  }
  return bytes;
}

// Requires g_graphs_mutex.
bool SettleDevice(const Driver& driver, int device) {
  uint64_t target = HeldByGraphs(driver, device);
  uint64_t peak = LargestPeak(device);
  if (peak > target) target = peak;
  uint64_t before = g_graphs_charged[device];
  if (target > before) {
    if (ReserveShared(device, target - before) != CUDA_SUCCESS) {
      ChargeAnyway(device, target - before);
    }
  } else {
    RefundShared(device, before - target);
  }
  g_graphs_charged[device] = target;
  return target < before;
}

// Requires g_graphs_mutex. Raises the charge to a graph's new peak.
CUresult RaiseTo(int device, uint64_t peak) {
  if (peak <= g_graphs_charged[device]) return CUDA_SUCCESS;
  CUresult result = ReserveShared(device, peak - g_graphs_charged[device]);
  if (result == CUDA_SUCCESS) g_graphs_charged[device] = peak;
  return result;
}

}  // namespace

void NoteCapture() { g_captured.store(true, std::memory_order_release); }

CUgraph CapturedGraph(const Driver& driver, CUstream stream, bool per_thread) {
  if (!g_captured.load(std::memory_order_acquire)) return nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = per_thread ? driver.cuStreamIsCapturing_ptsz(stream, &status)
                               : driver.cuStreamIsCapturing(stream, &status);
  if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return nullptr;
  CUgraph graph = nullptr;
  auto info = per_thread ? driver.cuStreamGetCaptureInfo_v2_ptsz : driver.cuStreamGetCaptureInfo_v2;
  if (info(stream, &status, nullptr, &graph, nullptr, nullptr) != CUDA_SUCCESS) return nullptr;
  return graph;
}

CUresult PlanGraphAllocation(uint64_t graph, int device, uint64_t bytes, GraphPeak* before) {
  if (device < 0 || device >= kMaxDevices) return CUDA_SUCCESS;  // the driver refuses it
  CUresult result = EnsureContext(device);
  for (int attempt = 0; result == CUDA_SUCCESS; ++attempt) {
    uint64_t lack = 0;
    {
      MutexLock lock(&g_graphs_mutex);
      g_any.store(true, std::memory_order_release);
      const Graph* known = g_graphs.Get(graph);
      *before = known == nullptr ? GraphPeak() : known->memory;
      Graph now = {device, known == nullptr ? ++g_last_graph : known->id, *before};
      now.memory.live += PageUp(bytes);
      if (now.memory.live > now.memory.peak) now.memory.peak = now.memory.live;
      result = RaiseTo(device, now.memory.peak);
      if (result == CUDA_SUCCESS) {
        return g_graphs.Put(graph, now) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
      }
      lack = now.memory.peak - g_graphs_charged[device];
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY || attempt == 2) break;
    result = CUDA_SUCCESS;
    if (attempt == 0) {
      SettleBooks(device);
    } else if ((result = ReserveWaiting(device, lack)) == CUDA_SUCCESS) {
      MutexLock lock(&g_graphs_mutex);
      g_graphs_charged[device] += lack;  // for the next attempt, or until the books are settled
    }
  }
  return result;
}

void CancelGraphAllocation(uint64_t graph, const GraphPeak& before) {
  MutexLock lock(&g_graphs_mutex);
  Graph* known = g_graphs.Get(graph);
  if (known == nullptr) return;
  int device = known->device;
  known->memory = before;
  Graph gone;
  if (before.peak == 0) g_graphs.Take(graph, &gone);
  SettleDevice(RealDriver(), device);
}

void RememberGraphPointer(uint64_t graph, uint64_t address, uint64_t bytes) {
  MutexLock lock(&g_graphs_mutex);
  const Graph* known = g_graphs.Get(graph);
  if (known != nullptr) g_graph_pointers.Put(address, {known->id, PageUp(bytes)});
}

void FreeInGraph(CUgraph graph, uint64_t address) {
  MutexLock lock(&g_graphs_mutex);
  GraphPointer pointer = {};
  if (!g_graph_pointers.Take(address, &pointer)) return;
  Graph* known = g_graphs.Get(reinterpret_cast<uint64_t>(graph));
  if (known == nullptr || pointer.graph != known->id) return;
  known->memory.live -= pointer.bytes < known->memory.live ? pointer.bytes : known->memory.live;
}

void CopyGraph(uint64_t original, uint64_t copy) {
  if (!g_any.load(std::memory_order_acquire)) return;
  MutexLock lock(&g_graphs_mutex);
  const Graph* graph = g_graphs.Get(original);
  if (graph == nullptr) return;
  g_graphs.Put(copy, {graph->device, ++g_last_graph, graph->memory});
}

bool TakeGraph(uint64_t graph, Graph* taken) {
  if (!g_any.load(std::memory_order_acquire)) return false;
  MutexLock lock(&g_graphs_mutex);
  return g_graphs.Take(graph, taken);
}

void PutGraph(uint64_t graph, const Graph& taken) {
  MutexLock lock(&g_graphs_mutex);
  g_graphs.Put(graph, taken);
}

void DropGraph(const Graph& taken) {
  MutexLock lock(&g_graphs_mutex);
  g_graph_pointers.RemoveIf(
      [&](uint64_t, const GraphPointer& pointer) { return pointer.graph == taken.id; });
  SettleDevice(RealDriver(), taken.device);
}

Graph FindGraph(uint64_t graph) {
  if (!g_any.load(std::memory_order_acquire)) return {};
  MutexLock lock(&g_graphs_mutex);
  const Graph* known = g_graphs.Get(graph);
  return known == nullptr ? Graph() : *known;
}

void SettleAfterLaunch(const Driver& driver, CUgraphExec exec) {
  if (!g_any.load(std::memory_order_acquire)) return;
  MutexLock lock(&g_graphs_mutex);
  const Graph* graph = g_graphs.Get(reinterpret_cast<uint64_t>(exec));
  if (graph != nullptr) SettleDevice(driver, graph->device);
}

bool SettleGraphs(int device) {
  if (!g_any.load(std::memory_order_acquire)) return false;
  MutexLock lock(&g_graphs_mutex);
  bool less = false;
  for (int i = 0; i < DeviceCount() && i < kMaxDevices; ++i) {
    if (device >= 0 && i != device) continue;
    less = SettleDevice(RealDriver(), i) || less;
  }
  return less;
}

void AbandonGraphs() {
  g_graphs_mutex.Reset();
  g_graphs.Abandon();
  g_graph_pointers.Abandon();
  for (uint64_t& bytes : g_graphs_charged) bytes = 0;
  g_any.store(false);
}

}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
