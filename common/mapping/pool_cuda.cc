// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/driver.h"
#include "common/mapping/mapping.h"

#if GPUMEM_WITH_CUDA

#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/cuda/context.h"
#include "common/mapping/cuda_opening.h"
#include "common/mapping/shared_openings.h"

namespace gpumem {
namespace {

class CudaPool;

// The pools that this process has imported. The driver returns the same handle for each import of a
// pool. A pointer imported twice is the same one, which the first free ends. So all importers of a
// pool share one CudaPool with reference counts.
struct ImportedPools {
  struct Entry {
    const CudaPool* self = nullptr;  // whose entry it is, also while that is being destroyed
    std::weak_ptr<CudaPool> pool;
  };
  absl::Mutex mutex;  // held while a pool is imported or let go
  std::map<CUmemoryPool, Entry> pools ABSL_GUARDED_BY(mutex);
};

ImportedPools& AllPools() {
  static auto* const pools = new ImportedPools;
  return *pools;
}

// Lives as long as anything of it is open.
class CudaPool : public ImportedPool, public std::enable_shared_from_this<CudaPool> {
 public:
  // `home` is the pool's own device, if this process sees it. Takes over `stream` and `handle`.
  CudaPool(std::shared_ptr<const CudaContext> context, std::optional<CUdevice> home,
           CUstream stream, CUmemoryPool handle)
      : context_(std::move(context)), home_(home), stream_(stream), handle_(handle) {}

  ~CudaPool() override {
    ImportedPools& all = AllPools();
    absl::MutexLock lock(&all.mutex);
    const auto entry = all.pools.find(handle_);
    // Otherwise another thread has imported the pool again meanwhile and owns the handle.
    const bool ours = entry != all.pools.end() && entry->second.self == this;
    if (ours) all.pools.erase(entry);
    context_->Call([&] {
      if (ours) driver().cuMemPoolDestroy(handle_);
      return driver().cuStreamDestroy_v2(stream_);
    });
  }

  absl::StatusOr<std::unique_ptr<Mapping>> Open(const ExportData& data, uint64_t bytes,
                                                const MapOptions& options) override {
    if (absl::Status status = CheckOpenOptions(options); !status.ok()) return status;
    absl::StatusOr<std::vector<CUdevice>> users = FindCudaDevices(driver(), options.device_uuids);
    if (!users.ok()) return users.status();
    if (users->empty() && !home_.has_value()) {
      return absl::NotFoundError(
          "this process does not see the device of the memory pool; add it to CUDA_VISIBLE_DEVICES "
          "and to the container's devices, or name another device in map_devices");
    }
    for (const CUdevice user : *users) {
      if (absl::Status status = Admit(user); !status.ok()) return status;
    }
    return openings_->Get(data, bytes, [&] { return OpenNew(data); });
  }

 private:
  class PoolOpening : public Opening {
   public:
    PoolOpening(std::shared_ptr<const CudaPool> pool, CUdeviceptr at, uint64_t bytes)
        : Opening(reinterpret_cast<void*>(at), bytes), pool_(std::move(pool)) {}
    // Waits until it is freed: its owner may free it only after us.
    ~PoolOpening() override {
      pool_->context_->Call([this] {
        const CudaDriver& driver = pool_->driver();
        const CUresult result =
            driver.cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(data()), pool_->stream_);
        return result == CUDA_SUCCESS ? driver.cuStreamSynchronize(pool_->stream_) : result;
      });
    }

   private:
    const std::shared_ptr<const CudaPool> pool_;
  };

  const CudaDriver& driver() const { return context_->driver(); }

  // Lets a device use the pool.
  absl::Status Admit(CUdevice user) {
    if (user == home_) return absl::OkStatus();  // as the driver has it from the start
    if (home_.has_value()) {
      if (absl::Status status = CheckPeerAccess(driver(), user, *home_); !status.ok()) {
        return status;
      }
    }
    absl::MutexLock lock(&mutex_);
    if (users_.contains(user)) return absl::OkStatus();
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = user;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    absl::Status status = context_->Run("giving another device access to a memory pool", [&] {
      return driver().cuMemPoolSetAccess(handle_, &access, 1);
    });
    if (status.ok()) users_.insert(user);
    return status;
  }

  absl::StatusOr<std::unique_ptr<Opening>> OpenNew(const ExportData& data) {
    CUmemPoolPtrExportData cuda_data;
    static_assert(sizeof(cuda_data) == sizeof(data));
    std::memcpy(&cuda_data, data.data(), sizeof(cuda_data));
    CUdeviceptr at = 0;
    const CUresult result =
        context_->Call([&] { return driver().cuMemPoolImportPointer(&at, handle_, &cuda_data); });
    if (result != CUDA_SUCCESS) {
      return OpenError(driver(), result, "opening memory of kind mempool");
    }
    const absl::StatusOr<uint64_t> bytes = AllocationBytes(*context_, at);
    auto opening = std::make_unique<PoolOpening>(shared_from_this(), at, bytes.value_or(0));
    if (!bytes.ok()) return bytes.status();
    return opening;
  }

  const std::shared_ptr<const CudaContext> context_;
  const std::optional<CUdevice> home_;
  CUstream stream_;  // on which its memory is freed
  CUmemoryPool handle_;
  const std::shared_ptr<SharedOpenings> openings_ = std::make_shared<SharedOpenings>();
  absl::Mutex mutex_;
  std::set<CUdevice> users_ ABSL_GUARDED_BY(mutex_);  // besides home_
};

absl::StatusOr<CUmemoryPool> Import(const CudaContext& context, int fd) {
  const CudaDriver& driver = context.driver();
  CUmemoryPool handle = nullptr;
  const CUresult result = context.Call([&] {
    return driver.cuMemPoolImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  });
  if (result == CUDA_SUCCESS) return handle;
  absl::Status error =
      driver.Error(result, absl::StrCat("importing descriptor ", fd, " as a memory pool"));
  // Driver 580 returns "unknown" for a descriptor that is not the driver's.
  const bool no_pool = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_UNKNOWN ||
                       result == CUDA_ERROR_INVALID_HANDLE;
  return no_pool ? absl::InvalidArgumentError(error.message()) : error;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ImportedPool>> ImportCudaPool(const std::string& device_uuid,
                                                             int fd) {
  absl::StatusOr<const CudaDriver*> loaded = CudaDriver::Get();
  if (!loaded.ok()) return loaded.status();
  const CudaDriver& driver = **loaded;
  const std::optional<CUdevice> home = FindVisible(driver, device_uuid);
  // If the process does not see the pool's device, any other can hold the import.
  absl::StatusOr<std::shared_ptr<const CudaContext>> context =
      CudaContext::Retain(driver, home.value_or(driver.devices().front().handle));
  if (!context.ok()) return context.status();

  ImportedPools& all = AllPools();
  absl::MutexLock lock(&all.mutex);
  absl::StatusOr<CUmemoryPool> handle = Import(**context, fd);
  if (!handle.ok()) return handle.status();
  ImportedPools::Entry& entry = all.pools[*handle];
  if (std::shared_ptr<CudaPool> there = entry.pool.lock()) return there;
  CUstream stream = nullptr;
  const CUresult made =
      (*context)->Call([&] { return driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); });
  if (made != CUDA_SUCCESS) {
    // A CudaPool being destroyed finds no entry for itself, and leaves the handle to this one.
    all.pools.erase(*handle);
    (*context)->Call([&] { return driver.cuMemPoolDestroy(*handle); });
    return driver.Error(made, "creating a stream");
  }
  auto pool = std::make_shared<CudaPool>(*std::move(context), home, stream, *handle);
  entry = {.self = pool.get(), .pool = pool};
  return pool;
}

}  // namespace gpumem

#else

namespace gpumem {

absl::StatusOr<std::shared_ptr<ImportedPool>> ImportCudaPool(const std::string&, int) {
  return CudaDriver::Get().status();
}

}  // namespace gpumem

#endif
