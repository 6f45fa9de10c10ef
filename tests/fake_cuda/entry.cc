// SPDX-License-Identifier: Apache-2.0
// How programs find functions: what cuGetProcAddress() knows, by name and version of CUDA.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <cstring>

#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

#if CUDA_VERSION >= 13000
#define FAKE_CUDA_EXPORTS_13(X) X(cuMemGetDefaultMemPool)
#else
#define FAKE_CUDA_EXPORTS_13(X)
#endif

// Everything that this library defines.
#define FAKE_CUDA_EXPORTS(X)                \
  FAKE_CUDA_EXPORTS_13(X)                   \
  X(cuInit)                                 \
  X(cuDriverGetVersion)                     \
  X(cuDeviceGetCount)                       \
  X(cuDeviceGet)                            \
  X(cuDeviceGetName)                        \
  X(cuDeviceGetUuid)                        \
  X(cuDeviceGetUuid_v2)                     \
  X(cuDeviceGetPCIBusId)                    \
  X(cuDeviceGetAttribute)                   \
  X(cuDeviceTotalMem_v2)                    \
  X(cuDeviceTotalMem)                       \
  X(cuDeviceCanAccessPeer)                  \
  X(cuDevicePrimaryCtxRetain)               \
  X(cuDevicePrimaryCtxRelease)              \
  X(cuDevicePrimaryCtxRelease_v2)           \
  X(cuDevicePrimaryCtxReset)                \
  X(cuDevicePrimaryCtxReset_v2)             \
  X(cuDevicePrimaryCtxGetState)             \
  X(cuCtxCreate)                            \
  X(cuCtxCreate_v2)                         \
  X(cuCtxCreate_v3)                         \
  X(cuCtxCreate_v4)                         \
  X(cuCtxDestroy)                           \
  X(cuCtxDestroy_v2)                        \
  X(cuCtxAttach)                            \
  X(cuCtxDetach)                            \
  X(cuGreenCtxCreate)                       \
  X(cuGreenCtxDestroy)                      \
  X(cuCtxFromGreenCtx)                      \
  X(cuCtxGetCurrent)                        \
  X(cuCtxSetCurrent)                        \
  X(cuCtxPushCurrent_v2)                    \
  X(cuCtxPopCurrent_v2)                     \
  X(cuCtxGetDevice)                         \
  X(cuCtxSynchronize)                       \
  X(cuCtxEnablePeerAccess)                  \
  X(cuGetErrorName)                         \
  X(cuGetErrorString)                       \
  X(cuMemAlloc_v2)                          \
  X(cuMemAllocManaged)                      \
  X(cuMemAllocPitch_v2)                     \
  X(cuMemFree_v2)                           \
  X(cuMemHostAlloc)                         \
  X(cuMemAllocHost_v2)                      \
  X(cuMemFreeHost)                          \
  X(cuMemHostRegister_v2)                   \
  X(cuMemHostUnregister)                    \
  X(cuMemGetInfo_v2)                        \
  X(cuMemGetAddressRange_v2)                \
  X(cuPointerGetAttribute)                  \
  X(cuPointerGetAttributes)                 \
  X(cuMemcpyHtoD_v2)                        \
  X(cuMemcpyDtoH_v2)                        \
  X(cuMemcpyDtoD_v2)                        \
  X(cuMemcpyHtoDAsync_v2)                   \
  X(cuMemcpyDtoHAsync_v2)                   \
  X(cuMemcpyAsync)                          \
  X(cuMemsetD8_v2)                          \
  X(cuMemsetD32_v2)                         \
  X(cuMemsetD8Async)                        \
  X(cuMemsetD32Async)                       \
  X(cuMemGetAllocationGranularity)          \
  X(cuMemCreate)                            \
  X(cuMemRelease)                           \
  X(cuMemAddressReserve)                    \
  X(cuMemAddressFree)                       \
  X(cuMemMap)                               \
  X(cuMemUnmap)                             \
  X(cuMemSetAccess)                         \
  X(cuMemMapArrayAsync)                     \
  X(cuMemMapArrayAsync_ptsz)                \
  X(cuMemExportToShareableHandle)           \
  X(cuMemImportFromShareableHandle)         \
  X(cuMemRetainAllocationHandle)            \
  X(cuMemGetAccess)                         \
  X(cuMemGetHandleForAddressRange)          \
  X(cuMulticastCreate)                      \
  X(cuMulticastBindMem)                     \
  X(cuMulticastBindAddr)                    \
  X(cuMemGetAllocationPropertiesFromHandle) \
  X(cuMemAllocAsync)                        \
  X(cuMemAllocAsync_ptsz)                   \
  X(cuMemAllocFromPoolAsync)                \
  X(cuMemAllocFromPoolAsync_ptsz)           \
  X(cuMemFreeAsync)                         \
  X(cuMemFreeAsync_ptsz)                    \
  X(cuMemPoolCreate)                        \
  X(cuMemPoolDestroy)                       \
  X(cuMemPoolTrimTo)                        \
  X(cuMemPoolGetAttribute)                  \
  X(cuMemPoolSetAttribute)                  \
  X(cuMemPoolSetAccess)                     \
  X(cuDeviceGetDefaultMemPool)              \
  X(cuDeviceGetMemPool)                     \
  X(cuDeviceSetMemPool)                     \
  X(cuGraphCreate)                          \
  X(cuGraphDestroy)                         \
  X(cuGraphClone)                           \
  X(cuGraphAddMemAllocNode)                 \
  X(cuGraphAddMemFreeNode)                  \
  X(cuGraphAddNode_v2)                      \
  X(cuGraphAddChildGraphNode)               \
  X(cuGraphInstantiateWithFlags)            \
  X(cuGraphInstantiateWithParams)           \
  X(cuGraphExecDestroy)                     \
  X(cuGraphUpload)                          \
  X(cuGraphLaunch)                          \
  X(cuDeviceGraphMemTrim)                   \
  X(cuDeviceGetGraphMemAttribute)           \
  X(cuStreamBeginCapture_v2)                \
  X(cuStreamBeginCapture_v2_ptsz)           \
  X(cuStreamEndCapture)                     \
  X(cuStreamEndCapture_ptsz)                \
  X(cuStreamIsCapturing)                    \
  X(cuStreamIsCapturing_ptsz)               \
  X(cuStreamGetCaptureInfo_v2)              \
  X(cuStreamGetCaptureInfo_v2_ptsz)         \
  X(cuThreadExchangeStreamCaptureMode)      \
  X(cuArrayCreate_v2)                       \
  X(cuArray3DCreate_v2)                     \
  X(cuMipmappedArrayCreate)                 \
  X(cuArrayDestroy)                         \
  X(cuMipmappedArrayDestroy)                \
  X(cuStreamCreate)                         \
  X(cuStreamCreateWithPriority)             \
  X(cuStreamDestroy)                        \
  X(cuStreamDestroy_v2)                     \
  X(cuStreamGetCtx)                         \
  X(cuStreamGetFlags)                       \
  X(cuStreamSynchronize)                    \
  X(cuStreamSynchronize_ptsz)               \
  X(cuStreamQuery)                          \
  X(cuStreamWaitEvent)                      \
  X(cuStreamWaitValue32_v2)                 \
  X(cuEventCreate)                          \
  X(cuEventRecord)                          \
  X(cuEventQuery)                           \
  X(cuEventSynchronize)                     \
  X(cuEventDestroy_v2)                      \
  X(cuModuleLoadData)                       \
  X(cuModuleUnload)                         \
  X(cuIpcGetMemHandle)                      \
  X(cuIpcOpenMemHandle_v2)                  \
  X(cuIpcCloseMemHandle)                    \
  X(cuIpcGetEventHandle)                    \
  X(cuIpcOpenEventHandle)                   \
  X(cuMemPoolExportToShareableHandle)       \
  X(cuMemPoolImportFromShareableHandle)     \
  X(cuMemPoolExportPointer)                 \
  X(cuMemPoolImportPointer)                 \
  X(cuModuleGetFunction)                    \
  X(cuLaunchKernel)                         \
  X(cuDeviceGetP2PAttribute)                \
  X(cuGetProcAddress)                       \
  X(cuGetProcAddress_v2)                    \
  X(cuGetExportTable)

struct Export {
  const char* name;
  void* function;
};

#define FAKE_CUDA_EXPORT(name) {#name, reinterpret_cast<void*>(&::name)},
const Export kExports[] = {FAKE_CUDA_EXPORTS(FAKE_CUDA_EXPORT)};

// Functions whose versions came with later versions of CUDA than their first one. The first one is
// taken to be as old as CUDA.
struct Since {
  const char* name;
  int version;
};
const Since kSince[] = {
    {"cuMemAlloc_v2", 3020},
    {"cuMemAllocPitch_v2", 3020},
    {"cuMemFree_v2", 3020},
    {"cuMemGetInfo_v2", 3020},
    {"cuDeviceTotalMem_v2", 3020},
    {"cuArrayCreate_v2", 3020},
    {"cuArray3DCreate_v2", 3020},
    {"cuCtxCreate_v2", 3020},
    {"cuCtxCreate_v3", 11040},
    {"cuCtxCreate_v4", 12050},
    {"cuCtxDestroy_v2", 4000},
    {"cuDeviceGetUuid_v2", 11040},
    {"cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxReset_v2", 11000},
    {"cuGetProcAddress", 11030},
    {"cuGetProcAddress_v2", 12000},
    {"cuGraphAddNode_v2", 12030},
    {"cuMemAllocAsync", 11020},
    {"cuMemAllocFromPoolAsync", 11020},
    {"cuMemCreate", 10020},
    {"cuIpcOpenMemHandle_v2", 11000},
};

int SinceOf(const char* name) {
  for (const Since& since : kSince) {
    if (strcmp(since.name, name) == 0) return since.version;
  }
  return 2000;
}

void* FindExport(const char* name) {
  for (const Export& each : kExports) {
    if (strcmp(each.name, name) == 0) return each.function;
  }
  return nullptr;
}

// Finds the newest version of a function that a program made for `version` of CUDA may call.
void* FindVersion(const char* symbol, int version, cuuint64_t flags, bool* known) {
  // One function has had its name changed for programs.
  if (strcmp(symbol, "cuGraphInstantiate") == 0 && version >= 12000) {
    symbol = "cuGraphInstantiateWithFlags";
  }
  char name[128];
  void* newest = nullptr;
  for (const char* suffix : {"", "_v2", "_v3", "_v4"}) {
    if (strlen(symbol) + 16 > sizeof(name)) return nullptr;
    strcpy(name, symbol);
    strcat(name, suffix);
    void* found = FindExport(name);
    if (found == nullptr) continue;
    *known = true;
    if (SinceOf(name) > version) continue;
    newest = found;
    if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == 0) continue;
    strcat(name, "_ptsz");
    if (void* per_thread = FindExport(name)) newest = per_thread;
  }
  return newest;
}

}  // namespace
}  // namespace fake_cuda

extern "C" {

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion,
                                     cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* symbolStatus) {
  if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool known = false;
  *pfn = fake_cuda::FindVersion(symbol, cudaVersion, flags, &known);
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  if (*pfn == nullptr) {
    status =
        known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  if (symbolStatus != nullptr) *symbolStatus = status;
  return *pfn != nullptr || symbolStatus != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion,
                                  cuuint64_t flags) {
  CUdriverProcAddressQueryResult status;
  CUresult result = cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, &status);
  if (result != CUDA_SUCCESS) return result;
  return *pfn == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

// The tables are not documented.
CUresult CUDAAPI cuGetExportTable(const void** ppExportTable, const CUuuid*) {
  if (ppExportTable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
