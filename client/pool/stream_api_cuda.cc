// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "client/pool/stream_api.h"
#include "common/cuda/context.h"
#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

namespace gpumem::internal {
namespace {

class CudaStreamApi : public StreamApi {
 public:
  explicit CudaStreamApi(std::shared_ptr<const CudaContext> context)
      : context_(std::move(context)), driver_(context_->driver()) {}

  ~CudaStreamApi() override {
    absl::MutexLock lock(&mutex_);
    for (CUevent event : spare_) {
      context_->Call([&] { return driver_.cuEventDestroy_v2(event); });
    }
  }

  absl::StatusOr<bool> IsBlocking(Stream stream) override {
    if (stream == LegacyStream() || stream == PerThreadStream()) return true;
    CUcontext of_stream = nullptr;
    CUdevice device = 0;
    unsigned int flags = 0;
    const auto look = [&] {
      CUresult result = driver_.cuStreamGetCtx(static_cast<CUstream>(stream), &of_stream);
      if (result != CUDA_SUCCESS) return result;
      if (result = driver_.cuCtxPushCurrent_v2(of_stream); result != CUDA_SUCCESS) return result;
      result = driver_.cuCtxGetDevice(&device);
      CUcontext popped = nullptr;
      driver_.cuCtxPopCurrent_v2(&popped);
      if (result != CUDA_SUCCESS) return result;
      return driver_.cuStreamGetFlags(static_cast<CUstream>(stream), &flags);
    };
    if (absl::Status status = Run("querying a stream", look); !status.ok()) {
      return absl::InvalidArgumentError(status.message());
    }
    if (device != context_->device()) {
      return absl::InvalidArgumentError("the stream belongs to another device than the pool");
    }
    return (flags & CU_STREAM_NON_BLOCKING) == 0;
  }

  bool IsFree(Stream stream) override {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    const auto look = [&] {
      return driver_.cuStreamIsCapturing(static_cast<CUstream>(stream), &capture);
    };
    // A created stream knows its context; a per-thread stream is that of the current context.
    const bool as_it_is = stream != PerThreadStream() || context_->is_current();
    const CUresult result = as_it_is ? look() : context_->Call(look);
    return result == CUDA_SUCCESS && capture == CU_STREAM_CAPTURE_STATUS_NONE;
  }

  // Work submitted to a stream during its capture becomes part of the graph. Work on the legacy
  // stream invalidates the graph of a captured stream that waits for it.
  absl::Status CheckFree(Stream stream) override {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    absl::Status status = Run("checking whether a stream is captured", [&] {
      const CUresult result = driver_.cuStreamIsCapturing(static_cast<CUstream>(stream), &capture);
      if (result != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return result;
      capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
      return CUDA_SUCCESS;
    });
    if (!status.ok()) return absl::InvalidArgumentError(status.message());
    if (capture == CU_STREAM_CAPTURE_STATUS_NONE) return absl::OkStatus();
    return absl::FailedPreconditionError("the stream is being captured into a graph");
  }

  absl::StatusOr<EventHandle> Record(Stream stream) override {
    absl::Status status = CheckFree(stream);
    if (!status.ok()) return status;
    CUevent event = TakeSpare();
    if (event == nullptr) {
      status = Run("creating an event",
                   [&] { return driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING); });
    }
    if (!status.ok()) return status;
    absl::Cleanup drop = [&] { Drop(event); };
    status = Run("recording an event",
                 [&] { return driver_.cuEventRecord(event, static_cast<CUstream>(stream)); });
    if (!status.ok()) return status;
    std::move(drop).Cancel();
    return event;
  }

  absl::StatusOr<bool> Done(EventHandle event) override {
    const CUresult result =
        context_->Call([&] { return driver_.cuEventQuery(static_cast<CUevent>(event)); });
    if (result == CUDA_ERROR_NOT_READY) return false;
    if (result != CUDA_SUCCESS) return driver_.Error(result, "querying an event");
    return true;
  }

  absl::Status Synchronize(EventHandle event) override {
    return Run("waiting for an event",
               [&] { return driver_.cuEventSynchronize(static_cast<CUevent>(event)); });
  }

  absl::Status SynchronizeDevice() override {
    return context_->Run("waiting for the device", [&] { return driver_.cuCtxSynchronize(); });
  }

  absl::Status Wait(Stream stream, EventHandle event) override {
    if (absl::Status status = CheckFree(stream); !status.ok()) return status;
    return Run("making a stream wait", [&] {
      return driver_.cuStreamWaitEvent(static_cast<CUstream>(stream), static_cast<CUevent>(event),
                                       0);
    });
  }

  void Drop(EventHandle event) override {
    absl::MutexLock lock(&mutex_);
    spare_.push_back(static_cast<CUevent>(event));
  }

 private:
  template <typename Work>
  absl::Status Run(absl::string_view what, Work work) {
    return context_->Run(what, std::move(work));
  }

  CUevent TakeSpare() {
    absl::MutexLock lock(&mutex_);
    if (spare_.empty()) return nullptr;
    CUevent event = spare_.back();
    spare_.pop_back();
    return event;
  }

  const std::shared_ptr<const CudaContext> context_;
  const CudaDriver& driver_;
  absl::Mutex mutex_;
  std::vector<CUevent> spare_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<StreamApi>> MakeCudaStreamApi(const std::string& device_uuid) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<CUdevice> device = (*driver)->FindDevice(device_uuid);
  if (!device.ok()) return device.status();
  auto context = CudaContext::Retain(**driver, *device);
  if (!context.ok()) return context.status();
  return std::make_unique<CudaStreamApi>(*std::move(context));
}

}  // namespace gpumem::internal

#else

namespace gpumem::internal {

absl::StatusOr<std::unique_ptr<StreamApi>> MakeCudaStreamApi(const std::string&) {
  return CudaDriver::Get().status();
}

}  // namespace gpumem::internal

#endif
