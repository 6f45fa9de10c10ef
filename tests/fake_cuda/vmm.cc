// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: physical memory is a memfd, so that it can be mapped and exported.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/state.h"
#include "tests/fake_cuda/vmm.h"

using fake_cuda::Allocation;
using fake_cuda::Call;
using fake_cuda::Kind;
using fake_cuda::kPage;

namespace fake_cuda {

std::map<uint64_t, Mapped>& Mappings() {
  static auto* const mappings = new std::map<uint64_t, Mapped>;
  return *mappings;
}
std::set<Physical*>& Handles() {
  static auto* const handles = new std::set<Physical*>;
  return *handles;
}

Physical* FindHandle(CUmemGenericAllocationHandle handle) {
  Physical* physical = reinterpret_cast<Physical*>(handle);
  return Handles().count(physical) == 0 ? nullptr : physical;
}

namespace {

// What sparse arrays have of it, by the array and the place in it, of which only the offset and the
// level count. Stays, like an array's other memory, until it is unmapped.
using Tile = std::pair<const void*, uint64_t>;
std::map<Tile, Physical*>& Tiles() {
  static auto* const tiles = new std::map<Tile, Physical*>;
  return *tiles;
}

void DropPhysical(Physical* physical) {
  if (physical->handles == 0) Handles().erase(physical);
  if (physical->handles != 0 || physical->mappings != 0) return;
  if (physical->device >= 0) GiveMemory(physical->device, physical->size);
  if (physical->fd >= 0) close(physical->fd);
  delete physical;
}

CUresult Unmap(State& state, uint64_t address, Physical* physical) {
  // Still reserved.
  if (mmap(reinterpret_cast<void*>(address), physical->size, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return CUDA_ERROR_UNKNOWN;
  }
  state.allocations.erase(address);
  Mappings().erase(address);
  --physical->mappings;
  DropPhysical(physical);
  return CUDA_SUCCESS;
}

void DropTile(const Tile& tile) {
  auto found = Tiles().find(tile);
  if (found == Tiles().end()) return;
  Physical* physical = found->second;
  Tiles().erase(found);
  --physical->mappings;
  DropPhysical(physical);
}

CUresult MapArray(const CUarrayMapInfo* list, unsigned int count) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  for (unsigned int i = 0; i < count; ++i) {
    const Tile tile = {list[i].resource.array,
                       list[i].subresource.sparseLevel.offsetX |
                           uint64_t{list[i].subresource.sparseLevel.level} << 32};
    Physical* physical = nullptr;
    if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
      physical = FindHandle(list[i].memHandle.memHandle);
      if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
      ++physical->mappings;
    }
    DropTile(tile);
    if (physical != nullptr) Tiles()[tile] = physical;
  }
  return CUDA_SUCCESS;
}

}  // namespace

int HandleTypesOf(uint64_t base) {
  const auto found = Mappings().find(base);
  return found == Mappings().end() ? 0 : found->second.physical->properties.requestedHandleTypes;
}

void DropTiles(const void* array) {
  auto next = Tiles().lower_bound({array, 0});
  while (next != Tiles().end() && next->first.first == array) {
    const Tile tile = next->first;
    ++next;
    DropTile(tile);
  }
}

}  // namespace fake_cuda

using fake_cuda::FindHandle;
using fake_cuda::Handles;
using fake_cuda::Mappings;
using fake_cuda::Physical;

extern "C" {

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                               CUmemAllocationGranularity_flags) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (granularity == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kPage;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* prop, unsigned long long flags) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (handle == nullptr || prop == nullptr || flags != 0 || size == 0 || size % kPage != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  bool on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  int device = on_device ? prop->location.id : -1;
  if (on_device && static_cast<size_t>(device) >= call.state.devices.size()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (on_device && !fake_cuda::TakeMemory(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) {
    if (fd >= 0) close(fd);
    if (on_device) fake_cuda::GiveMemory(device, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Physical* physical = new Physical{fd, size, device, *prop};
  Handles().insert(physical);
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  Physical* physical = FindHandle(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  --physical->handles;
  fake_cuda::DropPhysical(physical);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t, CUdeviceptr,
                                     unsigned long long) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (size == 0 || size % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  void* found =
      mmap(nullptr, size + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  // At a multiple of the page; the rest before and behind it goes back.
  uint64_t begin = reinterpret_cast<uint64_t>(found);
  uint64_t aligned = fake_cuda::RoundUp(begin, kPage);
  if (aligned != begin) munmap(found, aligned - begin);
  if (begin + kPage != aligned) {
    munmap(reinterpret_cast<void*>(aligned + size), begin + kPage - aligned);
  }
  *ptr = aligned;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  auto next = Mappings().lower_bound(ptr);
  if (next != Mappings().end() && next->first < ptr + size) return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(ptr), size);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  Physical* physical = FindHandle(handle);
  if (physical == nullptr || offset != 0 || size != physical->size || ptr % kPage != 0 ||
      Mappings().count(ptr) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mmap(reinterpret_cast<void*>(ptr), size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd,
           0) == MAP_FAILED) {
    return CUDA_ERROR_UNKNOWN;
  }
  Mappings()[ptr] = {physical};
  ++physical->mappings;
  call.state.allocations[ptr] = Allocation{Kind::kMapped, size, physical->device};
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  auto next = Mappings().lower_bound(ptr);
  if (next == Mappings().end() || next->first >= ptr + size) return CUDA_ERROR_INVALID_VALUE;
  while (next != Mappings().end() && next->first < ptr + size) {
    const uint64_t address = next->first;
    Physical* const physical = next->second.physical;
    ++next;
    if (address + physical->size > ptr + size) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fake_cuda::Unmap(call.state, address, physical);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc,
                                size_t count) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  // All of it must be mapped, and no mapping in part.
  uint64_t end = ptr;
  for (auto next = Mappings().find(ptr); end < ptr + size; ++next) {
    if (next == Mappings().end() || next->first != end) return CUDA_ERROR_INVALID_VALUE;
    end += next->second.physical->size;
  }
  if (end != ptr + size) return CUDA_ERROR_INVALID_VALUE;
  // Memory of another process is of a device, too.
  auto mapped = call.state.allocations.lower_bound(ptr);
  for (; mapped != call.state.allocations.end() && mapped->first < ptr + size; ++mapped) {
    mapped->second.device = desc[0].location.id;
  }
  for (auto next = Mappings().find(ptr); next != Mappings().end() && next->first < end; ++next) {
    int protection = PROT_NONE;
    auto& access = next->second.access;
    for (size_t i = 0; i < count; ++i) {
      access[{desc[i].location.type, desc[i].location.id}] = desc[i].flags;
    }
    for (const auto& [location, flags] : access) {
      if (flags == CU_MEM_ACCESS_FLAGS_PROT_READ) protection |= PROT_READ;
      if (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_READ | PROT_WRITE;
    }
    if (mprotect(reinterpret_cast<void*>(next->first), next->second.physical->size, protection) !=
        0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                CUdeviceptr ptr) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  auto next = Mappings().upper_bound(ptr);
  if (flags == nullptr || location == nullptr || next == Mappings().begin()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  --next;
  if (ptr >= next->first + next->second.physical->size) return CUDA_ERROR_INVALID_VALUE;
  const auto found = next->second.access.find({location->type, location->id});
  *flags = found == next->second.access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : found->second;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMapArrayAsync(CUarrayMapInfo* mapInfoList, unsigned int count, CUstream) {
  return fake_cuda::MapArray(mapInfoList, count);
}
CUresult CUDAAPI cuMemMapArrayAsync_ptsz(CUarrayMapInfo* mapInfoList, unsigned int count,
                                         CUstream) {
  return fake_cuda::MapArray(mapInfoList, count);
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  uint64_t at = reinterpret_cast<uint64_t>(addr);
  auto next = Mappings().upper_bound(at);
  if (next == Mappings().begin()) return CUDA_ERROR_INVALID_VALUE;
  --next;
  Physical* const physical = next->second.physical;
  if (at >= next->first + physical->size) return CUDA_ERROR_INVALID_VALUE;
  const char* const refused = getenv("FAKE_CUDA_REFUSE_RETAIN");
  if (refused != nullptr && access(refused, F_OK) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  ++physical->handles;
  Handles().insert(physical);
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                        CUmemGenericAllocationHandle handle) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  const Physical* physical = FindHandle(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = physical->properties;
  return CUDA_SUCCESS;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
