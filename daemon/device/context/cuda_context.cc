// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/cuda_context.h"

#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/cuda/context.h"
#include "common/unique_fd.h"
#include "daemon/device/context/cuda_copy.h"

namespace gpumemd {
namespace {

using gpumem::CudaContext;
using gpumem::CudaDriver;
using gpumem::UniqueFd;

template <typename Data>
ExportData ToExportData(const Data& data) {
  static_assert(sizeof(Data) == sizeof(ExportData));
  ExportData bytes;
  std::memcpy(bytes.data(), &data, sizeof(data));
  return bytes;
}

// Memory that was made and not yet freed.
struct Memory {
  CUdeviceptr at = 0;
  bool pooled = false;
};

class PrimaryContext : public Context {
 public:
  // `stream` is the context's.
  PrimaryContext(std::shared_ptr<const CudaContext> context, CUstream stream)
      : context_(std::move(context)), driver_(context_->driver()), stream_(stream) {}

  // Its process ends then, and the kernel frees all that is left, faster than we could.
  ~PrimaryContext() override { static_cast<void>(copy_.release()); }

  absl::StatusOr<ExportData> CreateIpc(uint64_t memory, uint64_t bytes) override {
    const std::string what = absl::StrCat(gpumem::FormatBytes(bytes), " of kind ipc");
    CUdeviceptr at = 0;
    absl::Status status =
        Run(absl::StrCat("allocating ", what), [&] { return driver_.cuMemAlloc_v2(&at, bytes); });
    if (!status.ok()) return status;
    absl::Cleanup free = [&] { FreeNow({.at = at}).IgnoreError(); };

    CUdeviceptr block = 0;
    size_t block_bytes = 0;
    status = Run(absl::StrCat("checking ", what),
                 [&] { return driver_.cuMemGetAddressRange_v2(&block, &block_bytes, at); });
    if (!status.ok()) return status;
    if (block != at || block_bytes != bytes) {
      return absl::InternalError(
          absl::StrCat("the driver allocated ", what, " into a block of ", block_bytes,
                       " bytes, and the handle would open the whole block; use kind vmm"));
    }
    if (status = Zero(at, bytes); !status.ok()) return status;
    CUipcMemHandle handle = {};
    status = Run(absl::StrCat("exporting ", what),
                 [&] { return driver_.cuIpcGetMemHandle(&handle, at); });
    if (!status.ok()) return status;
    std::move(free).Cancel();
    memory_[memory] = {.at = at};
    return ToExportData(handle);
  }

  absl::StatusOr<ExportData> Allocate(uint64_t memory, uint64_t pool, uint64_t bytes) override {
    const absl::StatusOr<CUmemoryPool> found = Find(pool);
    if (!found.ok()) return found.status();
    const std::string what = absl::StrCat(gpumem::FormatBytes(bytes), " of a memory pool");
    CUdeviceptr at = 0;
    absl::Status status = CheckRoom(*found, bytes);
    if (!status.ok()) return status;
    status = Run(absl::StrCat("allocating ", what),
                 [&] { return driver_.cuMemAllocFromPoolAsync(&at, bytes, *found, stream_); });
    if (!status.ok()) return status;
    absl::Cleanup free = [&] { FreeNow({.at = at, .pooled = true}).IgnoreError(); };
    if (status = Zero(at, bytes); !status.ok()) return status;
    CUmemPoolPtrExportData data = {};
    status = Run(absl::StrCat("exporting ", what),
                 [&] { return driver_.cuMemPoolExportPointer(&data, at); });
    if (!status.ok()) return status;
    std::move(free).Cancel();
    memory_[memory] = {.at = at, .pooled = true};
    return ToExportData(data);
  }

  absl::Status Free(uint64_t memory) override {
    const auto found = memory_.find(memory);
    if (found == memory_.end()) return absl::NotFoundError("no such memory");
    const Memory gone = found->second;
    memory_.erase(found);
    return FreeNow(gone);
  }

  absl::StatusOr<MadePool> CreatePool(uint64_t pool, uint64_t max_bytes) override {
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = context_->device();
    properties.maxSize = max_bytes;
    CUmemoryPool made = nullptr;
    CUresult result = CUDA_SUCCESS;
    const auto create = [&] { return result = driver_.cuMemPoolCreate(&made, &properties); };
    absl::Status status = Run("making a memory pool", create);
    if (result == CUDA_ERROR_INVALID_VALUE) {  // drivers before CUDA 12.2 know no maximum
      properties.maxSize = 0;
      status = Run("making a memory pool", create);
    }
    if (!status.ok()) return status;
    absl::Cleanup destroy = [&] {
      Run("", [&] { return driver_.cuMemPoolDestroy(made); }).IgnoreError();
    };
    int exported = -1;
    status = Run("exporting a memory pool", [&] {
      return driver_.cuMemPoolExportToShareableHandle(&exported, made,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    });
    if (!status.ok()) return status;
    UniqueFd fd(exported);
    if (fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
      return absl::InternalError(absl::ErrnoToStatus(errno, "F_SETFD").message());
    }
    // Memory exported from a pool returns to the device only when the pool is gone and all its
    // importers have exited. A pool that releases it before that loses it (measured with driver
    // 580): neither the pool nor the device has it, and no attribute counts it. So a pool keeps its
    // memory, and reuses it.
    cuuint64_t all = UINT64_MAX;
    status = Run("setting the release threshold of a memory pool", [&] {
      return driver_.cuMemPoolSetAttribute(made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
    });
    if (!status.ok()) return status;
    std::move(destroy).Cancel();
    pools_[pool] = made;
    return MadePool{.fd = std::move(fd), .max_bytes = properties.maxSize};
  }

  absl::Status DestroyPool(uint64_t pool) override {
    const absl::StatusOr<CUmemoryPool> found = Find(pool);
    if (!found.ok()) return found.status();
    pools_.erase(pool);
    return Run("destroying a memory pool", [&] { return driver_.cuMemPoolDestroy(*found); });
  }

  absl::StatusOr<PoolNumbers> ReadPool(uint64_t pool) override {
    const absl::StatusOr<CUmemoryPool> found = Find(pool);
    if (!found.ok()) return found.status();
    PoolNumbers numbers = {};
    int follow = 0, opportunistic = 0, internal = 0;
    const std::pair<CUmemPool_attribute, void*> all[] = {
        {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &numbers.reserved_bytes},
        {CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &numbers.reserved_peak_bytes},
        {CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &numbers.used_bytes},
        {CU_MEMPOOL_ATTR_USED_MEM_HIGH, &numbers.used_peak_bytes},
        {CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &numbers.release_threshold_bytes},
        {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &follow},
        {CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &opportunistic},
        {CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &internal},
    };
    for (const auto& [attribute, value] : all) {
      absl::Status status =
          Run(absl::StrCat("reading attribute ", static_cast<int>(attribute), " of a memory pool"),
              [&, attribute = attribute, value = value] {
                return driver_.cuMemPoolGetAttribute(*found, attribute, value);
              });
      if (!status.ok()) return status;
    }
    numbers.reuse_follow_event_dependencies = follow != 0;
    numbers.reuse_allow_opportunistic = opportunistic != 0;
    numbers.reuse_allow_internal_dependencies = internal != 0;
    return numbers;
  }

  absl::Status SetPool(uint64_t pool, const PoolChange& change) override {
    const absl::StatusOr<CUmemoryPool> found = Find(pool);
    if (!found.ok()) return found.status();
    const auto set = [&](CUmemPool_attribute attribute, auto value) {
      return Run(
          absl::StrCat("setting attribute ", static_cast<int>(attribute), " of a memory pool"),
          [&] { return driver_.cuMemPoolSetAttribute(*found, attribute, &value); });
    };
    if (change.release_threshold_bytes.has_value()) {
      const cuuint64_t bytes = *change.release_threshold_bytes;
      absl::Status status = set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes);
      if (!status.ok()) return status;
    }
    const std::pair<CUmemPool_attribute, std::optional<bool>> switches[] = {
        {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, change.reuse_follow_event_dependencies},
        {CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, change.reuse_allow_opportunistic},
        {CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
         change.reuse_allow_internal_dependencies},
    };
    for (const auto& [attribute, value] : switches) {
      if (!value.has_value()) continue;
      absl::Status status = set(attribute, static_cast<int>(*value));
      if (!status.ok()) return status;
    }
    if (!change.reset_peaks) return absl::OkStatus();
    for (const CUmemPool_attribute peak :
         {CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH}) {
      // Zero resets the driver's peak.
      if (absl::Status status = set(peak, cuuint64_t{0}); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status TrimPool(uint64_t pool, uint64_t keep_bytes) override {
    const absl::StatusOr<CUmemoryPool> found = Find(pool);
    if (!found.ok()) return found.status();
    return Run("trimming a memory pool",
               [&] { return driver_.cuMemPoolTrimTo(*found, keep_bytes); });
  }

  absl::Status StartCopy(const CopyBatch& batch) override {
    if (copy_ == nullptr) copy_ = std::make_unique<CudaCopy>(context_, stream_);
    return Checked(copy_->Start(batch));
  }

  absl::Status FinishCopies() override {
    return copy_ == nullptr ? absl::OkStatus() : Checked(copy_->Finish());
  }

  bool broken() const override { return broken_; }

 private:
  // Calls the driver with the context current.
  template <typename Work>
  absl::Status Run(absl::string_view what, Work work) {
    return Checked(context_->Run(what, work));
  }

  // Returns the status in this interface's codes. After any error it checks whether the context is
  // spoiled: such errors come back from every call, this one included.
  absl::Status Checked(const absl::Status& status) {
    if (status.ok()) return status;
    if (context_->Call([this] { return driver_.cuCtxSynchronize(); }) != CUDA_SUCCESS) {
      broken_ = true;
    }
    return absl::IsResourceExhausted(status) ? status : absl::InternalError(status.message());
  }

  // A pool that is asked for more than the device has left keeps the part that it got until it
  // is destroyed (measured with driver 580), although it does not count it as reserved. So it
  // is not asked.
  absl::Status CheckRoom(CUmemoryPool pool, uint64_t bytes) {
    size_t free = 0, total = 0;
    absl::Status status =
        Run("asking for the free memory", [&] { return driver_.cuMemGetInfo_v2(&free, &total); });
    if (!status.ok() || bytes <= free) return status;
    cuuint64_t reserved = 0, used = 0;
    status = Run("reading a memory pool", [&] {
      const CUresult result =
          driver_.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
      if (result != CUDA_SUCCESS) return result;
      return driver_.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    });
    if (!status.ok() || bytes <= free + (reserved - used)) return status;
    return absl::ResourceExhaustedError(absl::StrCat("the device has ", gpumem::FormatBytes(free),
                                                     " left, and ", gpumem::FormatBytes(bytes),
                                                     " were asked for"));
  }

  absl::Status Zero(CUdeviceptr at, uint64_t bytes) {
    return Run(absl::StrCat("clearing ", gpumem::FormatBytes(bytes)), [&] {
      const CUresult result = driver_.cuMemsetD8Async(at, 0, bytes, stream_);
      return result == CUDA_SUCCESS ? driver_.cuStreamSynchronize(stream_) : result;
    });
  }

  absl::Status FreeNow(const Memory& memory) {
    return Run("freeing memory", [&] {
      if (!memory.pooled) return driver_.cuMemFree_v2(memory.at);
      const CUresult result = driver_.cuMemFreeAsync(memory.at, stream_);
      return result == CUDA_SUCCESS ? driver_.cuStreamSynchronize(stream_) : result;
    });
  }

  absl::StatusOr<CUmemoryPool> Find(uint64_t pool) const {
    const auto found = pools_.find(pool);
    if (found == pools_.end()) return absl::NotFoundError("no such memory pool");
    return found->second;
  }

  const std::shared_ptr<const CudaContext> context_;
  const CudaDriver& driver_;
  CUstream stream_;
  bool broken_ = false;
  std::unique_ptr<CudaCopy> copy_;  // null before the first copy
  std::map<uint64_t, Memory> memory_;
  std::map<uint64_t, CUmemoryPool> pools_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Context>> MakeCudaContext(const ContextSpec& spec) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<CUdevice> device = (*driver)->FindDevice(spec.device_uuid);
  if (!device.ok()) return device.status();
  absl::StatusOr<std::shared_ptr<const CudaContext>> context =
      CudaContext::Retain(**driver, *device);
  if (!context.ok()) return context.status();
  CUstream stream = nullptr;
  absl::Status status = (*context)->Run("making a stream", [&] {
    return (*driver)->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  });
  if (!status.ok()) return status;
  return std::make_unique<PrimaryContext>(*std::move(context), stream);
}

}  // namespace gpumemd

#else

namespace gpumemd {

absl::StatusOr<std::unique_ptr<Context>> MakeCudaContext(const ContextSpec&) {
  return gpumem::CudaDriver::Get().status();
}

}  // namespace gpumemd

#endif
