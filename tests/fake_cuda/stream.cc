// SPDX-License-Identifier: Apache-2.0
// Streams, on which everything is done at once, and events. Modules load, and hold no code.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include "tests/fake_cuda/graph.h"

using fake_cuda::Call;

namespace fake_cuda {
namespace {

CUresult CreateStream(CUstream* stream) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  *stream = new CUstream_st{context};
  call.state.streams.insert(*stream);
  return CUDA_SUCCESS;
}

CUresult Synchronize(CUstream stream) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (CaptureOf(call.state, stream) != nullptr || ForbiddenByCapture(call.state)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  SynchronizePools(call.state);
  return CUDA_SUCCESS;
}

CUresult Record(CUevent event) {
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) event->recorded = true;
  return ready;
}

CUresult Done() {
  Call call;
  return call.Ready();
}

}  // namespace
}  // namespace fake_cuda

extern "C" {

CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int) {
  return fake_cuda::CreateStream(phStream);
}
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* phStream, unsigned int, int) {
  return fake_cuda::CreateStream(phStream);
}
CUresult CUDAAPI cuStreamDestroy_v2(CUstream hStream) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (call.state.streams.count(hStream) == 0) return CUDA_ERROR_INVALID_HANDLE;
  CUgraph captured = nullptr;
  if (hStream->graph != nullptr && cuStreamEndCapture(hStream, &captured) == CUDA_SUCCESS) {
    cuGraphDestroy(captured);
  }
  call.state.streams.erase(hStream);
  delete hStream;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamDestroy(CUstream hStream) { return cuStreamDestroy_v2(hStream); }
CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  *pctx = call.state.streams.count(hStream) != 0 ? hStream->context : context;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetFlags(CUstream, unsigned int* flags) {
  *flags = 0;
  return fake_cuda::Done();
}
CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) { return fake_cuda::Synchronize(hStream); }
CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream hStream) {
  return fake_cuda::Synchronize(hStream);
}
CUresult CUDAAPI cuStreamQuery(CUstream) { return fake_cuda::Done(); }
CUresult CUDAAPI cuStreamWaitEvent(CUstream, CUevent, unsigned int) { return fake_cuda::Done(); }

CUresult CUDAAPI cuEventCreate(CUevent* phEvent, unsigned int) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready == CUDA_SUCCESS) *phEvent = new CUevent_st;
  return ready;
}
CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream) {
  CUstreamCaptureStatus status;
  cuStreamIsCapturing(hStream, &status);  // it must exist
  return fake_cuda::Record(hEvent);
}
CUresult CUDAAPI cuEventQuery(CUevent) { return fake_cuda::Done(); }
CUresult CUDAAPI cuEventSynchronize(CUevent) {
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) fake_cuda::SynchronizePools(call.state);
  return ready;
}
CUresult CUDAAPI cuEventDestroy_v2(CUevent hEvent) {
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) delete hEvent;
  return ready;
}

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void*) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready == CUDA_SUCCESS) *module = reinterpret_cast<CUmodule>(context);
  return ready;
}
CUresult CUDAAPI cuModuleGetFunction(CUfunction*, CUmodule, const char*) {
  return CUDA_ERROR_NOT_FOUND;
}
CUresult CUDAAPI cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                                unsigned int, unsigned int, unsigned int, CUstream, void**,
                                void**) {
  return CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI cuModuleUnload(CUmodule) { return fake_cuda::Done(); }

}  // extern "C"

#endif  // GPUMEM_PRELOAD_BUILT
