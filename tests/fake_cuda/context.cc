// SPDX-License-Identifier: Apache-2.0
// Contexts: primary ones, those that a program makes, green ones.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "tests/fake_cuda/state.h"
#include "tests/fake_cuda/work.h"

using fake_cuda::Call;
using fake_cuda::Contexts;
using fake_cuda::Device;
using fake_cuda::kContextMemory;

namespace fake_cuda {
namespace {

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
}

bool PrimaryIsActive(State& state, CUdevice device) {
  return state.contexts.count(&state.devices[static_cast<size_t>(device)].primary) != 0;
}

CUresult EndReference(CUdevice device, bool reset) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!IsDevice(call.state, device)) return CUDA_ERROR_INVALID_DEVICE;
  Device& owner = call.state.devices[static_cast<size_t>(device)];
  // A reset keeps the references, which are released as without it.
  if (!reset && owner.primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (!reset) --owner.primary_references;
  const bool ends = reset || owner.primary_references == 0;
  if (ends && PrimaryIsActive(call.state, device)) EndPrimary(call.state, device);
  return CUDA_SUCCESS;
}

CUresult ReleasePrimary(CUdevice device, bool reset) {
  CUresult result = EndReference(device, reset);
  CallHook("cuDevicePrimaryCtxRelease");
  return result;
}

CUresult PrimaryState(CUdevice device, unsigned int* flags, int* active) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!IsDevice(call.state, device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = PrimaryIsActive(call.state, device) ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake_cuda

extern "C" {

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsDevice(call.state, dev)) return CUDA_ERROR_INVALID_DEVICE;
  Device& device = call.state.devices[static_cast<size_t>(dev)];
  if (!fake_cuda::PrimaryIsActive(call.state, dev)) {
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
  CUresult result = fake_cuda::PrimaryState(dev, flags, active);
  fake_cuda::CallHook("cuDevicePrimaryCtxGetState");
  return result;
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

CUresult CUDAAPI cuCtxAttach(CUcontext* pctx, unsigned int) {
  Call call;
  CUresult ready = call.ReadyIn(pctx);
  if (ready == CUDA_SUCCESS) ++(*pctx)->references;
  return ready;
}
CUresult CUDAAPI cuCtxDetach(CUcontext ctx) {
  {
    Call call;
    CUresult ready = call.Ready();
    if (ready != CUDA_SUCCESS) return ready;
    if (call.state.contexts.count(ctx) == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--ctx->references != 0) return CUDA_SUCCESS;
  }
  return fake_cuda::DestroyContext(ctx);
}

// A green context is another context with the primary one's memory.
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc, CUdevice dev,
                                  unsigned int) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (!fake_cuda::IsDevice(call.state, dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (!fake_cuda::PrimaryIsActive(call.state, dev)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  CUcontext green = new CUctx_st{dev, false};
  call.state.contexts.insert(green);
  *phCtx = reinterpret_cast<CUgreenCtx>(green);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx) {
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) call.state.contexts.erase(reinterpret_cast<CUcontext>(hCtx));
  return ready;
}
CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) {
  *pContext = reinterpret_cast<CUcontext>(hCtx);
  return CUDA_SUCCESS;
}

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
  {
    Call call;
    CUcontext context = nullptr;
    CUresult ready = call.ReadyIn(&context);
    if (ready != CUDA_SUCCESS) return ready;
    if (fake_cuda::ForbiddenByCapture(call.state)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  fake_cuda::AwaitAll();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext, unsigned int) {
  Call call;
  return call.Ready();
}

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
