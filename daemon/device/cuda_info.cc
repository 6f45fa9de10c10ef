// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/cuda_info.h"

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gpumemd {
namespace {

using gpumem::CudaDriver;

// Allocations share no such block: the driver hands memory out in blocks of this size.
constexpr uint64_t kBlockBytes = uint64_t{2} << 20;

// In steps of this size a memory pool takes memory from the GPU (measured: driver 580). Only of
// whole steps is it known whose they are: two segments that shared one would be charged for less
// than their pool holds.
constexpr uint64_t kPoolStepBytes = uint64_t{32} << 20;

// Asks one device for its properties; the first error sticks.
class Query {
 public:
  Query(const CudaDriver& driver, CUdevice device) : driver_(driver), device_(device) {}

  int Attribute(CUdevice_attribute attribute) {
    int value = 0;
    Check(driver_.cuDeviceGetAttribute(&value, attribute, device_));
    return value;
  }

  // Zero from a driver that is older than the question.
  int AttributeIfKnown(CUdevice_attribute attribute) const {
    int value = 0;
    const CUresult result = driver_.cuDeviceGetAttribute(&value, attribute, device_);
    return result == CUDA_SUCCESS ? value : 0;
  }

  std::string Name() {
    char name[256] = "";
    Check(driver_.cuDeviceGetName(name, sizeof(name), device_));
    return name;
  }

  uint64_t TotalBytes() {
    size_t bytes = 0;
    Check(driver_.cuDeviceTotalMem_v2(&bytes, device_));
    return bytes;
  }

  // The minimum, not the recommended one. Sizes are charged exactly as the driver takes them; for
  // larger pages, request larger segments. (Both are 2 MiB on all known GPUs.)
  uint64_t Granularity() {
    size_t bytes = 0;
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    Check(driver_.cuMemGetAllocationGranularity(&bytes, &properties,
                                                CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return bytes;
  }

  std::vector<Kind> Kinds() const {
    std::vector<Kind> kinds;
    if (AttributeIfKnown(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0 &&
        AttributeIfKnown(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0) {
      kinds.push_back(Kind::kVmm);
    }
    const int pool_handles = AttributeIfKnown(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
    if (AttributeIfKnown(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) != 0 &&
        (pool_handles & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
      kinds.push_back(Kind::kMempool);
    }
    // Legacy IPC has no separate attribute for memory: it is available if its events are.
    if (AttributeIfKnown(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) != 0 &&
        AttributeIfKnown(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED) != 0 &&
        AttributeIfKnown(CU_DEVICE_ATTRIBUTE_INTEGRATED) == 0) {
      kinds.push_back(Kind::kIpc);
    }
    return kinds;
  }

  PeerAccess Peer(const CudaDriver::VisibleDevice& other) {
    PeerAccess peer{.uuid = other.uuid};
    int access = 0;
    Check(driver_.cuDeviceCanAccessPeer(&access, device_, other.handle));
    if (access == 0) return peer;
    peer.access = true;
    int atomics = 0;
    Check(driver_.cuDeviceGetP2PAttribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                          device_, other.handle));
    peer.native_atomics = atomics != 0;
    Check(driver_.cuDeviceGetP2PAttribute(
        &peer.performance_rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, device_, other.handle));
    return peer;
  }

  CUresult result() const { return result_; }

 private:
  void Check(CUresult result) {
    if (result_ == CUDA_SUCCESS) result_ = result;
  }

  const CudaDriver& driver_;
  const CUdevice device_;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> CudaDeviceUuids() {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  std::vector<std::string> uuids;
  for (const CudaDriver::VisibleDevice& device : (*driver)->devices()) {
    uuids.push_back(device.uuid);
  }
  return uuids;
}

absl::StatusOr<DeviceInfo> DescribeCudaDevice(const std::string& uuid) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<CUdevice> device = (*driver)->FindDevice(uuid);
  if (!device.ok()) return device.status();

  Query query(**driver, *device);
  DeviceInfo info;
  info.uuid = uuid;
  info.name = query.Name();
  info.backend = Backend::kCuda;
  info.pci_bus_id =
      absl::StrFormat("%08X:%02X:%02X.0", query.Attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                      query.Attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                      query.Attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
  info.capacity_bytes = query.TotalBytes();
  info.kinds = query.Kinds();
  const bool vmm = !info.kinds.empty() && info.kinds.front() == Kind::kVmm;
  info.granularity_bytes = std::max(kBlockBytes, vmm ? query.Granularity() : kBlockBytes);
  info.pool_granularity_bytes = std::max(kPoolStepBytes, info.granularity_bytes);
  for (const CudaDriver::VisibleDevice& other : (*driver)->devices()) {
    if (other.handle != *device) info.peers.push_back(query.Peer(other));
  }
  if (query.result() != CUDA_SUCCESS) {
    return absl::InternalError(
        (*driver)->Error(query.result(), absl::StrCat("asking the GPU ", uuid)).message());
  }
  info.capacity_bytes -= info.capacity_bytes % info.granularity_bytes;
  return info;
}

}  // namespace gpumemd

#else

namespace gpumemd {

absl::StatusOr<std::vector<std::string>> CudaDeviceUuids() {
  return gpumem::CudaDriver::Get().status();
}

absl::StatusOr<DeviceInfo> DescribeCudaDevice(const std::string&) {
  return gpumem::CudaDriver::Get().status();
}

}  // namespace gpumemd

#endif
