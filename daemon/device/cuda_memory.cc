// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/cuda_memory.h"

#if GPUMEM_WITH_CUDA

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/trace/span.h"

namespace gpumemd {
namespace {

using gpumem::CudaDriver;
using gpumem::UniqueFd;

// The driver's error in the codes of Device::Create.
absl::Status CreateError(const CudaDriver& driver, CUresult result, const std::string& what) {
  absl::Status status = driver.Error(result, what);
  if (absl::IsResourceExhausted(status)) return status;
  // The driver has no separate error for "no descriptors left": ask the kernel.
  const UniqueFd probe(eventfd(0, EFD_CLOEXEC));
  if (!probe.valid() && (errno == EMFILE || errno == ENFILE)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(status.message(), "; raise the daemon's limit of open files"));
  }
  return absl::InternalError(status.message());
}

// Returns the NUMA node of the GPU; 0 if the driver does not say.
int HostNodeOf(const CudaDriver& driver, CUdevice device) {
  int node = 0;
  const CUresult result =
      driver.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device);
  return result == CUDA_SUCCESS ? std::max(node, 0) : 0;
}

// True if other devices of the machine can be let use memory of the location. Programs ask for that
// whenever the driver says that it is possible.
bool IsRdmaCapable(const CudaDriver& driver, const CUmemLocation& location) {
  int capable = 0;
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         driver.cuDeviceGetAttribute(&capable,
                                     CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                     location.id) == CUDA_SUCCESS &&
         capable != 0;
}

}  // namespace

CUmemLocation HostLocation(int numa_node) {
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  location.id = numa_node;
  return location;
}

absl::StatusOr<UniqueFd> MakeCudaMemory(const CudaDriver& driver, const CUmemLocation& location,
                                        uint64_t bytes, const std::string& where) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.allocFlags.gpuDirectRDMACapable = IsRdmaCapable(driver, location) ? 1 : 0;
  CUmemGenericAllocationHandle handle = 0;
  gpumem::trace::Span create("driver create", bytes);
  CUresult result = driver.cuMemCreate(&handle, bytes, &properties, 0);
  create.End();
  if (result != CUDA_SUCCESS) {
    return CreateError(driver, result,
                       absl::StrCat("allocating ", gpumem::FormatBytes(bytes), " on ", where));
  }
  // Success or not, the handle goes: exported memory belongs to its descriptors.
  const absl::Cleanup release = [&driver, handle] { driver.cuMemRelease(handle); };

  const gpumem::trace::Span span("driver export");
  int exported = -1;
  result = driver.cuMemExportToShareableHandle(&exported, handle,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) {
    return CreateError(driver, result,
                       absl::StrCat("exporting ", gpumem::FormatBytes(bytes), " on ", where));
  }
  UniqueFd fd(exported);
  if (fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InternalError(absl::ErrnoToStatus(errno, "F_SETFD").message());
  }
  return fd;
}

absl::StatusOr<UniqueFd> MakeCudaHostMemory(uint64_t bytes) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  const int node = HostNodeOf(**driver, (*driver)->devices().front().handle);
  return MakeCudaMemory(**driver, HostLocation(node), bytes,
                        absl::StrCat("NUMA node ", node, " of the host"));
}

}  // namespace gpumemd

#else

namespace gpumemd {

absl::StatusOr<gpumem::UniqueFd> MakeCudaHostMemory(uint64_t) {
  return gpumem::CudaDriver::Get().status();
}

}  // namespace gpumemd

#endif
