// SPDX-License-Identifier: Apache-2.0
// Start, devices and contexts.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/state.h"

using fake_cuda::Call;
using fake_cuda::Contexts;
using fake_cuda::Device;
using fake_cuda::kContextMemory;
using fake_cuda::State;

namespace fake_cuda {
namespace {

uint64_t Number(const char* name, uint64_t standard) {
  const char* text = getenv(name);
  return text == nullptr ? standard : strtoull(text, nullptr, 10);
}

bool IsDevice(const State& state, CUdevice device) {
  return device >= 0 && static_cast<size_t>(device) < state.devices.size();
}

CUresult CreateContext(CUcontext* context, CUdevice device) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(call.state, device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!TakeMemory(device, kContextMemory)) return CUDA_ERROR_OUT_OF_MEMORY;
  *context = new CUctx_st{device, false};
  call.state.contexts.insert(*context);
  Contexts().push_back(*context);
  return CUDA_SUCCESS;
}

CUresult DestroyContext(CUcontext context) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (call.state.contexts.count(context) == 0 || context->primary) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  EmptyContext(call.state, context);
  GiveMemory(context->device, kContextMemory);
  call.state.contexts.erase(context);
  if (!Contexts().empty() && Contexts().back() == context) Contexts().pop_back();
  delete context;
  return CUDA_SUCCESS;
}

void EndPrimary(State& state, CUdevice device) {
  Device& owner = state.devices[static_cast<size_t>(device)];
  EmptyContext(state, &owner.primary);
  EmptyPools(state, device);
  GiveMemory(device, kContextMemory);
  state.contexts.erase(&owner.primary);
  owner.primary_references = 0;
}

CUresult ReleasePrimary(CUdevice device, bool reset) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!IsDevice(call.state, device)) return CUDA_ERROR_INVALID_DEVICE;
  Device& owner = call.state.devices[static_cast<size_t>(device)];
  if (owner.primary_references == 0) {
    return reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  }
  if (reset || owner.primary_references == 1) {
    EndPrimary(call.state, device);
  } else {
    --owner.primary_references;
  }
  return CUDA_SUCCESS;
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

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsDevice(call.state, dev)) return CUDA_ERROR_INVALID_DEVICE;
  Device& device = call.state.devices[static_cast<size_t>(dev)];
  if (device.primary_references == 0) {
    if (!fake_cuda::TakeMemory(dev, kContextMemory)) return CUDA_ERROR_OUT_OF_MEMORY;
    call.state.contexts.insert(&device.primary);
  }
  ++device.primary_references;
  *pctx = &device.primary;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
  return fake_cuda::ReleasePrimary(dev, false);
}
CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return fake_cuda::ReleasePrimary(dev, false);
}
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev) {
  return fake_cuda::ReleasePrimary(dev, true);
}
CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return fake_cuda::ReleasePrimary(dev, true);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsDevice(call.state, dev)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = call.state.devices[static_cast<size_t>(dev)].primary_references != 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate(CUcontext* pctx, unsigned int, CUdevice dev) {
  return fake_cuda::CreateContext(pctx, dev);
}
CUresult CUDAAPI cuCtxCreate_v2(CUcontext* pctx, unsigned int, CUdevice dev) {
  return fake_cuda::CreateContext(pctx, dev);
}
CUresult CUDAAPI cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam*, int, unsigned int,
                                CUdevice dev) {
  return fake_cuda::CreateContext(pctx, dev);
}
CUresult CUDAAPI cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams*, unsigned int, CUdevice dev) {
  return fake_cuda::CreateContext(pctx, dev);
}
CUresult CUDAAPI cuCtxDestroy(CUcontext ctx) { return fake_cuda::DestroyContext(ctx); }
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx) { return fake_cuda::DestroyContext(ctx); }

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* pctx) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  *pctx = Contexts().empty() ? nullptr : Contexts().back();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!Contexts().empty()) Contexts().pop_back();
  if (ctx != nullptr) Contexts().push_back(ctx);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext ctx) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (call.state.contexts.count(ctx) == 0) return CUDA_ERROR_INVALID_CONTEXT;
  Contexts().push_back(ctx);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* pctx) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (Contexts().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx != nullptr) *pctx = Contexts().back();
  Contexts().pop_back();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready == CUDA_SUCCESS) *device = context->device;
  return ready;
}

CUresult CUDAAPI cuCtxSynchronize() {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  if (fake_cuda::ForbiddenByCapture(call.state)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext, unsigned int) {
  Call call;
  return call.Ready();
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
