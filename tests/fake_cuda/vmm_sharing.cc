// SPDX-License-Identifier: Apache-2.0
// How physical memory comes to other processes and other devices.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_cuda/state.h"
#include "tests/fake_cuda/vmm.h"

using fake_cuda::Call;
using fake_cuda::FindHandle;
using fake_cuda::Handles;
using fake_cuda::Mappings;
using fake_cuda::Physical;

extern "C" {

CUresult CUDAAPI cuMemExportToShareableHandle(void* shareableHandle,
                                              CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType handleType,
                                              unsigned long long) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  const Physical* physical = FindHandle(handle);
  if (physical == nullptr || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (physical->properties.requestedHandleTypes & handleType) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *static_cast<int*>(shareableHandle) = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                void* osHandle, CUmemAllocationHandleType) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  int fd = dup(static_cast<int>(reinterpret_cast<intptr_t>(osHandle)));
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
  Physical* physical = new Physical{fd, static_cast<uint64_t>(status.st_size), -1, {}};
  // As it was made to be: else it could not have come.
  physical->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  Handles().insert(physical);
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return CUDA_SUCCESS;
}

// A descriptor of the memory, which stands for a dma-buf.
CUresult CUDAAPI cuMemGetHandleForAddressRange(void* handle, CUdeviceptr dptr, size_t size,
                                               CUmemRangeHandleType handleType,
                                               unsigned long long) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  const auto found = Mappings().find(dptr);
  if (handle == nullptr || handleType != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
      found == Mappings().end() || size > found->second.physical->size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *static_cast<int*>(handle) = dup(found->second.physical->fd);
  return CUDA_SUCCESS;
}

// A multicast object is without memory. Bound memory stays until the process ends.
CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle* mcHandle,
                                   const CUmulticastObjectProp* prop) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (mcHandle == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Physical* physical = new Physical{-1, prop->size, -1, {}};
  Handles().insert(physical);
  *mcHandle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t,
                                    CUmemGenericAllocationHandle memHandle, size_t memOffset,
                                    size_t size, unsigned long long) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  const Physical* group = FindHandle(mcHandle);
  Physical* physical = FindHandle(memHandle);
  if (group == nullptr || group->fd >= 0 || physical == nullptr || physical->fd < 0 ||
      memOffset + size > physical->size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++physical->mappings;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                                     CUdeviceptr memptr, size_t size, unsigned long long flags) {
  Call call;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(memptr));
  if (result != CUDA_SUCCESS) return result;
  result = cuMulticastBindMem(mcHandle, mcOffset, handle, 0, size, flags);
  cuMemRelease(handle);
  return result;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
