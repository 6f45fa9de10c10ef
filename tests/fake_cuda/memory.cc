// SPDX-License-Identifier: Apache-2.0
// Memory that belongs to contexts, host memory, copies, and attributes of pointers.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/state.h"
#include "tests/fake_cuda/work.h"

using fake_cuda::Allocation;
using fake_cuda::Call;
using fake_cuda::Kind;

namespace fake_cuda {
namespace {

CUresult Allocate(Kind kind, uint64_t bytes, uint64_t* address) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  if (ForbiddenByCapture(call.state)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (bytes == 0 || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t taken = bytes < kMiB ? RoundUp(bytes, 512) : RoundUp(bytes, kPage);
  if (taken < bytes || !TakeMemory(context->device, taken)) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = AddAllocation(call.state, {kind, bytes, context->device, context});
  if (*address != 0) return CUDA_SUCCESS;
  GiveMemory(context->device, taken);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult AllocatePitch(uint64_t width, uint64_t height, unsigned int element, uint64_t* pitch,
                       uint64_t* address) {
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  *pitch = RoundUp(width, 512);
  return Allocate(Kind::kDevice, *pitch * height, address);
}

CUresult AllocateHost(void** pointer, uint64_t bytes) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  if (bytes == 0 || pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = AddAllocation(call.state, {Kind::kHost, bytes, -1, context});
  *pointer = reinterpret_cast<void*>(address);
  return address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult MemoryInfo(uint64_t* free_bytes, uint64_t* total) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  const Device& device = call.state.devices[static_cast<size_t>(context->device)];
  *free_bytes = device.total - device.used;
  *total = device.total;
  return CUDA_SUCCESS;
}

// True if a range is in one allocation, or in mappings that lie one behind another.
bool MayTouch(State& state, uint64_t address, uint64_t bytes) {
  while (true) {
    uint64_t base = 0;
    const Allocation* allocation = FindAllocation(state, address, &base);
    if (allocation == nullptr) return false;
    const uint64_t left = allocation->size - (address - base);
    if (bytes <= left) return true;
    if (allocation->kind != Kind::kMapped) return false;
    address += left;
    bytes -= left;
  }
}

CUresult Copy(uint64_t to, uint64_t from, uint64_t bytes, bool check_to, bool check_from) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  if ((check_to && !MayTouch(call.state, to, bytes)) ||
      (check_from && !MayTouch(call.state, from, bytes))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

template <typename Item>
CUresult Fill(uint64_t address, Item value, uint64_t count) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  if (!MayTouch(call.state, address, count * sizeof(Item))) return CUDA_ERROR_INVALID_VALUE;
  Item* item = reinterpret_cast<Item*>(address);
  for (uint64_t i = 0; i < count; ++i) item[i] = value;
  return CUDA_SUCCESS;
}

uint64_t Address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Does `work` in the order of a stream. What has to wait reports no error.
template <typename Function>
CUresult OnStream(CUstream stream, Function work) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  if (!HasPending(call.state, stream)) return work();
  Submit(call.state, stream, [context, work] {
    Contexts().push_back(context);  // of any thread
    work();
    Contexts().pop_back();
  });
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake_cuda

using fake_cuda::Address;
using fake_cuda::AwaitLegacy;
using fake_cuda::Copy;
using fake_cuda::Fill;
using fake_cuda::OnStream;

extern "C" {

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  uint64_t address = 0;
  CUresult result = fake_cuda::Allocate(Kind::kDevice, bytesize, &address);
  if (result == CUDA_SUCCESS) *dptr = address;
  return result;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  uint64_t address = 0;
  CUresult result = fake_cuda::Allocate(Kind::kManaged, bytesize, &address);
  if (result == CUDA_SUCCESS) *dptr = address;
  return result;
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes,
                                    size_t Height, unsigned int ElementSizeBytes) {
  uint64_t address = 0;
  uint64_t pitch = 0;
  CUresult result =
      fake_cuda::AllocatePitch(WidthInBytes, Height, ElementSizeBytes, &pitch, &address);
  if (result != CUDA_SUCCESS) return result;
  *dptr = address;
  *pPitch = pitch;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr) {
  {
    Call call;
    CUresult ready = call.Ready();
    if (ready != CUDA_SUCCESS) return ready;
    if (fake_cuda::ForbiddenByCapture(call.state)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  fake_cuda::AwaitAll();
  Call call;
  auto found = call.state.allocations.find(dptr);
  if (found == call.state.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  switch (found->second.kind) {
    case Kind::kDevice:
    case Kind::kManaged:
      // It waits for the device.
      if (fake_cuda::ForbiddenByCapture(call.state)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      fake_cuda::RemoveAllocation(call.state, dptr);
      return CUDA_SUCCESS;
    case Kind::kPool:
      return cuMemFreeAsync(dptr, nullptr);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuMemHostAlloc(void** pp, size_t bytesize, unsigned int) {
  return fake_cuda::AllocateHost(pp, bytesize);
}

CUresult CUDAAPI cuMemAllocHost_v2(void** pp, size_t bytesize) {
  return fake_cuda::AllocateHost(pp, bytesize);
}

CUresult CUDAAPI cuMemFreeHost(void* p) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  auto found = call.state.allocations.find(Address(p));
  if (found == call.state.allocations.end() || found->second.kind != Kind::kHost) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  fake_cuda::RemoveAllocation(call.state, Address(p));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostRegister_v2(void*, size_t, unsigned int) {
  Call call;
  return call.Ready();
}

CUresult CUDAAPI cuMemHostUnregister(void*) {
  Call call;
  return call.Ready();
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
  return fake_cuda::MemoryInfo(free, total);
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  uint64_t base = 0;
  const Allocation* allocation = fake_cuda::FindAllocation(call.state, dptr, &base);
  if (allocation == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (pbase != nullptr) *pbase = base;
  if (psize != nullptr) *psize = allocation->size;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  uint64_t base = 0;
  const Allocation* allocation = fake_cuda::FindAllocation(call.state, ptr, &base);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned int*>(data) =
          allocation->kind == Kind::kHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = allocation->context;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = allocation->device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned int*>(data) = allocation->kind == Kind::kManaged ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<uint64_t*>(data) = base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = allocation->size;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(data) = allocation->kind == Kind::kDevice ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<uint64_t*>(data) = static_cast<uint64_t>(fake_cuda::HandleTypesOf(base));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(data) = allocation->pool;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// One that cannot be told is null; the driver's rule.
CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr ptr) {
  for (unsigned int i = 0; i < numAttributes; ++i) {
    CUresult result = cuPointerGetAttribute(data[i], attributes[i], ptr);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t count) {
  AwaitLegacy();
  return Copy(dst, Address(src), count, true, false);
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t count) {
  AwaitLegacy();
  return Copy(Address(dst), src, count, false, true);
}
CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t count) {
  AwaitLegacy();
  return Copy(dst, src, count, true, true);
}
CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t count,
                                      CUstream stream) {
  return OnStream(stream, [=] { return Copy(dst, Address(src), count, true, false); });
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t count, CUstream stream) {
  return OnStream(stream, [=] { return Copy(Address(dst), src, count, false, true); });
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t count, CUstream stream) {
  return OnStream(stream, [=] { return Copy(dst, src, count, false, false); });
}
CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count) {
  AwaitLegacy();
  return Fill(dst, value, count);
}
CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t count) {
  AwaitLegacy();
  return Fill(dst, value, count);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count,
                                 CUstream stream) {
  return OnStream(stream, [=] { return Fill(dst, value, count); });
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count,
                                  CUstream stream) {
  return OnStream(stream, [=] { return Fill(dst, value, count); });
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
