// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/testing/context_fault.h"

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/cuda/context.h"
#include "common/cuda/driver.h"
#include "daemon/device/context/process.h"

namespace gpumemd {
namespace {

#if GPUMEM_WITH_CUDA

constexpr char kWildWrite[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry wild_write() {
  .reg .u64 %address;
  .reg .u32 %value;
  mov.u64 %address, 16;
  mov.u32 %value, 1;
  st.global.u32 [%address], %value;
  ret;
}
)";

// Spoils the primary context of the GPU.
absl::Status SpoilCuda(const std::string& uuid) {
  absl::StatusOr<const gpumem::CudaDriver*> driver = gpumem::CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  const absl::StatusOr<CUdevice> device = (*driver)->FindDevice(uuid);
  if (!device.ok()) return device.status();
  const auto context = gpumem::CudaContext::Retain(**driver, *device);
  if (!context.ok()) return context.status();
  absl::Status launched = (*context)->Run("launching a kernel that fails", [&] {
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    CUresult result = (*driver)->cuModuleLoadData(&module, kWildWrite);
    if (result == CUDA_SUCCESS) {
      result = (*driver)->cuModuleGetFunction(&kernel, module, "wild_write");
    }
    if (result == CUDA_SUCCESS) {
      result = (*driver)->cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    }
    return result;
  });
  if (!launched.ok()) return launched;
  const CUresult result = (*context)->Call([&] { return (*driver)->cuCtxSynchronize(); });
  return result == CUDA_SUCCESS ? absl::InternalError("the wild write went through")
                                : absl::OkStatus();
}

#else

absl::Status SpoilCuda(const std::string&) { return gpumem::CudaDriver::Get().status(); }

#endif

class FaultyContext : public Context {
 public:
  FaultyContext(std::unique_ptr<Context> context, ContextSpec spec, int fault_at)
      : context_(std::move(context)), spec_(std::move(spec)), fault_at_(fault_at) {}

  absl::StatusOr<ExportData> CreateIpc(uint64_t memory, uint64_t bytes) override {
    if (absl::Status status = Count(); !status.ok()) return status;
    return context_->CreateIpc(memory, bytes);
  }
  absl::StatusOr<ExportData> Allocate(uint64_t memory, uint64_t pool, uint64_t bytes) override {
    if (absl::Status status = Count(); !status.ok()) return status;
    return context_->Allocate(memory, pool, bytes);
  }
  absl::Status Free(uint64_t memory) override { return context_->Free(memory); }
  absl::StatusOr<MadePool> CreatePool(uint64_t pool, uint64_t max_bytes) override {
    return context_->CreatePool(pool, max_bytes);
  }
  absl::Status DestroyPool(uint64_t pool) override { return context_->DestroyPool(pool); }
  absl::StatusOr<PoolNumbers> ReadPool(uint64_t pool) override { return context_->ReadPool(pool); }
  absl::Status SetPool(uint64_t pool, const PoolChange& change) override {
    return context_->SetPool(pool, change);
  }
  absl::Status TrimPool(uint64_t pool, uint64_t keep_bytes) override {
    return context_->TrimPool(pool, keep_bytes);
  }
  absl::Status StartCopy(const CopyBatch& batch) override { return context_->StartCopy(batch); }
  absl::Status FinishCopies() override { return context_->FinishCopies(); }
  // A CUDA context has to find out by itself.
  bool broken() const override { return host_broken_ || context_->broken(); }

 private:
  absl::Status Count() {
    if (++made_ != fault_at_) return absl::OkStatus();
    if (!absl::StartsWith(spec_.device_uuid, "HOST-")) return SpoilCuda(spec_.device_uuid);
    host_broken_ = true;
    return absl::InternalError("broken, as told");
  }

  const std::unique_ptr<Context> context_;
  const ContextSpec spec_;
  const int fault_at_;
  int made_ = 0;
  bool host_broken_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> MakeFaultyContext(const ContextSpec& spec) {
  absl::StatusOr<std::unique_ptr<Context>> context = MakeContext(spec);
  const char* const words = getenv(kContextFaultVariable);
  int fault_at = 0;
  if (!context.ok() || words == nullptr || !absl::SimpleAtoi(words, &fault_at)) return context;
  return std::make_unique<FaultyContext>(*std::move(context), spec, fault_at);
}

}  // namespace gpumemd
