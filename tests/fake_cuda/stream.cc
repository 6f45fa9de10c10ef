// SPDX-License-Identifier: Apache-2.0
// Streams, on which everything is done at once that does not have to wait (work.h), and events.
// Modules load, and hold no code.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <stdio.h>
#include <stdlib.h>

#include "tests/fake_cuda/graph.h"
#include "tests/fake_cuda/work.h"

using fake_cuda::Call;

namespace fake_cuda {
namespace {

CUresult CreateStream(CUstream* stream, unsigned int flags) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready != CUDA_SUCCESS) return ready;
  *stream = new CUstream_st{context};
  (*stream)->flags = flags;
  call.state.streams.insert(*stream);
  return CUDA_SUCCESS;
}

bool MayBeAwaited(CUstream stream) {
  Call call;
  return call.Ready() == CUDA_SUCCESS && CaptureOf(call.state, stream) == nullptr;
}

CUresult Synchronize(CUstream stream) {
  if (MayBeAwaited(stream)) AwaitStream(stream);
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  if (CaptureOf(call.state, stream) != nullptr || ForbiddenByCapture(call.state)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  SynchronizePools(call.state);
  return CUDA_SUCCESS;
}

CUresult Record(CUevent event, CUstream stream) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  const auto done = std::make_shared<bool>(CaptureOf(call.state, stream) != nullptr);
  event->done = done;
  if (!*done) Submit(call.state, stream, [done] { *done = true; });
  return ready;
}

CUresult WaitEvent(CUstream stream, CUevent event) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS || event->done == nullptr || *event->done ||
      CaptureOf(call.state, stream) != nullptr) {
    return ready;
  }
  Submit(call.state, stream, nullptr, [done = event->done] { return *done; });
  return ready;
}

CUresult WaitValue(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  uint64_t base = 0;
  if (flags != CU_STREAM_WAIT_VALUE_EQ || FindAllocation(call.state, address, &base) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Submit(call.state, stream, nullptr, [address, value] {
    return __atomic_load_n(reinterpret_cast<const uint32_t*>(address), __ATOMIC_ACQUIRE) == value;
  });
  return ready;
}

// An event is not valid after its context. What the driver does then is not defined.
void CheckEvent(const State& state, CUevent event) {
  if (state.contexts.count(event->context) != 0) return;
  fprintf(stderr, "the context of an event has gone\n");
  abort();
}

CUresult Done() {
  Call call;
  return call.Ready();
}

}  // namespace
}  // namespace fake_cuda

extern "C" {

CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return fake_cuda::CreateStream(phStream, Flags);
}
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int) {
  return fake_cuda::CreateStream(phStream, flags);
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
  fake_cuda::Orphan(call.state, hStream);
  if (hStream->work.empty()) delete hStream;
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
CUresult CUDAAPI cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
  Call call;
  *flags = call.state.streams.count(hStream) != 0 ? hStream->flags : 0;
  return call.Ready();
}
CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) { return fake_cuda::Synchronize(hStream); }
CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream hStream) {
  return fake_cuda::Synchronize(hStream);
}
CUresult CUDAAPI cuStreamQuery(CUstream hStream) {
  Call call;
  CUresult ready = call.Ready();
  if (ready != CUDA_SUCCESS) return ready;
  return fake_cuda::HasPending(call.state, hStream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int) {
  return fake_cuda::WaitEvent(hStream, hEvent);
}
CUresult CUDAAPI cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                        unsigned int flags) {
  return fake_cuda::WaitValue(stream, addr, value, flags);
}

CUresult CUDAAPI cuEventCreate(CUevent* phEvent, unsigned int) {
  Call call;
  CUcontext context = nullptr;
  CUresult ready = call.ReadyIn(&context);
  if (ready == CUDA_SUCCESS) *phEvent = new CUevent_st{context, nullptr};
  return ready;
}
CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream) {
  return fake_cuda::Record(hEvent, hStream);
}
CUresult CUDAAPI cuEventQuery(CUevent hEvent) {
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) fake_cuda::CheckEvent(call.state, hEvent);
  if (ready != CUDA_SUCCESS || hEvent->done == nullptr) return ready;
  fake_cuda::HasPending(call.state, nullptr);  // does what can be done
  return *hEvent->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult CUDAAPI cuEventSynchronize(CUevent hEvent) {
  fake_cuda::Await(
      [hEvent](fake_cuda::State&) { return hEvent->done == nullptr || *hEvent->done; });
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) fake_cuda::SynchronizePools(call.state);
  return ready;
}
CUresult CUDAAPI cuEventDestroy_v2(CUevent hEvent) {
  Call call;
  CUresult ready = call.Ready();
  if (ready == CUDA_SUCCESS) fake_cuda::CheckEvent(call.state, hEvent);
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
