// SPDX-License-Identifier: Apache-2.0
// The driver's functions that the preload takes the place of, and those that it calls itself.
//
// Each version and each variant of a function is a separate name: those for per-thread default
// streams (_ptsz, _ptds) are different functions in the driver, and programs may compare addresses.
#pragma once

#include "client/preload/toolkit.h"

// Those that came with CUDA 13.
#if CUDA_VERSION >= 13000
#define GPUMEM_PRELOAD_ACCOUNT_13(X) \
  X(cuCtxSynchronize_v2)             \
  X(cuMemGetDefaultMemPool)          \
  X(cuMemGetMemPool)                 \
  X(cuMemSetMemPool)
#define GPUMEM_PRELOAD_GATE_13(X) \
  X(cuMemcpy3DBatchAsync_v2)      \
  X(cuMemcpy3DBatchAsync_v2_ptsz) \
  X(cuMemcpyBatchAsync_v2)        \
  X(cuMemcpyBatchAsync_v2_ptsz)
#else
#define GPUMEM_PRELOAD_ACCOUNT_13(X)
#define GPUMEM_PRELOAD_GATE_13(X)
#endif

// Reserve before the driver allocates, refund after it has freed.
#define GPUMEM_PRELOAD_ACCOUNT(X)       \
  /* calls/memory.cc */                 \
  X(cuMemAlloc)                         \
  X(cuMemAlloc_v2)                      \
  X(cuMemAllocPitch)                    \
  X(cuMemAllocPitch_v2)                 \
  X(cuMemAllocManaged)                  \
  X(cuMemFree)                          \
  X(cuMemFree_v2)                       \
  /* calls/array.cc */                  \
  X(cuArrayCreate)                      \
  X(cuArrayCreate_v2)                   \
  X(cuArray3DCreate)                    \
  X(cuArray3DCreate_v2)                 \
  X(cuArrayDestroy)                     \
  X(cuMipmappedArrayCreate)             \
  X(cuMipmappedArrayDestroy)            \
  /* calls/vmm.cc */                    \
  X(cuMemCreate)                        \
  X(cuMemRelease)                       \
  X(cuMemMap)                           \
  X(cuMemUnmap)                         \
  X(cuMemRetainAllocationHandle)        \
  X(cuMemMapArrayAsync)                 \
  X(cuMemMapArrayAsync_ptsz)            \
  /* calls/pool.cc */                   \
  X(cuMemAllocAsync)                    \
  X(cuMemAllocAsync_ptsz)               \
  X(cuMemAllocFromPoolAsync)            \
  X(cuMemAllocFromPoolAsync_ptsz)       \
  X(cuMemFreeAsync)                     \
  X(cuMemFreeAsync_ptsz)                \
  X(cuMemPoolCreate)                    \
  X(cuMemPoolDestroy)                   \
  X(cuMemPoolTrimTo)                    \
  X(cuMemPoolImportFromShareableHandle) \
  X(cuDeviceSetMemPool)                 \
  X(cuStreamSynchronize)                \
  X(cuStreamSynchronize_ptsz)           \
  X(cuStreamDestroy)                    \
  X(cuStreamDestroy_v2)                 \
  X(cuCtxSynchronize)                   \
  /* calls/graph.cc */                  \
  X(cuGraphAddMemAllocNode)             \
  X(cuGraphAddMemFreeNode)              \
  X(cuGraphAddNode)                     \
  X(cuGraphAddNode_v2)                  \
  X(cuGraphAddChildGraphNode)           \
  X(cuGraphClone)                       \
  X(cuGraphDestroy)                     \
  X(cuGraphInstantiate)                 \
  X(cuGraphInstantiate_v2)              \
  X(cuGraphInstantiateWithFlags)        \
  X(cuGraphInstantiateWithParams)       \
  X(cuGraphInstantiateWithParams_ptsz)  \
  X(cuGraphExecDestroy)                 \
  X(cuGraphUpload)                      \
  X(cuGraphUpload_ptsz)                 \
  X(cuGraphLaunch)                      \
  X(cuGraphLaunch_ptsz)                 \
  X(cuDeviceGraphMemTrim)               \
  X(cuStreamBeginCapture)               \
  X(cuStreamBeginCapture_ptsz)          \
  X(cuStreamBeginCapture_v2)            \
  X(cuStreamBeginCapture_v2_ptsz)       \
  X(cuStreamBeginCaptureToGraph)        \
  X(cuStreamBeginCaptureToGraph_ptsz)   \
  X(cuStreamEndCapture)                 \
  X(cuStreamEndCapture_ptsz)            \
  /* calls/context.cc */                \
  X(cuCtxCreate)                        \
  X(cuCtxCreate_v2)                     \
  X(cuCtxCreate_v3)                     \
  X(cuCtxCreate_v4)                     \
  X(cuCtxAttach)                        \
  X(cuCtxDetach)                        \
  X(cuCtxDestroy)                       \
  X(cuCtxDestroy_v2)                    \
  X(cuDevicePrimaryCtxRetain)           \
  X(cuDevicePrimaryCtxRelease)          \
  X(cuDevicePrimaryCtxRelease_v2)       \
  X(cuDevicePrimaryCtxReset)            \
  X(cuDevicePrimaryCtxReset_v2)         \
  X(cuGreenCtxCreate)                   \
  X(cuGreenCtxDestroy)

// Answered from the tenant's limit, or as for the driver's memory in broker mode, or needed
// to stay in between.
#define GPUMEM_PRELOAD_SERVE(X)             \
  X(cuMemGetAddressRange)                   \
  X(cuMemGetAddressRange_v2)                \
  X(cuPointerGetAttribute)                  \
  X(cuPointerGetAttributes)                 \
  X(cuIpcGetMemHandle)                      \
  X(cuIpcOpenMemHandle)                     \
  X(cuIpcOpenMemHandle_v2)                  \
  X(cuIpcCloseMemHandle)                    \
  X(cuMemPoolGetAttribute)                  \
  X(cuMemPoolSetAttribute)                  \
  X(cuMemGetInfo)                           \
  X(cuMemGetInfo_v2)                        \
  X(cuDeviceTotalMem)                       \
  X(cuDeviceTotalMem_v2)                    \
  X(cuGetProcAddress)                       \
  X(cuGetProcAddress_v2)                    \
  X(cuMemSetAccess)                         \
  X(cuMemExportToShareableHandle)           \
  X(cuMemGetAllocationPropertiesFromHandle) \
  X(cuMemGetHandleForAddressRange)          \
  X(cuMulticastBindMem)                     \
  X(cuMulticastBindAddr)

// Use device memory, or let the GPU do so: held while the process's memory is suspended
// (calls/gated.cc). Graphs are too, in calls/graph.cc. Copies of managed memory alone are not in
// it, nor work of the host.
#define GPUMEM_PRELOAD_GATE(X)            \
  X(cuLaunch)                             \
  X(cuLaunchCooperativeKernel)            \
  X(cuLaunchCooperativeKernelMultiDevice) \
  X(cuLaunchCooperativeKernel_ptsz)       \
  X(cuLaunchGrid)                         \
  X(cuLaunchGridAsync)                    \
  X(cuLaunchKernel)                       \
  X(cuLaunchKernelEx)                     \
  X(cuLaunchKernelEx_ptsz)                \
  X(cuLaunchKernel_ptsz)                  \
  X(cuMemAddressFree)                     \
  X(cuMemBatchDecompressAsync)            \
  X(cuMemBatchDecompressAsync_ptsz)       \
  X(cuMemGetAccess)                       \
  X(cuMemcpy)                             \
  X(cuMemcpy2D)                           \
  X(cuMemcpy2DAsync)                      \
  X(cuMemcpy2DAsync_v2)                   \
  X(cuMemcpy2DAsync_v2_ptsz)              \
  X(cuMemcpy2DUnaligned)                  \
  X(cuMemcpy2DUnaligned_v2)               \
  X(cuMemcpy2DUnaligned_v2_ptds)          \
  X(cuMemcpy2D_v2)                        \
  X(cuMemcpy2D_v2_ptds)                   \
  X(cuMemcpy3D)                           \
  X(cuMemcpy3DAsync)                      \
  X(cuMemcpy3DAsync_v2)                   \
  X(cuMemcpy3DAsync_v2_ptsz)              \
  X(cuMemcpy3DBatchAsync)                 \
  X(cuMemcpy3DBatchAsync_ptsz)            \
  X(cuMemcpy3DPeer)                       \
  X(cuMemcpy3DPeerAsync)                  \
  X(cuMemcpy3DPeerAsync_ptsz)             \
  X(cuMemcpy3DPeer_ptds)                  \
  X(cuMemcpy3D_v2)                        \
  X(cuMemcpy3D_v2_ptds)                   \
  X(cuMemcpyAsync)                        \
  X(cuMemcpyAsync_ptsz)                   \
  X(cuMemcpyAtoA)                         \
  X(cuMemcpyAtoA_v2)                      \
  X(cuMemcpyAtoA_v2_ptds)                 \
  X(cuMemcpyAtoD)                         \
  X(cuMemcpyAtoD_v2)                      \
  X(cuMemcpyAtoD_v2_ptds)                 \
  X(cuMemcpyAtoH)                         \
  X(cuMemcpyAtoHAsync)                    \
  X(cuMemcpyAtoHAsync_v2)                 \
  X(cuMemcpyAtoHAsync_v2_ptsz)            \
  X(cuMemcpyAtoH_v2)                      \
  X(cuMemcpyAtoH_v2_ptds)                 \
  X(cuMemcpyBatchAsync)                   \
  X(cuMemcpyBatchAsync_ptsz)              \
  X(cuMemcpyDtoA)                         \
  X(cuMemcpyDtoA_v2)                      \
  X(cuMemcpyDtoA_v2_ptds)                 \
  X(cuMemcpyDtoD)                         \
  X(cuMemcpyDtoDAsync)                    \
  X(cuMemcpyDtoDAsync_v2)                 \
  X(cuMemcpyDtoDAsync_v2_ptsz)            \
  X(cuMemcpyDtoD_v2)                      \
  X(cuMemcpyDtoD_v2_ptds)                 \
  X(cuMemcpyDtoH)                         \
  X(cuMemcpyDtoHAsync)                    \
  X(cuMemcpyDtoHAsync_v2)                 \
  X(cuMemcpyDtoHAsync_v2_ptsz)            \
  X(cuMemcpyDtoH_v2)                      \
  X(cuMemcpyDtoH_v2_ptds)                 \
  X(cuMemcpyHtoA)                         \
  X(cuMemcpyHtoAAsync)                    \
  X(cuMemcpyHtoAAsync_v2)                 \
  X(cuMemcpyHtoAAsync_v2_ptsz)            \
  X(cuMemcpyHtoA_v2)                      \
  X(cuMemcpyHtoA_v2_ptds)                 \
  X(cuMemcpyHtoD)                         \
  X(cuMemcpyHtoDAsync)                    \
  X(cuMemcpyHtoDAsync_v2)                 \
  X(cuMemcpyHtoDAsync_v2_ptsz)            \
  X(cuMemcpyHtoD_v2)                      \
  X(cuMemcpyHtoD_v2_ptds)                 \
  X(cuMemcpyPeer)                         \
  X(cuMemcpyPeerAsync)                    \
  X(cuMemcpyPeerAsync_ptsz)               \
  X(cuMemcpyPeer_ptds)                    \
  X(cuMemcpy_ptds)                        \
  X(cuMemsetD16)                          \
  X(cuMemsetD16Async)                     \
  X(cuMemsetD16Async_ptsz)                \
  X(cuMemsetD16_v2)                       \
  X(cuMemsetD16_v2_ptds)                  \
  X(cuMemsetD2D16)                        \
  X(cuMemsetD2D16Async)                   \
  X(cuMemsetD2D16Async_ptsz)              \
  X(cuMemsetD2D16_v2)                     \
  X(cuMemsetD2D16_v2_ptds)                \
  X(cuMemsetD2D32)                        \
  X(cuMemsetD2D32Async)                   \
  X(cuMemsetD2D32Async_ptsz)              \
  X(cuMemsetD2D32_v2)                     \
  X(cuMemsetD2D32_v2_ptds)                \
  X(cuMemsetD2D8)                         \
  X(cuMemsetD2D8Async)                    \
  X(cuMemsetD2D8Async_ptsz)               \
  X(cuMemsetD2D8_v2)                      \
  X(cuMemsetD2D8_v2_ptds)                 \
  X(cuMemsetD32)                          \
  X(cuMemsetD32Async)                     \
  X(cuMemsetD32Async_ptsz)                \
  X(cuMemsetD32_v2)                       \
  X(cuMemsetD32_v2_ptds)                  \
  X(cuMemsetD8)                           \
  X(cuMemsetD8Async)                      \
  X(cuMemsetD8Async_ptsz)                 \
  X(cuMemsetD8_v2)                        \
  X(cuMemsetD8_v2_ptds)                   \
  X(cuStreamBatchMemOp)                   \
  X(cuStreamBatchMemOp_ptsz)              \
  X(cuStreamBatchMemOp_v2)                \
  X(cuStreamBatchMemOp_v2_ptsz)           \
  X(cuStreamWaitValue32)                  \
  X(cuStreamWaitValue32_ptsz)             \
  X(cuStreamWaitValue32_v2)               \
  X(cuStreamWaitValue32_v2_ptsz)          \
  X(cuStreamWaitValue64)                  \
  X(cuStreamWaitValue64_ptsz)             \
  X(cuStreamWaitValue64_v2)               \
  X(cuStreamWaitValue64_v2_ptsz)          \
  X(cuStreamWriteValue32)                 \
  X(cuStreamWriteValue32_ptsz)            \
  X(cuStreamWriteValue32_v2)              \
  X(cuStreamWriteValue32_v2_ptsz)         \
  X(cuStreamWriteValue64)                 \
  X(cuStreamWriteValue64_ptsz)            \
  X(cuStreamWriteValue64_v2)              \
  X(cuStreamWriteValue64_v2_ptsz)

#define GPUMEM_PRELOAD_STUBS(X) \
  GPUMEM_PRELOAD_ACCOUNT_13(X)  \
  GPUMEM_PRELOAD_GATE_13(X)     \
  GPUMEM_PRELOAD_GATE(X)        \
  GPUMEM_PRELOAD_ACCOUNT(X)     \
  GPUMEM_PRELOAD_SERVE(X)

// Called by the preload, and not replaced.
#define GPUMEM_PRELOAD_CALLED(X)       \
  X(cuCtxGetCurrent)                   \
  X(cuCtxGetDevice)                    \
  X(cuCtxPushCurrent_v2)               \
  X(cuCtxPopCurrent_v2)                \
  X(cuDeviceGetCount)                  \
  X(cuDeviceGetUuid)                   \
  X(cuDeviceGetUuid_v2)                \
  X(cuDevicePrimaryCtxGetState)        \
  X(cuDeviceGetMemPool)                \
  X(cuDeviceGetDefaultMemPool)         \
  X(cuDeviceGetGraphMemAttribute)      \
  X(cuMemGetAllocationGranularity)     \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuEventCreate)                     \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuEventDestroy_v2)                 \
  X(cuStreamGetCtx)                    \
  X(cuStreamIsCapturing)               \
  X(cuStreamIsCapturing_ptsz)          \
  X(cuStreamGetCaptureInfo_v2)         \
  X(cuStreamGetCaptureInfo_v2_ptsz)
