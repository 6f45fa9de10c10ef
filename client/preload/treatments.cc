// SPDX-License-Identifier: Apache-2.0
#include "client/preload/treatments.h"

#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "client/preload/functions.h"

namespace gpumem::preload {
namespace {

struct Passed {
  const char* reason;
  std::vector<const char*> names;
};

const std::vector<Passed>& PassedOn() {
  static const auto* const passed = new std::vector<Passed>{
      {"host memory is not the device's",
       {"cuMemAllocHost", "cuMemAllocHost_v2", "cuMemHostAlloc", "cuMemHostRegister",
        "cuMemHostRegister_v2", "cuMemHostGetDevicePointer", "cuMemHostGetDevicePointer_v2"}},
      {"the process that exports the memory is charged for it",
       {"cuMemImportFromShareableHandle", "cuMemPoolImportPointer", "cuImportExternalMemory",
        "cuExternalMemoryGetMappedBuffer", "cuExternalMemoryGetMappedMipmappedArray",
        "cuGraphicsResourceGetMappedPointer", "cuGraphicsResourceGetMappedPointer_v2",
        "cuGraphicsSubResourceGetMappedArray", "cuGraphicsResourceGetMappedMipmappedArray"}},
      {"code and its variables come on top of the context, whose reservation is trued up by the "
       "process's figure of NVML",
       {"cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary",
        "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetModule", "cuLibraryGetGlobal",
        "cuLibraryGetManaged", "cuFuncLoad"}},
      {"so do streams, events and their like, which are small",
       {"cuStreamCreate", "cuStreamCreateWithPriority", "cuGreenCtxStreamCreate", "cuEventCreate",
        "cuIpcOpenEventHandle", "cuImportExternalSemaphore", "cuTexRefCreate", "cuTexObjectCreate",
        "cuSurfObjectCreate"}},
      {"addresses without memory behind them", {"cuMemAddressReserve"}},
      {"binds memory that cuMemCreate() was charged for", {"cuMulticastCreate"}},
      {"moves or drops contents of memory that is charged already",
       {"cuMemPrefetchBatchAsync", "cuMemPrefetchBatchAsync_ptsz", "cuMemDiscardBatchAsync",
        "cuMemDiscardBatchAsync_ptsz", "cuMemDiscardAndPrefetchBatchAsync",
        "cuMemDiscardAndPrefetchBatchAsync_ptsz"}},
      {"tells of an object that exists",
       {"cuDeviceGetMemPool",
        "cuDeviceGetDefaultMemPool",
        "cuCtxPopCurrent",
        "cuCtxPopCurrent_v2",
        "cuCtxGetCurrent",
        "cuModuleGetLoadingMode",
        "cuModuleGetGlobal",
        "cuModuleGetGlobal_v2",
        "cuKernelGetLibrary",
        "cuArrayGetPlane",
        "cuMipmappedArrayGetLevel",
        "cuMemGetAllocationGranularity",
        "cuStreamGetCtx",
        "cuStreamGetCtx_ptsz",
        "cuStreamGetCtx_v2",
        "cuStreamGetCtx_v2_ptsz",
        "cuStreamGetCaptureInfo_v2",
        "cuStreamGetCaptureInfo_v2_ptsz",
        "cuStreamGetCaptureInfo_v3",
        "cuStreamGetCaptureInfo_v3_ptsz",
        "cuFuncGetModule",
        "cuFuncIsLoaded",
        "cuGraphChildGraphNodeGetGraph",
        "cuGraphMemAllocNodeGetParams",
        "cuGraphMemFreeNodeGetParams",
        "cuGraphNodeFindInClone",
        "cuGraphGetNodes",
        "cuGraphGetRootNodes",
        "cuGraphGetEdges",
        "cuGraphGetEdges_v2",
        "cuGraphNodeGetDependencies",
        "cuGraphNodeGetDependencies_v2",
        "cuGraphNodeGetDependentNodes",
        "cuGraphNodeGetDependentNodes_v2",
        "cuTexRefGetAddress",
        "cuTexRefGetAddress_v2",
        "cuTexRefGetArray",
        "cuTexRefGetMipmappedArray",
        "cuSurfRefGetArray",
        "cuStreamGetGreenCtx"}},
      {"no memory of its own: another reference to a context", {"cuCtxFromGreenCtx"}},
      {"graphs and nodes without memory of the device",
       {"cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddKernelNode_v2", "cuGraphAddMemcpyNode",
        "cuGraphAddMemsetNode", "cuGraphAddHostNode", "cuGraphAddEmptyNode",
        "cuGraphAddEventRecordNode", "cuGraphAddEventWaitNode",
        "cuGraphAddExternalSemaphoresSignalNode", "cuGraphAddExternalSemaphoresWaitNode",
        "cuGraphAddBatchMemOpNode", "cuGraphConditionalHandleCreate",
        "cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies_ptsz",
        "cuStreamUpdateCaptureDependencies_v2", "cuStreamUpdateCaptureDependencies_v2_ptsz"}},
      {"cannot change what nodes of memory allocate",
       {"cuGraphExecUpdate", "cuGraphExecUpdate_v2"}},
      {"objects of the host",
       {"cuLinkCreate", "cuLinkCreate_v2", "cuUserObjectCreate", "cuUserObjectRetain",
        "cuGraphRetainUserObject", "cuDeviceRegisterAsyncNotification", "cuLogsRegisterCallback"}},
      {"calls through its tables are not documented, and cannot be seen", {"cuGetExportTable"}},
  };
  return *passed;
}

}  // namespace

std::vector<Treated> Treatments() {
  std::vector<Treated> treatments;
#define GPUMEM_PRELOAD_TREATED(name) treatments.push_back({#name, Treatment::kAccount, ""});
  GPUMEM_PRELOAD_ACCOUNT(GPUMEM_PRELOAD_TREATED)
  GPUMEM_PRELOAD_ACCOUNT_13(GPUMEM_PRELOAD_TREATED)
#undef GPUMEM_PRELOAD_TREATED
#define GPUMEM_PRELOAD_TREATED(name) treatments.push_back({#name, Treatment::kHold, ""});
  GPUMEM_PRELOAD_GATE(GPUMEM_PRELOAD_TREATED)
  GPUMEM_PRELOAD_GATE_13(GPUMEM_PRELOAD_TREATED)
#undef GPUMEM_PRELOAD_TREATED
#define GPUMEM_PRELOAD_TREATED(name) treatments.push_back({#name, Treatment::kServe, ""});
  GPUMEM_PRELOAD_SERVE(GPUMEM_PRELOAD_TREATED)
#undef GPUMEM_PRELOAD_TREATED
  for (const Passed& passed : PassedOn()) {
    for (const char* name : passed.names) {
      treatments.push_back({name, Treatment::kPass, passed.reason});
    }
  }
  return treatments;
}

}  // namespace gpumem::preload

#else

namespace gpumem::preload {
std::vector<Treated> Treatments() { return {}; }
}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
