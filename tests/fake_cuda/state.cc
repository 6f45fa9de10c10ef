// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/state.h"

namespace fake_cuda {

State& TheState() {
  static State* const state = new State;  // never destroyed: programs free memory at their end
  return *state;
}

std::vector<CUcontext>& Contexts() {
  static thread_local std::vector<CUcontext> contexts;
  return contexts;
}

CUstreamCaptureMode& ThreadCaptureMode() {
  static thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

CUresult Call::Ready() const {
  if (!state.initialized || state.initialized_in != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  return CUDA_SUCCESS;
}

CUresult Call::ReadyIn(CUcontext* context) const {
  CUresult ready = Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (Contexts().empty() || state.contexts.count(Contexts().back()) == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *context = Contexts().back();
  return CUDA_SUCCESS;
}

bool TakeMemory(int device, uint64_t bytes) {
  Device& owner = TheState().devices[static_cast<size_t>(device)];
  if (bytes > owner.total - owner.used) return false;
  owner.used += bytes;
  if (owner.used > owner.peak) owner.peak = owner.used;
  return true;
}

void GiveMemory(int device, uint64_t bytes) {
  TheState().devices[static_cast<size_t>(device)].used -= bytes;
}

bool IsDevice(const State& state, CUdevice device) {
  return device >= 0 && static_cast<size_t>(device) < state.devices.size();
}

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

Allocation* FindAllocation(State& state, uint64_t address, uint64_t* base) {
  auto next = state.allocations.upper_bound(address);
  if (next == state.allocations.begin()) return nullptr;
  --next;
  if (address - next->first >= next->second.size) return nullptr;
  *base = next->first;
  return &next->second;
}

uint64_t AddAllocation(State& state, const Allocation& allocation) {
  // At addresses of pages, like the driver's, and without taking memory before it is written.
  void* host = mmap(nullptr, RoundUp(allocation.size, 4096), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (host == MAP_FAILED) return 0;
  Allocation added = allocation;
  added.host = host;
  uint64_t address = reinterpret_cast<uint64_t>(host);
  state.allocations[address] = added;
  return address;
}

namespace {

// What an allocation takes of the device by itself; a pool takes it for its blocks.
uint64_t DeviceBytes(const Allocation& allocation) {
  if (allocation.kind != Kind::kDevice && allocation.kind != Kind::kManaged) return 0;
  return RoundUp(allocation.size, allocation.size < kMiB ? 512 : kPage);
}

// Writes the peaks when the process ends.
__attribute__((destructor)) void TellPeaks() {
  const char* path = getenv("FAKE_CUDA_PEAKS");
  FILE* file = path == nullptr ? nullptr : fopen(path, "we");
  if (file == nullptr) return;
  for (const Device& device : TheState().devices) {
    fprintf(file, "%llu\n", static_cast<unsigned long long>(device.peak));
  }
  fclose(file);
}

}  // namespace

void RemoveAllocation(State& state, uint64_t address) {
  auto found = state.allocations.find(address);
  if (found == state.allocations.end()) return;
  const Allocation& allocation = found->second;
  if (allocation.device >= 0) GiveMemory(allocation.device, DeviceBytes(allocation));
  if (allocation.exported_fd >= 0) close(allocation.exported_fd);
  if (allocation.host != nullptr) munmap(allocation.host, RoundUp(allocation.size, 4096));
  state.allocations.erase(found);
}

bool ForbiddenByCapture(State& state) {
  if (state.global_captures == 0 || ThreadCaptureMode() == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return false;
  }
  for (CUstream stream : state.streams) {
    if (stream->graph != nullptr && stream->mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
      stream->broken = true;
    }
  }
  return true;
}

namespace {
std::atomic<const char*> g_hooked{nullptr};
void (*g_hook)() = nullptr;
}  // namespace

void CallHook(const char* function) {
  const char* hooked = g_hooked.load();
  if (hooked == nullptr || strcmp(hooked, function) != 0) return;
  if (g_hooked.compare_exchange_strong(hooked, nullptr)) g_hook();
}

void EmptyContext(State& state, CUcontext context) {
  std::vector<uint64_t> gone;
  for (const auto& [address, allocation] : state.allocations) {
    if (allocation.context == context) gone.push_back(address);
  }
  for (uint64_t address : gone) RemoveAllocation(state, address);
}

}  // namespace fake_cuda

extern "C" void fake_cuda_set_hook(const char* function, void (*hook)()) {
  fake_cuda::g_hook = hook;
  fake_cuda::g_hooked.store(function);
}

#endif  // GPUMEM_PRELOAD_BUILT
