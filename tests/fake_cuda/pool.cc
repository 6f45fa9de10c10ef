// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory. Pools grow by steps of 32 MiB, as they have been seen to on GPUs.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "tests/fake_cuda/graph.h"
#include "tests/fake_cuda/state.h"
#include "tests/fake_cuda/work.h"

using fake_cuda::Call;

namespace fake_cuda {
namespace {

constexpr uint64_t kStep = 32 * kMiB;

std::set<CUmemoryPool>& Pools() {
  static auto* const pools = new std::set<CUmemoryPool>;
  return *pools;
}

bool IsPool(State& state, CUmemoryPool pool) {
  for (Device& device : state.devices) {
    if (pool == &device.pool) return true;
  }
  return Pools().count(pool) != 0;
}

bool Grow(CUmemoryPool pool, uint64_t bytes) {
  uint64_t needed = RoundUp(pool->used + bytes, kStep);
  if (needed > pool->reserved) {
    if (pool->device >= 0 && !TakeMemory(pool->device, needed - pool->reserved)) return false;
    pool->reserved = needed;
  }
  pool->used += bytes;
  if (pool->used > pool->used_high) pool->used_high = pool->used;
  if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
  return true;
}

// Gives back what the pool does not need, but for `keep`.
void Shrink(CUmemoryPool pool, uint64_t keep) {
  uint64_t needed = RoundUp(pool->used > keep ? pool->used : keep, kStep);
  if (needed >= pool->reserved) return;
  if (pool->device >= 0) GiveMemory(pool->device, pool->reserved - needed);
  pool->reserved = needed;
}

CUresult AllocateAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  if (bytes == 0 || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CaptureOf(call.state, stream) != nullptr) {
    return AddAllocation(call.state, CaptureOf(call.state, stream), context->device, bytes,
                         address);
  }
  if (ForbiddenByCapture(call.state)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  int device = context->device;
  if (call.state.streams.count(stream) != 0) device = stream->context->device;
  if (pool == nullptr) pool = call.state.devices[static_cast<size_t>(device)].current_pool;
  if (!IsPool(call.state, pool)) return CUDA_ERROR_INVALID_VALUE;
  if (!Grow(pool, RoundUp(bytes, 512))) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = AddAllocation(call.state, {Kind::kPool, bytes, pool->device, nullptr, pool});
  return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

// The stream has come to a free. Requires the lock.
void Free(uint64_t address, const Allocation& allocation) {
  RemoveAllocation(TheState(), address);
  if (allocation.kind != Kind::kPool) return;
  allocation.pool->used -= RoundUp(allocation.size, 512);
  if (!allocation.pool->destroyed) return;
  Shrink(allocation.pool, 0);
  if (allocation.pool->used == 0) delete allocation.pool;
}

CUresult FreeAsync(CUdeviceptr address, CUstream stream) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  auto found = call.state.allocations.find(address);
  if (found == call.state.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  const Allocation allocation = found->second;
  if (CUgraph graph = CaptureOf(call.state, stream)) {
    if (allocation.kind != Kind::kGraph) return CUDA_ERROR_INVALID_VALUE;
    return AddFree(graph, address);
  }
  if (ForbiddenByCapture(call.state)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  switch (allocation.kind) {
    case Kind::kPool:
    case Kind::kDevice:
      Submit(call.state, stream, [address, allocation] { Free(address, allocation); });
      return CUDA_SUCCESS;
    case Kind::kGraph:
      return CUDA_SUCCESS;
    case Kind::kIpc:
      return CloseImport(call.state, address);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Attribute(CUmemoryPool pool, CUmemPool_attribute attribute, uint64_t** value) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *value = &pool->threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *value = &pool->reserved;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *value = &pool->reserved_high;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *value = &pool->used;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *value = &pool->used_high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

int* Flag(CUmemoryPool pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return &pool->follow_events;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return &pool->opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return &pool->internal_dependencies;
    default:
      return nullptr;
  }
}

}  // namespace

void SynchronizePools(State& state) {
  for (Device& device : state.devices) Shrink(&device.pool, device.pool.threshold);
  for (CUmemoryPool pool : Pools()) Shrink(pool, pool->threshold);
}

void EmptyPools(State& state, int device) {
  std::vector<uint64_t> gone;
  for (const auto& [address, allocation] : state.allocations) {
    if (allocation.kind == Kind::kPool && allocation.device == device) gone.push_back(address);
  }
  for (uint64_t address : gone) {
    CUmemoryPool pool = state.allocations[address].pool;
    pool->used -= RoundUp(state.allocations[address].size, 512);
    RemoveAllocation(state, address);
  }
  Shrink(&state.devices[static_cast<size_t>(device)].pool, 0);
  std::set<CUmemoryPool> pools = Pools();
  for (CUmemoryPool pool : pools) {
    if (pool->device != device) continue;
    Shrink(pool, 0);
    Pools().erase(pool);
    delete pool;
  }
}

}  // namespace fake_cuda

using fake_cuda::AllocateAsync;
using fake_cuda::FreeAsync;

extern "C" {

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return AllocateAsync(dptr, bytesize, nullptr, hStream);
}
// Not one function with the legacy variant, as the driver's are not. The linker might fold two with
// the same code, hence the difference.
CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return AllocateAsync(dptr, bytesize, nullptr,
                       hStream == nullptr ? CU_STREAM_PER_THREAD : hStream);
}
CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                         CUstream hStream) {
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : AllocateAsync(dptr, bytesize, pool, hStream);
}
CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                              CUstream hStream) {
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE
                         : AllocateAsync(dptr, bytesize, pool,
                                         hStream == nullptr ? CU_STREAM_PER_THREAD : hStream);
}
CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  return FreeAsync(dptr, hStream);
}
CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return FreeAsync(dptr, hStream == nullptr ? CU_STREAM_PER_THREAD : hStream);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (poolProps == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool managed = false;
#if CUDA_VERSION >= 13000
  managed = poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
#endif
  if (!managed && poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((poolProps->handleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return CUDA_ERROR_NOT_PERMITTED;
  bool on_device = poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (on_device && static_cast<size_t>(poolProps->location.id) >= call.state.devices.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Managed memory counts as the first device's, wherever it is to be at first.
  *pool = new CUmemPoolHandle_st{on_device ? poolProps->location.id : managed ? 0 : -1};
  fake_cuda::Pools().insert(*pool);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (fake_cuda::Pools().erase(pool) == 0) return CUDA_ERROR_INVALID_VALUE;
  for (fake_cuda::Device& device : call.state.devices) {
    if (device.current_pool == pool) device.current_pool = &device.pool;
  }
  pool->destroyed = true;
  fake_cuda::Shrink(pool, 0);
  if (pool->used == 0) delete pool;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsPool(call.state, pool)) return CUDA_ERROR_INVALID_VALUE;
  fake_cuda::Shrink(pool, minBytesToKeep);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  uint64_t* found = nullptr;
  if (!fake_cuda::IsPool(call.state, pool)) return CUDA_ERROR_INVALID_VALUE;
  if (int* flag = fake_cuda::Flag(pool, attr)) {
    *static_cast<int*>(value) = *flag;
    return CUDA_SUCCESS;
  }
  CUresult result = fake_cuda::Attribute(pool, attr, &found);
  if (result == CUDA_SUCCESS) *static_cast<cuuint64_t*>(value) = *found;
  return result;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsPool(call.state, pool)) return CUDA_ERROR_INVALID_VALUE;
  if (int* flag = fake_cuda::Flag(pool, attr)) {
    *flag = *static_cast<const int*>(value);
    return CUDA_SUCCESS;
  }
  const uint64_t number = *static_cast<const cuuint64_t*>(value);
  switch (attr) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->threshold = number;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (number == 0) pool->reserved_high = pool->reserved;
      return number == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number == 0) pool->used_high = pool->used;
      return number == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc*, size_t) {
  Call call;
  return call.Ready();
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (static_cast<size_t>(dev) >= call.state.devices.size()) return CUDA_ERROR_INVALID_DEVICE;
  *pool_out = &call.state.devices[static_cast<size_t>(dev)].pool;
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location,
                                        CUmemAllocationType) {
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    return cuDeviceGetDefaultMemPool(pool_out, location->id);
  }
  Call call;
  static CUmemoryPool host = new CUmemPoolHandle_st{-1};
  fake_cuda::Pools().insert(host);
  *pool_out = host;
  return call.Ready();
}
#endif

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (static_cast<size_t>(dev) >= call.state.devices.size()) return CUDA_ERROR_INVALID_DEVICE;
  *pool = call.state.devices[static_cast<size_t>(dev)].current_pool;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsPool(call.state, pool)) return CUDA_ERROR_INVALID_VALUE;
  call.state.devices[static_cast<size_t>(dev)].current_pool = pool;
  return CUDA_SUCCESS;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
