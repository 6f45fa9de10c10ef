// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/staging.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cuda/context.h"

namespace gpumem {
namespace {

class HostStaging : public Staging {
 public:
  void* Buffer(int, void* mapped) override { return mapped; }
  absl::Status StartIn(int, void*, uint64_t) override { return absl::OkStatus(); }
  absl::Status StartOut(int, const void*, uint64_t) override { return absl::OkStatus(); }
  absl::Status Finish(int) override { return absl::OkStatus(); }
};

#if GPUMEM_WITH_CUDA

class CudaStaging : public Staging {
 public:
  explicit CudaStaging(std::shared_ptr<const CudaContext> context)
      : context_(std::move(context)), driver_(context_->driver()) {}

  ~CudaStaging() override {
    context_->Call([&] {
      if (stream_ != nullptr) driver_.cuStreamSynchronize(stream_);
      for (CUevent event : done_) {
        if (event != nullptr) driver_.cuEventDestroy_v2(event);
      }
      if (stream_ != nullptr) driver_.cuStreamDestroy_v2(stream_);
      if (buffers_ != nullptr) driver_.cuMemFreeHost(buffers_);
      return CUDA_SUCCESS;
    });
  }

  absl::Status Init() {
    return Run("getting pinned memory to copy through", [&] {
      CUresult result = driver_.cuMemHostAlloc(&buffers_, kBytes, 0);
      if (result == CUDA_SUCCESS) result = driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
      for (CUevent& event : done_) {
        if (result != CUDA_SUCCESS) break;
        // A thread that waits for a copy sleeps, and leaves the processor to threads that read and
        // check.
        result = driver_.cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
      }
      return result;
    });
  }

  void* Buffer(int slot, void*) override {
    return static_cast<char*>(buffers_) + static_cast<uint64_t>(slot) * kPieceBytes;
  }
  absl::Status StartIn(int slot, void* mapped, uint64_t bytes) override {
    return Run(absl::StrCat("copying ", bytes, " bytes to the device"), [&] {
      const CUresult result = driver_.cuMemcpyHtoDAsync_v2(reinterpret_cast<CUdeviceptr>(mapped),
                                                           Buffer(slot, nullptr), bytes, stream_);
      return result == CUDA_SUCCESS ? driver_.cuEventRecord(done_[slot], stream_) : result;
    });
  }
  absl::Status StartOut(int slot, const void* mapped, uint64_t bytes) override {
    return Run(absl::StrCat("copying ", bytes, " bytes from the device"), [&] {
      const CUresult result = driver_.cuMemcpyDtoHAsync_v2(
          Buffer(slot, nullptr), reinterpret_cast<CUdeviceptr>(mapped), bytes, stream_);
      return result == CUDA_SUCCESS ? driver_.cuEventRecord(done_[slot], stream_) : result;
    });
  }
  absl::Status Finish(int slot) override {
    return Run("waiting for a copy", [&] { return driver_.cuEventSynchronize(done_[slot]); });
  }

 private:
  template <typename Work>
  absl::Status Run(absl::string_view what, Work work) {
    const CUresult result = context_->Call(std::move(work));
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    return absl::InternalError(driver_.Error(result, what).message());
  }

  const std::shared_ptr<const CudaContext> context_;
  const CudaDriver& driver_;
  void* buffers_ = nullptr;
  CUstream stream_ = nullptr;
  std::array<CUevent, kSlots> done_ = {};
};

#endif

}  // namespace

std::unique_ptr<Staging> Staging::ForHost() { return std::make_unique<HostStaging>(); }

#if GPUMEM_WITH_CUDA

absl::StatusOr<std::unique_ptr<Staging>> Staging::ForCuda(const std::string& device_uuid) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<CUdevice> device = (*driver)->FindDevice(device_uuid);
  if (!device.ok()) return device.status();
  absl::StatusOr<std::shared_ptr<const CudaContext>> context =
      CudaContext::Retain(**driver, *device);
  if (!context.ok()) return context.status();
  auto staging = std::make_unique<CudaStaging>(*std::move(context));
  if (absl::Status status = staging->Init(); !status.ok()) return status;
  return staging;
}

#else

absl::StatusOr<std::unique_ptr<Staging>> Staging::ForCuda(const std::string&) {
  return CudaDriver::Get().status();
}

#endif

}  // namespace gpumem
