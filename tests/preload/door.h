/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions, by the door that the program was built for:
 *   DOOR_LINKED  linked with -lcuda
 *   DOOR_DLSYM   dlopen() of libcuda.so.1 and dlsym()
 *   DOOR_PROC    the same for cuGetProcAddress_v2 alone, which has the others
 */
#pragma once

#include <cuda.h>

#if CUDA_VERSION >= 13000
#define DRIVER_FUNCTIONS_13(X) X(cuMemGetDefaultMemPool, 13000)
#else
#define DRIVER_FUNCTIONS_13(X)
#endif

#define DRIVER_FUNCTIONS(X)                        \
  DRIVER_FUNCTIONS_13(X)                           \
  X(cuInit, 2000)                                  \
  X(cuDeviceTotalMem, 3020)                        \
  X(cuDevicePrimaryCtxRetain, 7000)                \
  X(cuDevicePrimaryCtxRelease, 11000)              \
  X(cuDevicePrimaryCtxReset, 11000)                \
  X(cuCtxCreate, 13000)                            \
  X(cuCtxDestroy, 4000)                            \
  X(cuCtxAttach, 2000)                             \
  X(cuCtxDetach, 2000)                             \
  X(cuGreenCtxCreate, 12040)                       \
  X(cuGreenCtxDestroy, 12040)                      \
  X(cuCtxFromGreenCtx, 12040)                      \
  X(cuCtxSetCurrent, 4000)                         \
  X(cuCtxSynchronize, 2000)                        \
  X(cuMemGetInfo, 3020)                            \
  X(cuMemAlloc, 3020)                              \
  X(cuMemAllocPitch, 3020)                         \
  X(cuMemAllocManaged, 6000)                       \
  X(cuMemAllocHost, 3020)                          \
  X(cuMemFree, 3020)                               \
  X(cuMemFreeHost, 2000)                           \
  X(cuMemsetD8, 3020)                              \
  X(cuMemsetD8Async, 3020)                         \
  X(cuMemcpyDtoHAsync, 3020)                       \
  X(cuMemcpyDtoH, 3020)                            \
  X(cuMemGetAddressRange, 3020)                    \
  X(cuPointerGetAttribute, 4000)                   \
  X(cuPointerGetAttributes, 7000)                  \
  X(cuIpcGetMemHandle, 4010)                       \
  X(cuIpcOpenMemHandle, 11000)                     \
  X(cuIpcCloseMemHandle, 4010)                     \
  X(cuMemCreate, 10020)                            \
  X(cuMemRelease, 10020)                           \
  X(cuMemMap, 10020)                               \
  X(cuMemUnmap, 10020)                             \
  X(cuMemSetAccess, 10020)                         \
  X(cuMemAddressReserve, 10020)                    \
  X(cuMemAddressFree, 10020)                       \
  X(cuMemRetainAllocationHandle, 11000)            \
  X(cuMemGetAllocationPropertiesFromHandle, 10020) \
  X(cuMemGetAccess, 10020)                         \
  X(cuMemGetHandleForAddressRange, 11070)          \
  X(cuMulticastCreate, 12010)                      \
  X(cuMulticastBindMem, 12010)                     \
  X(cuMulticastBindAddr, 12010)                    \
  X(cuMemMapArrayAsync, 11010)                     \
  X(cuMemExportToShareableHandle, 10020)           \
  X(cuMemImportFromShareableHandle, 10020)         \
  X(cuMemAllocAsync, 11020)                        \
  X(cuMemFreeAsync, 11020)                         \
  X(cuMemAllocFromPoolAsync, 11020)                \
  X(cuMemPoolCreate, 11020)                        \
  X(cuMemPoolDestroy, 11020)                       \
  X(cuMemPoolTrimTo, 11020)                        \
  X(cuMemPoolSetAttribute, 11020)                  \
  X(cuMemPoolGetAttribute, 11020)                  \
  X(cuMemPoolSetAccess, 11020)                     \
  X(cuMemPoolExportPointer, 11020)                 \
  X(cuDeviceGetDefaultMemPool, 11020)              \
  X(cuDeviceSetMemPool, 11020)                     \
  X(cuStreamCreate, 2000)                          \
  X(cuStreamDestroy, 4000)                         \
  X(cuStreamSynchronize, 2000)                     \
  X(cuStreamWaitEvent, 3020)                       \
  X(cuStreamWaitValue32, 12000)                    \
  X(cuEventCreate, 2000)                           \
  X(cuEventRecord, 2000)                           \
  X(cuModuleLoadData, 2000)                        \
  X(cuModuleGetFunction, 2000)                     \
  X(cuLaunchKernel, 7000)                          \
  X(cuStreamBeginCapture, 10010)                   \
  X(cuStreamEndCapture, 10000)                     \
  X(cuThreadExchangeStreamCaptureMode, 10010)      \
  X(cuGraphCreate, 10000)                          \
  X(cuGraphDestroy, 10000)                         \
  X(cuGraphAddMemAllocNode, 11040)                 \
  X(cuGraphAddMemFreeNode, 11040)                  \
  X(cuGraphAddNode, 12030)                         \
  X(cuGraphAddChildGraphNode, 10000)               \
  X(cuGraphInstantiate, 12000)                     \
  X(cuGraphExecDestroy, 10000)                     \
  X(cuGraphLaunch, 10000)                          \
  X(cuDeviceGraphMemTrim, 11040)                   \
  X(cuArrayCreate, 3020)                           \
  X(cuArray3DCreate, 3020)                         \
  X(cuArrayDestroy, 2000)                          \
  X(cuMipmappedArrayCreate, 5000)                  \
  X(cuMipmappedArrayDestroy, 5000)

/* The argument is expanded: cuda.h has macros for the newest version of each function. */
#define EXPORTED_NAME(name) EXPORTED_NAME_(name)
#define EXPORTED_NAME_(name) #name

#define DRIVER_MEMBER(name, version) __typeof__(&name) name##_;
struct Door {
  DRIVER_FUNCTIONS(DRIVER_MEMBER)
};
#undef DRIVER_MEMBER

extern struct Door door;
/* Fills `door`; ends the program if a function is missing. */
void open_door(void);
/* Opens the door, and makes the first device's primary context current. Ends the program with 4 if
 * that is refused, and says how. */
CUcontext start_cuda(void);
/* Returns the name of the door. */
const char* door_name(void);
