// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/driver.h"
#include "common/mapping/mapping.h"

#if GPUMEM_WITH_CUDA

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/cuda/context.h"
#include "common/mapping/cuda_opening.h"
#include "common/mapping/shared_openings.h"

namespace gpumem {
namespace {

// Memory of another process, opened in the context of the device that uses it. CUDA maps it for
// that device alone: peer access between contexts does not reach such memory (measured on an H200:
// another device's copies work, its kernels fail).
class IpcOpening : public Opening {
 public:
  IpcOpening(std::shared_ptr<const CudaContext> context, CUdeviceptr at, uint64_t bytes)
      : Opening(reinterpret_cast<void*>(at), bytes), context_(std::move(context)) {}
  ~IpcOpening() override {
    context_->Call([this] {
      return context_->driver().cuIpcCloseMemHandle(reinterpret_cast<CUdeviceptr>(data()));
    });
  }

 private:
  const std::shared_ptr<const CudaContext> context_;
};

absl::StatusOr<std::unique_ptr<Opening>> OpenIn(const CudaDriver& driver, CUdevice user,
                                                const ExportData& handle) {
  absl::StatusOr<std::shared_ptr<const CudaContext>> context = CudaContext::Retain(driver, user);
  if (!context.ok()) return context.status();
  CUipcMemHandle cuda_handle;
  static_assert(sizeof(cuda_handle) == sizeof(handle));
  std::memcpy(&cuda_handle, handle.data(), sizeof(cuda_handle));
  CUdeviceptr at = 0;
  const CUresult result = (*context)->Call([&] {
    return driver.cuIpcOpenMemHandle_v2(&at, cuda_handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  });
  if (result != CUDA_SUCCESS) return OpenError(driver, result, "opening memory of kind ipc");
  const absl::StatusOr<uint64_t> bytes = AllocationBytes(**context, at);
  auto opening = std::make_unique<IpcOpening>(*std::move(context), at, bytes.value_or(0));
  if (!bytes.ok()) return bytes.status();
  return opening;
}

// Returns the openings for a device. Each device of a process opens the same memory separately, at
// a different address.
SharedOpenings& OpenedFor(CUdevice user) {
  static auto* const mutex = new absl::Mutex;
  static auto* const openings = new std::map<CUdevice, std::shared_ptr<SharedOpenings>>;
  absl::MutexLock lock(mutex);
  std::shared_ptr<SharedOpenings>& of_user = (*openings)[user];
  if (of_user == nullptr) of_user = std::make_shared<SharedOpenings>();
  return *of_user;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mapping>> OpenCudaIpc(const std::string& device_uuid,
                                                     const ExportData& handle, uint64_t bytes,
                                                     const MapOptions& options) {
  if (absl::Status status = CheckOpenOptions(options); !status.ok()) return status;
  absl::StatusOr<const CudaDriver*> loaded = CudaDriver::Get();
  if (!loaded.ok()) return loaded.status();
  const CudaDriver& driver = **loaded;
  absl::StatusOr<std::vector<CUdevice>> users = FindCudaDevices(driver, options.device_uuids);
  if (!users.ok()) return users.status();
  if (users->size() > 1) {
    return absl::UnimplementedError(
        "memory of kind ipc can be opened for one device at a time; name one in map_devices and "
        "open it again for each other device, or acquire it with kind vmm, which all devices use "
        "at one address");
  }
  const std::optional<CUdevice> home = FindVisible(driver, device_uuid);
  if (users->empty()) {
    const absl::StatusOr<CUdevice> own = driver.FindDevice(device_uuid);
    if (!own.ok()) return own.status();
    users->push_back(*own);
  }
  const CUdevice user = users->front();
  if (home.has_value()) {
    if (absl::Status status = CheckPeerAccess(driver, user, *home); !status.ok()) return status;
  }
  return OpenedFor(user).Get(handle, bytes, [&] { return OpenIn(driver, user, handle); });
}

}  // namespace gpumem

#else

namespace gpumem {

absl::StatusOr<std::unique_ptr<Mapping>> OpenCudaIpc(const std::string&, const ExportData&,
                                                     uint64_t, const MapOptions&) {
  return CudaDriver::Get().status();
}

}  // namespace gpumem

#endif
