// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/cuda_copy.h"

#if GPUMEM_WITH_CUDA

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "daemon/device/context/populate.h"

namespace gpumemd {

using gpumem::CudaDriver;

// The segments of one batch, mapped one after another. The destructor unmaps them, and requires
// that their copies are done.
class CudaCopy::Segments {
 public:
  explicit Segments(const CudaDriver& driver) : driver_(driver) {}
  ~Segments() {
    if (done_ != nullptr) driver_.cuEventDestroy_v2(done_);
    CUdeviceptr at = base_;
    for (const uint64_t bytes : mapped_) {
      driver_.cuMemUnmap(at, bytes);
      at += bytes;
    }
    if (base_ != 0) driver_.cuMemAddressFree(base_, reserved_);
  }
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  absl::Status Map(const CopyBatch& batch, CUdevice device) {
    uint64_t bytes = 0;
    for (const CopyPart& part : batch.parts) bytes += part.segment_bytes;
    if (bytes == 0) return absl::InternalError("a batch of copies has no segments");
    CUresult result = driver_.cuMemAddressReserve(&base_, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS) {
      base_ = 0;
      return driver_.Error(result, absl::StrCat("reserving addresses for ", bytes, " bytes"));
    }
    reserved_ = bytes;
    CUdeviceptr next = base_;
    for (const CopyPart& part : batch.parts) {
      if (absl::Status status = MapOne(part, next); !status.ok()) return status;
      next += part.segment_bytes;
    }
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = driver_.cuMemSetAccess(base_, bytes, &access, 1);
    return driver_.Error(result, absl::StrCat("getting access to ", batch.parts.size(),
                                              " segments of ", gpumem::FormatBytes(bytes)));
  }

  // Marks the end of the copies that are queued now.
  absl::Status Record(CUstream stream) {
    // The waiting thread sleeps.
    CUresult result =
        driver_.cuEventCreate(&done_, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(done_, stream);
    return driver_.Error(result, "recording an event after the copies");
  }

  absl::Status Await() const {
    return driver_.Error(driver_.cuEventSynchronize(done_), "waiting for copies");
  }

  CUdeviceptr base() const { return base_; }

 private:
  absl::Status MapOne(const CopyPart& part, CUdeviceptr at) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = driver_.cuMemImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(static_cast<intptr_t>(part.fd)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const std::string what = absl::StrCat("a segment of ", gpumem::FormatBytes(part.segment_bytes));
    if (result != CUDA_SUCCESS) {
      return driver_.Error(
          result, absl::StrCat("importing ", what, " (is its descriptor one of the driver's?)"));
    }
    result = driver_.cuMemMap(at, part.segment_bytes, 0, handle, 0);
    driver_.cuMemRelease(handle);  // the mapping, if there is one now, keeps the memory
    if (result != CUDA_SUCCESS) {
      return driver_.Error(result,
                           absl::StrCat("mapping ", what, " (is its descriptor of another size?)"));
    }
    mapped_.push_back(part.segment_bytes);
    return absl::OkStatus();
  }

  const CudaDriver& driver_;
  CUdeviceptr base_ = 0;
  uint64_t reserved_ = 0;
  std::vector<uint64_t> mapped_;  // sizes, in order
  CUevent done_ = nullptr;
};

CudaCopy::CudaCopy(std::shared_ptr<const gpumem::CudaContext> context, CUstream stream)
    : context_(std::move(context)), driver_(context_->driver()), stream_(stream) {}

CudaCopy::~CudaCopy() = default;

absl::Status CudaCopy::Start(const CopyBatch& batch) {
  absl::Status status;
  const CUresult result = context_->Call([&] {
    status = StartHere(batch);
    return CUDA_SUCCESS;
  });
  status.Update(driver_.Error(result, "using the context"));
  return status;
}

absl::Status CudaCopy::Finish() {
  absl::Status status;
  const CUresult result = context_->Call([&] {
    status = FinishHere();
    return CUDA_SUCCESS;
  });
  status.Update(driver_.Error(result, "using the context"));
  return status;
}

absl::Status CudaCopy::StartHere(const CopyBatch& batch) {
  if (absl::Status status = UseFile(batch.tier_fd); !status.ok()) return status;
  if (absl::Status status = file_->Check(batch); !status.ok()) return status;
  auto segments = std::make_unique<Segments>(driver_);
  absl::Status status = segments->Map(batch, context_->device());
  if (status.ok()) status = Register(batch);
  if (status.ok()) status = Queue(batch, segments->base());
  if (status.ok()) status = segments->Record(stream_);
  if (!status.ok()) {
    // Some copies may be queued. Their segments can be unmapped after them alone.
    driver_.cuStreamSynchronize(stream_);
    return status;
  }
  std::swap(segments, in_flight_);
  return segments == nullptr ? absl::OkStatus() : segments->Await();
}

absl::Status CudaCopy::FinishHere() {
  const std::unique_ptr<Segments> last = std::move(in_flight_);
  return last == nullptr ? absl::OkStatus() : last->Await();
}

absl::Status CudaCopy::UseFile(int fd) {
  if (file_ != nullptr && file_->Is(fd)) return absl::OkStatus();
  if (absl::Status status = FinishHere(); !status.ok()) return status;
  for (uint64_t i = 0; i < registered_.size(); ++i) {
    if (registered_[i]) driver_.cuMemHostUnregister(file_->window(i).data);
  }
  registered_.clear();
  file_.reset();
  absl::StatusOr<std::unique_ptr<TierFile>> mapped = TierFile::Map(fd);
  if (!mapped.ok()) return mapped.status();
  file_ = *std::move(mapped);
  registered_.assign(file_->windows(), false);
  return absl::OkStatus();
}

absl::Status CudaCopy::Register(const CopyBatch& batch) {
  std::set<uint64_t> missing;
  for (const CopyPart& part : batch.parts) {
    for (const TierExtent& extent : part.extents) {
      const uint64_t end = extent.offset + extent.bytes;
      for (uint64_t i = extent.offset / TierFile::kWindowBytes; i * TierFile::kWindowBytes < end;
           ++i) {
        if (!registered_[i]) missing.insert(i);
      }
    }
  }
  if (missing.empty()) return absl::OkStatus();
  const std::vector<uint64_t> windows(missing.begin(), missing.end());
  Populating pages(file_.get(), windows);
  for (size_t next = 0; next < windows.size(); ++next) {
    if (absl::Status status = pages.Await(next); !status.ok()) return status;
    const TierFile::Window window = file_->window(windows[next]);
    const CUresult result = driver_.cuMemHostRegister_v2(window.data, window.bytes, 0);
    // The GPU is full. The copy may make room on it, so it goes on without.
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return absl::OkStatus();
    if (result != CUDA_SUCCESS) {
      return driver_.Error(result, absl::StrCat("registering ", gpumem::FormatBytes(window.bytes),
                                                " of the host tier"));
    }
    registered_[windows[next]] = true;
  }
  return absl::OkStatus();
}

absl::Status CudaCopy::Queue(const CopyBatch& batch, CUdeviceptr base) {
  CUdeviceptr segment = base;
  for (const CopyPart& part : batch.parts) {
    CUdeviceptr at = segment + part.offset;
    for (const TierExtent& extent : part.extents) {
      uint64_t offset = extent.offset;
      uint64_t rest = extent.bytes;
      while (rest > 0) {
        // No copy crosses the border of two registrations.
        const uint64_t bytes =
            std::min(rest, TierFile::kWindowBytes - offset % TierFile::kWindowBytes);
        const CUresult result = QueueOne(batch.direction, at, file_->At(offset), bytes);
        if (result != CUDA_SUCCESS) {
          return driver_.Error(result, absl::StrCat("copying ", gpumem::FormatBytes(bytes)));
        }
        at += bytes;
        offset += bytes;
        rest -= bytes;
      }
    }
    segment += part.segment_bytes;
  }
  return absl::OkStatus();
}

CUresult CudaCopy::QueueOne(CopyDirection direction, CUdeviceptr at, char* in_tier,
                            uint64_t bytes) {
  return direction == CopyDirection::kOut
             ? driver_.cuMemcpyDtoHAsync_v2(in_tier, at, bytes, stream_)
             : driver_.cuMemcpyHtoDAsync_v2(at, in_tier, bytes, stream_);
}

}  // namespace gpumemd

#endif
