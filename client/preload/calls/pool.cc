// SPDX-License-Identifier: Apache-2.0
// The driver's functions of stream-ordered memory; pool.cc keeps the books of them.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/brokered/pool.h"
#include "client/preload/calls/late_frees.h"
#include "client/preload/graph.h"
#include "client/preload/pool.h"

namespace gpumem::preload {
namespace {

// Undoes an allocation by which the pool grew beyond the limit.
template <typename Variant>
void Undo(const Driver& driver, Pool* pool, CUdeviceptr address, CUstream stream) {
  if ((driver.*Variant::kFree)(address, stream) == CUDA_SUCCESS) {
    (driver.*Variant::kSynchronize)(stream);
    driver.cuMemPoolTrimTo(pool->handle, 0);
  }
  SettlePool(driver, pool);
}

template <typename Variant, typename Call>
CUresult AllocateInPool(const Driver& driver, Pool* pool, CUdeviceptr* address, uint64_t bytes,
                        CUstream stream, Call call) {
  uint64_t growth = 0;
  CUresult result = BeginPoolAllocation(pool, bytes, &growth);
  if (result != CUDA_SUCCESS) return result;
  result = call();
  bool paid = EndPoolAllocation(driver, pool, bytes, growth, result == CUDA_SUCCESS);
  if (result != CUDA_SUCCESS) return result;
  if (!paid) {
    Undo<Variant>(driver, pool, *address, stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  PutPoolBlock(*address, {bytes, pool});
  return CUDA_SUCCESS;
}

// True if a stream is one of the constants that stand for default streams.
bool IsDefaultStream(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

// Returns the device whose pool an allocation on a stream comes from.
bool DeviceOfStream(const Driver& driver, CUstream stream, int* device) {
  uint64_t context = 0;
  if (DeviceCount() == 1) {
    *device = 0;
    return true;
  }
  if (!IsDefaultStream(stream)) {
    CUcontext owner = nullptr;
    if (driver.cuStreamGetCtx(stream, &owner) == CUDA_SUCCESS && owner != nullptr &&
        CurrentContext(driver, &context, device) && context == reinterpret_cast<uint64_t>(owner)) {
      return true;
    }
    if (owner != nullptr && driver.cuCtxPushCurrent_v2(owner) == CUDA_SUCCESS) {
      bool known = CurrentContext(driver, &context, device);
      driver.cuCtxPopCurrent_v2(&owner);
      return known;
    }
  }
  return CurrentContext(driver, &context, device);
}

// The functions of one kind of default stream.
struct Legacy {
  static constexpr auto kFree = &Driver::cuMemFreeAsync;
  static constexpr auto kSynchronize = &Driver::cuStreamSynchronize;
  static constexpr bool kPerThread = false;
};
struct PerThread {
  static constexpr auto kFree = &Driver::cuMemFreeAsync_ptsz;
  static constexpr auto kSynchronize = &Driver::cuStreamSynchronize_ptsz;
  static constexpr bool kPerThread = true;
};

// Names the default stream, which is another one in the functions for per-thread default streams.
template <typename Variant>
CUstream NamedStream(CUstream stream) {
  if (stream != nullptr) return stream;
  return Variant::kPerThread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

// Allocates from `pool`, or, if that is null, from the current pool of the stream's device.
template <typename Variant, typename Call>
CUresult AllocateAsync(CUdeviceptr* address, uint64_t bytes, CUmemoryPool handle, CUstream stream,
                       Call call) {
  Entry entry;
  const Driver& driver = entry.driver;
  int device = -1;
  if (!entry.outermost || address == nullptr || !DeviceOfStream(driver, stream, &device)) {
    return call(driver);
  }
  CUgraph graph = CapturedGraph(driver, stream, Variant::kPerThread);
  if (graph != nullptr) {
    return AllocateInGraph(driver, graph, device, bytes, address, [&] { return call(driver); });
  }
  // The lists of devices are known once something has been reserved.
  CUresult result = EnsureContext(device);
  if (result != CUDA_SUCCESS) return result;
  if (handle == nullptr) handle = CurrentPool(driver, device);
  if (handle == nullptr) return call(driver);
  uint64_t brokered = 0;
  if (AllocateBrokered(entry, {device, handle, NamedStream<Variant>(stream), bytes}, &brokered,
                       &result)) {
    if (result == CUDA_SUCCESS) *address = brokered;
    return result;
  }
  Pool* pool = FindPool(driver, handle, device);
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pool->device < 0) return call(driver);
  return AllocateInPool<Variant>(driver, pool, address, bytes, stream,
                                 [&] { return call(driver); });
}

template <typename Variant>
CUresult FreeAsync(CUdeviceptr address, CUstream stream) {
  Entry entry;
  const Driver& driver = entry.driver;
  auto call = [&] { return (driver.*Variant::kFree)(address, stream); };
  if (!entry.outermost) return call();
  CUresult brokered;
  if (FreeBrokered(entry, address, NamedStream<Variant>(stream), &brokered)) return brokered;
  CUgraph graph = CapturedGraph(driver, stream, Variant::kPerThread);
  if (graph != nullptr) {
    CUresult result = call();
    if (result == CUDA_SUCCESS) FreeInGraph(graph, address);
    return result;
  }
  PoolBlock block;
  if (TakePoolBlock(address, &block)) {
    CUresult result = call();
    if (result == CUDA_SUCCESS) {
      DropPoolBlock(block);
    } else {
      PutPoolBlock(address, block);
    }
    return result;
  }
  // Memory of cuMemAlloc().
  Record record;
  bool known = g_pointers.Take(address, &record);
  CUresult result = call();
  if (known && result == CUDA_SUCCESS)
    RefundInOrder(driver, record.charge, NamedStream<Variant>(stream));
  if (known && result != CUDA_SUCCESS) g_pointers.Put(address, record);
  return result;
}

// Returns the device whose memory a pool takes; -1 for the host's. The driver moves managed memory
// to the device that uses it, wherever it is to be at first.
int DeviceToChargeFor([[maybe_unused]] const Driver& driver, const CUmemPoolProps& properties) {
  if (properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE) return properties.location.id;
#if CUDA_VERSION >= 13000
  if (properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED) {
    uint64_t context = 0;
    int device = 0;
    return CurrentContext(driver, &context, &device) ? device : 0;
  }
#endif
  return -1;
}

#if CUDA_VERSION >= 13000
// Registers a pool that the program has asked for: if it is the host's, it is not charged.
CUresult NotePool(const Entry& entry, CUresult result, const CUmemoryPool* pool,
                  const CUmemLocation* location, CUmemAllocationType type) {
  if (result == CUDA_SUCCESS && entry.outermost && type == CU_MEM_ALLOCATION_TYPE_PINNED &&
      location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    FindPool(entry.driver, *pool, -1);
  }
  return result;
}
#endif

template <typename Call>
CUresult DestroyStream(const Entry& entry, CUstream stream, Call call) {
  if (!entry.outermost || !IsBrokered()) return call();
  if (IsAnyCaptured() && IsCaptured(entry.driver, stream)) {
    // gpumem's pool needs an event of the stream. So one that another stream's capture has reached
    // stays until the end of it. A capture goes with the stream that it has begun on.
    if (EndsCapture(stream)) {
      CUgraph graph = nullptr;
      if (entry.driver.cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS) {
        entry.driver.cuGraphDestroy(graph);
      }
      CaptureEnds();
    } else if (DestroyAfterCaptures(stream)) {
      return CUDA_SUCCESS;
    }
  }
  ForgetStream(stream);
  return call();
}

// After a synchronization, at which pools give back memory above their threshold.
CUresult AfterSynchronize(const Entry& entry, CUresult result) {
  if (entry.outermost && PoolsHaveChanged()) SettlePools(-1);
  return result;
}

}  // namespace
}  // namespace gpumem::preload

using gpumem::preload::AfterSynchronize;
using gpumem::preload::AllocateAsync;
using gpumem::preload::DestroyStream;
using gpumem::preload::DeviceToChargeFor;
using gpumem::preload::Driver;
using gpumem::preload::Entry;
using gpumem::preload::FreeAsync;
using gpumem::preload::IsBrokered;
using gpumem::preload::Legacy;
#if CUDA_VERSION >= 13000
using gpumem::preload::NotePool;
#endif
using gpumem::preload::PerThread;
using gpumem::preload::TrimBrokeredPool;

extern "C" {

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return AllocateAsync<Legacy>(dptr, bytesize, nullptr, hStream, [&](const Driver& driver) {
    return driver.cuMemAllocAsync(dptr, bytesize, hStream);
  });
}

CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return AllocateAsync<PerThread>(dptr, bytesize, nullptr, hStream, [&](const Driver& driver) {
    return driver.cuMemAllocAsync_ptsz(dptr, bytesize, hStream);
  });
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                         CUstream hStream) {
  return AllocateAsync<Legacy>(dptr, bytesize, pool, hStream, [&](const Driver& driver) {
    return driver.cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream);
  });
}

CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                              CUstream hStream) {
  return AllocateAsync<PerThread>(dptr, bytesize, pool, hStream, [&](const Driver& driver) {
    return driver.cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream);
  });
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  return FreeAsync<Legacy>(dptr, hStream);
}

CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return FreeAsync<PerThread>(dptr, hStream);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  Entry entry;
  CUresult result = entry.driver.cuMemPoolCreate(pool, poolProps);
  if (result != CUDA_SUCCESS || !entry.outermost) return result;
  gpumem::preload::AddPool(*pool, DeviceToChargeFor(entry.driver, *poolProps));
  return result;
}

// The process that exports a pool is charged for it.
CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle,
                                                    CUmemAllocationHandleType handleType,
                                                    unsigned long long flags) {
  Entry entry;
  CUresult result =
      entry.driver.cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags);
  if (result != CUDA_SUCCESS || !entry.outermost) return result;
  gpumem::preload::AddPool(*pool_out, -1);
  return result;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  Entry entry;
  CUresult result = entry.driver.cuDeviceSetMemPool(dev, pool);
  gpumem::preload::ForgetCurrentPools();
  return result;
}

#if CUDA_VERSION >= 13000
CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location,
                                        CUmemAllocationType type) {
  Entry entry;
  CUresult result = entry.driver.cuMemGetDefaultMemPool(pool_out, location, type);
  return NotePool(entry, result, pool_out, location, type);
}

CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                 CUmemAllocationType type) {
  Entry entry;
  CUresult result = entry.driver.cuMemGetMemPool(pool, location, type);
  return NotePool(entry, result, pool, location, type);
}

CUresult CUDAAPI cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                                 CUmemoryPool pool) {
  Entry entry;
  CUresult result = entry.driver.cuMemSetMemPool(location, type, pool);
  gpumem::preload::ForgetCurrentPools();
  return result;
}
#endif

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) {
  Entry entry;
  if (!entry.outermost) return entry.driver.cuMemPoolDestroy(pool);
  return gpumem::preload::DestroyPool(entry.driver, pool);
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  Entry entry;
  if (entry.outermost && IsBrokered()) {
    minBytesToKeep = TrimBrokeredPool(entry.driver, pool, minBytesToKeep);
  }
  CUresult result = entry.driver.cuMemPoolTrimTo(pool, minBytesToKeep);
  if (entry.outermost) gpumem::preload::SettlePools(-1);
  return result;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
  Entry entry;
  return AfterSynchronize(entry, entry.driver.cuStreamSynchronize(hStream));
}

CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream hStream) {
  Entry entry;
  return AfterSynchronize(entry, entry.driver.cuStreamSynchronize_ptsz(hStream));
}

CUresult CUDAAPI cuCtxSynchronize() {
  Entry entry;
  return AfterSynchronize(entry, entry.driver.cuCtxSynchronize());
}

#if CUDA_VERSION >= 13000
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx) {
  Entry entry;
  return AfterSynchronize(entry, entry.driver.cuCtxSynchronize_v2(ctx));
}
#endif

CUresult CUDAAPI cuStreamDestroy(CUstream hStream) {
  Entry entry;
  return DestroyStream(entry, hStream, [&] { return entry.driver.cuStreamDestroy(hStream); });
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream hStream) {
  Entry entry;
  return DestroyStream(entry, hStream, [&] { return entry.driver.cuStreamDestroy_v2(hStream); });
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
