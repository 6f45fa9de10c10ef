// SPDX-License-Identifier: Apache-2.0
// Start, devices, error names.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/state.h"

using fake_cuda::Call;
using fake_cuda::Device;
using fake_cuda::State;

namespace fake_cuda {
namespace {

uint64_t Number(const char* name, uint64_t standard) {
  const char* text = getenv(name);
  return text == nullptr ? standard : strtoull(text, nullptr, 10);
}

CUresult TotalMemory(uint64_t* bytes, CUdevice device) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!IsDevice(call.state, device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = call.state.devices[static_cast<size_t>(device)].total;
  return CUDA_SUCCESS;
}

CUresult Uuid(CUuuid* uuid, CUdevice device) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (uuid == nullptr || !IsDevice(call.state, device)) return CUDA_ERROR_INVALID_VALUE;
  if (getenv("FAKE_CUDA_HOST_UUIDS") != nullptr) {
    // As gpumemd names the devices of its host backend: "HOST-0000000N-0000-…".
    memset(uuid->bytes, 0, sizeof(uuid->bytes));
    uuid->bytes[3] = static_cast<char>(device);
    return CUDA_SUCCESS;
  }
  memcpy(uuid->bytes, "fake-cuda-gpu-00", sizeof(uuid->bytes));
  uuid->bytes[15] = static_cast<char>('0' + device);
  return CUDA_SUCCESS;
}

// Loads the library that a tool or gpumem wants in the process, and calls it on this thread, within
// cuInit(). What goes wrong is ignored.
void Inject() {
  const char* path = getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr || *path == '\0') return;
  void* library = dlopen(path, RTLD_NOW);
  if (library == nullptr) return;
  auto initialize = reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"));
  if (initialize != nullptr) initialize();
}

}  // namespace
}  // namespace fake_cuda

extern "C" {

CUresult CUDAAPI cuInit(unsigned int Flags) {
  Call call;
  State& state = call.state;
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (state.initialized) {
    return state.initialized_in == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  }
  uint64_t count = fake_cuda::Number("FAKE_CUDA_DEVICES", 1);
  if (count == 0) return CUDA_ERROR_NO_DEVICE;
  fake_cuda::Inject();
  state.devices = std::vector<Device>(count);
  for (size_t i = 0; i < count; ++i) {
    Device& device = state.devices[i];
    device.total = fake_cuda::Number("FAKE_CUDA_MEMORY", 1024 * fake_cuda::kMiB);
    device.primary = {static_cast<int>(i), true};
    device.pool.device = static_cast<int>(i);
    device.pool.standard = true;
    device.current_pool = &device.pool;
  }
  state.initialized = true;
  state.initialized_in = getpid();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  *count = static_cast<int>(call.state.devices.size());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsDevice(call.state, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int len, CUdevice dev) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsDevice(call.state, dev)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, static_cast<size_t>(len), "Fake CUDA device");
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) { return fake_cuda::Uuid(uuid, dev); }
CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  return fake_cuda::Uuid(uuid, dev);
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsDevice(call.state, dev)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(pciBusId, static_cast<size_t>(len), "0000:%02x:00.0", dev + 1);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (pi == nullptr || !fake_cuda::IsDevice(call.state, dev)) return CUDA_ERROR_INVALID_VALUE;
  switch (attrib) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *pi = 9;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      *pi = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      *pi = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *pi = dev + 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      *pi = 32;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *pi = 1;
      return CUDA_SUCCESS;
    default:
      *pi = 0;
      return CUDA_SUCCESS;
  }
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  return fake_cuda::TotalMemory(bytes, dev);
}

CUresult CUDAAPI cuDeviceTotalMem(unsigned int* bytes, CUdevice dev) {
  uint64_t total = 0;
  CUresult result = fake_cuda::TotalMemory(&total, dev);
  *bytes = total > UINT32_MAX ? UINT32_MAX : static_cast<unsigned int>(total);
  return result;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  *canAccessPeer = dev != peerDev ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute, CUdevice srcDevice,
                                         CUdevice dstDevice) {
  return cuDeviceCanAccessPeer(value, srcDevice, dstDevice);
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** pStr) {
  switch (error) {
    case CUDA_SUCCESS:
      *pStr = "CUDA_SUCCESS";
      return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *pStr = "CUDA_ERROR_OUT_OF_MEMORY";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_VALUE:
      *pStr = "CUDA_ERROR_INVALID_VALUE";
      return CUDA_SUCCESS;
    default:
      *pStr = "CUDA_ERROR_UNKNOWN";
      return CUDA_SUCCESS;
  }
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** pStr) {
  return cuGetErrorName(error, pStr);
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
