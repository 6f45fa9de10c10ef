// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, loaded at run time, so that one binary runs with and without one.
//
// Nothing else in the project loads libcuda or includes cuda.h. If the build has no CUDA toolkit
// (GPUMEM_WITH_CUDA=0), Get() only returns UNAVAILABLE.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#if GPUMEM_WITH_CUDA
#include <cuda.h>

// Every driver function that the project calls, by the library's exported name.
#define GPUMEM_CUDA_FUNCTIONS(X)            \
  X(cuInit)                                 \
  X(cuGetErrorName)                         \
  X(cuGetErrorString)                       \
  X(cuDeviceGetCount)                       \
  X(cuDeviceGet)                            \
  X(cuDeviceGetName)                        \
  X(cuDeviceGetUuid_v2)                     \
  X(cuDeviceGetAttribute)                   \
  X(cuDeviceTotalMem_v2)                    \
  X(cuMemGetAllocationGranularity)          \
  X(cuMemCreate)                            \
  X(cuMemRelease)                           \
  X(cuMemExportToShareableHandle)           \
  X(cuMemImportFromShareableHandle)         \
  X(cuMemAddressReserve)                    \
  X(cuMemAddressFree)                       \
  X(cuMemMap)                               \
  X(cuMemUnmap)                             \
  X(cuMemSetAccess)                         \
  X(cuDevicePrimaryCtxRetain)               \
  X(cuDevicePrimaryCtxGetState)             \
  X(cuDevicePrimaryCtxRelease_v2)           \
  X(cuCtxGetCurrent)                        \
  X(cuCtxPushCurrent_v2)                    \
  X(cuCtxPopCurrent_v2)                     \
  X(cuCtxSynchronize)                       \
  X(cuMemcpyHtoD_v2)                        \
  X(cuMemcpyDtoH_v2)                        \
  X(cuMemsetD8_v2)                          \
  X(cuDeviceGetPCIBusId)                    \
  X(cuDeviceCanAccessPeer)                  \
  X(cuMemRetainAllocationHandle)            \
  X(cuMemGetAllocationPropertiesFromHandle) \
  X(cuMemHostRegister_v2)                   \
  X(cuMemHostUnregister)                    \
  X(cuEventCreate)                          \
  X(cuEventRecord)                          \
  X(cuEventQuery)                           \
  X(cuEventSynchronize)                     \
  X(cuEventDestroy_v2)                      \
  X(cuStreamWaitEvent)                      \
  X(cuStreamGetCtx)                         \
  X(cuStreamGetFlags)                       \
  X(cuStreamIsCapturing)                    \
  X(cuThreadExchangeStreamCaptureMode)      \
  X(cuCtxGetDevice)                         \
  X(cuIpcGetEventHandle)                    \
  X(cuIpcOpenEventHandle)                   \
  X(cuMemAlloc_v2)                          \
  X(cuMemFree_v2)                           \
  X(cuMemGetAddressRange_v2)                \
  X(cuIpcGetMemHandle)                      \
  X(cuIpcOpenMemHandle_v2)                  \
  X(cuIpcCloseMemHandle)                    \
  X(cuStreamCreate)                         \
  X(cuStreamDestroy_v2)                     \
  X(cuStreamSynchronize)                    \
  X(cuMemsetD8Async)                        \
  X(cuMemPoolCreate)                        \
  X(cuMemPoolDestroy)                       \
  X(cuMemPoolExportToShareableHandle)       \
  X(cuMemPoolImportFromShareableHandle)     \
  X(cuMemPoolExportPointer)                 \
  X(cuMemPoolImportPointer)                 \
  X(cuMemPoolSetAccess)                     \
  X(cuMemPoolGetAttribute)                  \
  X(cuMemPoolSetAttribute)                  \
  X(cuMemPoolTrimTo)                        \
  X(cuMemAllocFromPoolAsync)                \
  X(cuMemGetInfo_v2)                        \
  X(cuMemFreeAsync)                         \
  X(cuCtxEnablePeerAccess)                  \
  X(cuDeviceGetP2PAttribute)                \
  X(cuModuleLoadData)                       \
  X(cuModuleGetFunction)                    \
  X(cuModuleUnload)                         \
  X(cuLaunchKernel)                         \
  X(cuStreamQuery)                          \
  X(cuMemsetD32Async)                       \
  X(cuMemcpyDtoHAsync_v2)                   \
  X(cuMemcpyHtoDAsync_v2)                   \
  X(cuMemcpyAsync)                          \
  X(cuMemHostAlloc)                         \
  X(cuMemFreeHost)                          \
  X(cuStreamBeginCapture_v2)                \
  X(cuStreamEndCapture)                     \
  X(cuGraphInstantiateWithFlags)            \
  X(cuGraphLaunch)                          \
  X(cuGraphExecDestroy)                     \
  X(cuGraphDestroy)

// Functions that older drivers lack: null there. All are of CUDA 12.8. An older toolkit does not
// declare them.
#if CUDA_VERSION >= 12080
#define GPUMEM_CUDA_OPTIONAL_FUNCTIONS(X) \
  X(cuCheckpointProcessGetState)          \
  X(cuCheckpointProcessLock)              \
  X(cuCheckpointProcessCheckpoint)        \
  X(cuCheckpointProcessRestore)           \
  X(cuCheckpointProcessUnlock)
#else
#define GPUMEM_CUDA_OPTIONAL_FUNCTIONS(X)
#endif
#endif

namespace gpumem {

// Immutable and thread-safe; so are the driver's functions. Not usable in a child after fork() once
// the parent has called Get(): the driver does not survive fork().
class CudaDriver {
 public:
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  // Returns the process's driver. The first call loads and initialises it for good (some 0.2 s).
  // Makes no CUDA context.
  //   UNAVAILABLE  built without CUDA, no driver, no device, or a driver that does not
  //                work here; the message says which, with advice
  static absl::StatusOr<const CudaDriver*> Get();

#if GPUMEM_WITH_CUDA
// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares a member of that name.
#define GPUMEM_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  GPUMEM_CUDA_FUNCTIONS(GPUMEM_CUDA_MEMBER)
  GPUMEM_CUDA_OPTIONAL_FUNCTIONS(GPUMEM_CUDA_MEMBER)
#undef GPUMEM_CUDA_MEMBER

  struct VisibleDevice {
    CUdevice handle;
    std::string uuid;  // "GPU-…", as nvidia-smi -L prints it
  };

  // Returns the devices that this process sees, in the driver's order: CUDA_VISIBLE_DEVICES hides
  // and reorders. At least one.
  absl::Span<const VisibleDevice> devices() const { return devices_; }

  //   NOT_FOUND  this process does not see the device, or it is no GPU
  absl::StatusOr<CUdevice> FindDevice(absl::string_view uuid) const;

  // Converts a driver result; OK for CUDA_SUCCESS. Other messages have `what` (the operation) and
  // the driver's name of the error.
  //   RESOURCE_EXHAUSTED   no memory
  //   UNIMPLEMENTED        the driver does not support it
  //   PERMISSION_DENIED    the driver does not permit it
  //   FAILED_PRECONDITION  in a child after fork()
  //   INTERNAL             all others
  absl::Status Error(CUresult result, absl::string_view what) const;

 private:
  CudaDriver() = default;
  static absl::StatusOr<const CudaDriver*> Load();
  absl::Status ListDevices();

  std::vector<VisibleDevice> devices_;
#endif
};

#if GPUMEM_WITH_CUDA
// Makes this thread's calls independent of stream captures in this process while it lives
// (cudaThreadExchangeStreamCaptureMode). The calls do not fail because of a capture, do not spoil
// it, and are part of no graph.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaDriver& driver) : driver_(driver) { Exchange(); }
  ~RelaxedCapture() { Exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void Exchange() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  const CudaDriver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};
#endif

}  // namespace gpumem
