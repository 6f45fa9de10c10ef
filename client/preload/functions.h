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
#else
#define GPUMEM_PRELOAD_ACCOUNT_13(X)
#endif

// Reserve before the driver allocates, refund after it has freed.
#define GPUMEM_PRELOAD_ACCOUNT(X)       \
  /* memory.cc */                       \
  X(cuMemAlloc)                         \
  X(cuMemAlloc_v2)                      \
  X(cuMemAllocPitch)                    \
  X(cuMemAllocPitch_v2)                 \
  X(cuMemAllocManaged)                  \
  X(cuMemFree)                          \
  X(cuMemFree_v2)                       \
  /* array.cc */                        \
  X(cuArrayCreate)                      \
  X(cuArrayCreate_v2)                   \
  X(cuArray3DCreate)                    \
  X(cuArray3DCreate_v2)                 \
  X(cuArrayDestroy)                     \
  X(cuMipmappedArrayCreate)             \
  X(cuMipmappedArrayDestroy)            \
  /* vmm.cc */                          \
  X(cuMemCreate)                        \
  X(cuMemRelease)                       \
  X(cuMemMap)                           \
  X(cuMemUnmap)                         \
  X(cuMemRetainAllocationHandle)        \
  X(cuMemMapArrayAsync)                 \
  X(cuMemMapArrayAsync_ptsz)            \
  /* pool.cc */                         \
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
  X(cuCtxSynchronize)                   \
  /* graph.cc */                        \
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
  /* context.cc */                      \
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

// Answered from the tenant's limit, or needed to stay in between.
#define GPUMEM_PRELOAD_SERVE(X) \
  X(cuMemGetInfo)               \
  X(cuMemGetInfo_v2)            \
  X(cuDeviceTotalMem)           \
  X(cuDeviceTotalMem_v2)        \
  X(cuGetProcAddress)           \
  X(cuGetProcAddress_v2)

#define GPUMEM_PRELOAD_STUBS(X) \
  GPUMEM_PRELOAD_ACCOUNT_13(X)  \
  GPUMEM_PRELOAD_ACCOUNT(X)     \
  GPUMEM_PRELOAD_SERVE(X)

// Called by the preload, and not replaced.
#define GPUMEM_PRELOAD_CALLED(X)  \
  X(cuCtxGetCurrent)              \
  X(cuCtxGetDevice)               \
  X(cuCtxPushCurrent_v2)          \
  X(cuCtxPopCurrent_v2)           \
  X(cuDeviceGetCount)             \
  X(cuDeviceGetUuid)              \
  X(cuDeviceGetUuid_v2)           \
  X(cuDevicePrimaryCtxGetState)   \
  X(cuDeviceGetMemPool)           \
  X(cuDeviceGetDefaultMemPool)    \
  X(cuDeviceGetGraphMemAttribute) \
  X(cuMemPoolGetAttribute)        \
  X(cuStreamGetCtx)               \
  X(cuStreamIsCapturing)          \
  X(cuStreamIsCapturing_ptsz)     \
  X(cuStreamGetCaptureInfo_v2)    \
  X(cuStreamGetCaptureInfo_v2_ptsz)
