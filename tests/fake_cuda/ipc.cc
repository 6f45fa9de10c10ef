// SPDX-License-Identifier: Apache-2.0
// Memory of other processes of the same user: the memory becomes a memfd when it is first exported,
// and its handle says where in /proc the file is.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/fake_cuda/state.h"

using fake_cuda::Call;
using fake_cuda::Kind;

namespace fake_cuda {
namespace {

// What a handle of 64 bytes holds.
struct Exported {
  char magic[8];
  int pid;
  int fd;
  uint64_t size;
};
constexpr char kMagic[8] = "fakeipc";

struct Imported {
  uint64_t address;
  int times;
};

// Imports by process and descriptor, under the state's lock: a second one has the same address.
std::map<std::pair<int, int>, Imported>& Imports() {
  static auto* const imports = new std::map<std::pair<int, int>, Imported>;
  return *imports;
}

CUresult ExportMemory(State& state, uint64_t address, Kind kind, Exported* exported) {
  auto found = state.allocations.find(address);
  if (found == state.allocations.end() || found->second.kind != kind) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Allocation& allocation = found->second;
  if (allocation.exported_fd < 0) {
    uint64_t mapped = RoundUp(allocation.size, 4096);
    int fd = memfd_create("fake-cuda-ipc", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(mapped)) != 0) {
      if (fd >= 0) close(fd);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    // The contents move into the file, and the file to the same address.
    void* at = reinterpret_cast<void*>(address);
    if (pwrite(fd, at, allocation.size, 0) != static_cast<ssize_t>(allocation.size) ||
        mmap(at, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
      close(fd);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation.exported_fd = fd;
  }
  *exported = {{}, getpid(), allocation.exported_fd, allocation.size};
  memcpy(exported->magic, kMagic, sizeof(kMagic));
  return CUDA_SUCCESS;
}

CUresult ImportMemory(State& state, const Exported& exported, int device, uint64_t* address) {
  if (memcmp(exported.magic, kMagic, sizeof(kMagic)) != 0) return CUDA_ERROR_INVALID_VALUE;
  // As the driver, which has no second mapping in the process that exports.
  if (exported.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  auto known = Imports().find({exported.pid, exported.fd});
  if (known != Imports().end()) {
    ++known->second.times;
    *address = known->second.address;
    return CUDA_SUCCESS;
  }
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", exported.pid, exported.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(nullptr, RoundUp(exported.size, 4096), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<uint64_t>(at);
  Allocation allocation = {Kind::kIpc, exported.size, device};
  allocation.host = at;
  state.allocations[*address] = allocation;
  Imports()[{exported.pid, exported.fd}] = {*address, 1};
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CloseImport(State& state, uint64_t address) {
  for (auto import = Imports().begin(); import != Imports().end(); ++import) {
    if (import->second.address != address) continue;
    if (--import->second.times == 0) {
      RemoveAllocation(state, address);
      Imports().erase(import);
    }
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace fake_cuda

using fake_cuda::Exported;
static_assert(sizeof(Exported) <= sizeof(CUipcMemHandle));
static_assert(sizeof(Exported) <= sizeof(CUmemPoolPtrExportData));

extern "C" {

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  Exported exported;
  CUresult result = fake_cuda::ExportMemory(call.state, dptr, Kind::kDevice, &exported);
  if (result == CUDA_SUCCESS) memcpy(pHandle, &exported, sizeof(exported));
  return result;
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  Exported exported;
  memcpy(&exported, &handle, sizeof(exported));
  uint64_t address = 0;
  CUresult result = fake_cuda::ImportMemory(call.state, exported, context->device, &address);
  if (result == CUDA_SUCCESS) *pdptr = address;
  return result;
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr) {
  Call call;
  CUresult ready = call.Ready();
  return ready == CUDA_SUCCESS ? fake_cuda::CloseImport(call.state, dptr) : ready;
}

// Work on streams is done at once, so an event of another process is always complete.
CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent) {
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) memset(pHandle, 1, sizeof(*pHandle));
  return ready;
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle) {
  return cuEventCreate(phEvent, CU_EVENT_DISABLE_TIMING);
}

// The descriptor stands for the pool, and says nothing.
CUresult CUDAAPI cuMemPoolExportToShareableHandle(void* handle_out, CUmemoryPool pool,
                                                  CUmemAllocationHandleType handleType,
                                                  unsigned long long) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (pool == nullptr || pool->standard || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int fd = memfd_create("fake-cuda-pool", MFD_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(handle_out) = fd;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle,
                                                    CUmemAllocationHandleType, unsigned long long) {
  if (fcntl(static_cast<int>(reinterpret_cast<intptr_t>(handle)), F_GETFD) < 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
  return cuMemPoolCreate(pool_out, &properties);
}

CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData* shareData_out, CUdeviceptr ptr) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  Exported exported;
  uint64_t base = 0;
  const fake_cuda::Allocation* allocation = fake_cuda::FindAllocation(call.state, ptr, &base);
  // A default pool cannot be exported.
  if (allocation != nullptr && allocation->pool != nullptr && allocation->pool->standard) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = fake_cuda::ExportMemory(call.state, ptr, Kind::kPool, &exported);
  if (result == CUDA_SUCCESS) memcpy(shareData_out, &exported, sizeof(exported));
  return result;
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr* ptr_out, CUmemoryPool,
                                        CUmemPoolPtrExportData* shareData) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  Exported exported;
  memcpy(&exported, shareData, sizeof(exported));
  uint64_t address = 0;
  CUresult result = fake_cuda::ImportMemory(call.state, exported, -1, &address);
  if (result == CUDA_SUCCESS) *ptr_out = address;
  return result;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
