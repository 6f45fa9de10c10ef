// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/devices.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/nvml.h"
#include "common/mapping/host_ipc.h"
#include "daemon/device/context/context_device.h"
#include "daemon/device/cuda_info.h"
#include "daemon/device/cuda_memory.h"
#include "daemon/device/cuda_vmm_device.h"
#include "daemon/device/machine_memory.h"
#include "daemon/device/pinned_device.h"

namespace gpumemd {
namespace {

absl::StatusOr<Devices> OpenHost(const DeviceOptions& options) {
  if (options.host_devices == 0) {
    return absl::InvalidArgumentError("the host backend needs at least one device");
  }
  Devices host;
  host.backend = Backend::kHost;
  for (uint32_t i = 0; i < options.host_devices; ++i) {
    absl::StatusOr<std::unique_ptr<Device>> device = OpenHostDevice(
        {.index = i, .capacity_bytes = options.host_device_bytes, .siblings = options.host_devices},
        options.runtime_dir);
    if (!device.ok()) return device.status();
    host.devices.push_back(*std::move(device));
  }
  return host;
}

// Adds a notice about a GPU that may lose memory while no process uses it.
void CheckPersistence(const std::string& uuid, std::vector<std::string>* notices) {
  absl::StatusOr<const gpumem::Nvml*> nvml = gpumem::Nvml::Get();
  if (!nvml.ok()) {
    notices->push_back(absl::StrCat("The free memory and the persistence mode of ", uuid,
                                    " are unknown: ", nvml.status().message(), "."));
    return;
  }
  absl::StatusOr<gpumem::Nvml::Device*> device = (*nvml)->FindDevice(uuid);
  if (!device.ok()) {
    notices->push_back(absl::StrCat("The free memory and the persistence mode of ", uuid,
                                    " are unknown: ", device.status().message(), "."));
    return;
  }
  absl::StatusOr<bool> persistent = (*nvml)->PersistenceMode(*device);
  if (!persistent.ok()) {
    notices->push_back(absl::StrCat("The persistence mode of ", uuid,
                                    " is unknown: ", persistent.status().message(), "."));
  } else if (!*persistent) {
    notices->push_back(absl::StrCat(
        "Persistence mode is off on ", uuid,
        ": while no process uses the GPU, the driver may tear it down with the memory that is "
        "kept on it; run nvidia-persistenced or \"nvidia-smi -pm 1\"."));
  }
}

absl::StatusOr<Devices> OpenCuda(bool tidies) {
  absl::StatusOr<std::vector<std::string>> uuids = CudaDeviceUuids();
  if (!uuids.ok()) return uuids.status();
  Devices cuda;
  cuda.backend = Backend::kCuda;
  absl::Status refused;
  for (const std::string& uuid : *uuids) {
    absl::StatusOr<std::unique_ptr<Device>> device = OpenCudaDevice(uuid, tidies);
    if (device.ok()) {
      cuda.devices.push_back(*std::move(device));
      CheckPersistence(uuid, &cuda.notices);
    } else if (absl::IsUnimplemented(device.status())) {
      cuda.notices.push_back(absl::StrCat("Left out: ", device.status().message(), "."));
      refused = device.status();
    } else {
      return device.status();
    }
  }
  if (cuda.devices.empty()) return refused;
  return cuda;
}

absl::StatusOr<Devices> OpenBackend(const DeviceOptions& options) {
  if (options.backend == Backend::kHost) return OpenHost(options);
  absl::StatusOr<Devices> cuda = OpenCuda(options.tidies);
  if (cuda.ok() || options.backend == Backend::kCuda) return cuda;
  absl::StatusOr<Devices> host = OpenHost(options);
  if (!host.ok()) return host;
  host->notices.push_back(
      absl::StrCat("Host memory is used in place of GPU memory: ", cuda.status().message(), "."));
  return host;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenHostDevice(const HostDeviceOptions& options,
                                                       const std::string& runtime_dir) {
  absl::StatusOr<std::unique_ptr<HostDevice>> base = MakeHostDevice(options);
  if (!base.ok()) return base.status();
  if (runtime_dir.empty()) return std::unique_ptr<Device>(*std::move(base));
  ContextDeviceOptions context{
      .kinds = {Kind::kMempool, Kind::kIpc},
      .socket_path = gpumem::HostIpcSocket(runtime_dir, options.index),
      .reserve = [device = base->get()](uint64_t bytes) { return device->Reserve(bytes); }};
  return AddContextKinds(*std::move(base), std::move(context));
}

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& uuid, bool tidies) {
  absl::StatusOr<DeviceInfo> info = DescribeCudaDevice(uuid);
  if (!info.ok()) return info.status();
  if (info->kinds.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("the GPU ", uuid, " (", info->name,
                     ") cannot share memory: its driver offers neither virtual memory management "
                     "nor memory pools with POSIX descriptors, nor legacy IPC"));
  }
  ContextDeviceOptions context;
  std::copy_if(info->kinds.begin(), info->kinds.end(), std::back_inserter(context.kinds),
               IsContextBound);
  context.copier = std::any_of(info->kinds.begin(), info->kinds.end(),
                               [](Kind kind) { return TraitsOf(kind).suspendable; });
  absl::StatusOr<std::unique_ptr<Device>> base = OpenCudaVmmDevice(*std::move(info), tidies);
  if (!base.ok() || (context.kinds.empty() && !context.copier)) return base;
  return AddContextKinds(*std::move(base), std::move(context));
}

absl::StatusOr<std::unique_ptr<Device>> OpenPinnedDevice(uint64_t bytes, Backend backend,
                                                         std::vector<std::string>* notices) {
  using HostKind = PinnedDeviceOptions::HostKind;
  if (backend == Backend::kHost) {
    return MakePinnedDevice({.capacity_bytes = bytes, .host_kind = HostKind::kMemfd});
  }
  // Not every driver that knows such memory can share it.
  constexpr uint64_t kProbe = uint64_t{2} << 20;
  const absl::Status probed = MakeCudaHostMemory(kProbe).status();
  if (!probed.ok() && notices != nullptr) {
    notices->push_back(absl::StrCat("There is no memory of kind host: ", probed.message(), "."));
  }
  return MakePinnedDevice({.capacity_bytes = bytes,
                           .host_kind = probed.ok() ? HostKind::kDriver : HostKind::kNone,
                           .make_host = MakeCudaHostMemory});
}

absl::StatusOr<Devices> OpenDevices(const DeviceOptions& options) {
  absl::StatusOr<Devices> devices = OpenBackend(options);
  if (!devices.ok() || options.pinned_bytes == 0) return devices;
  absl::StatusOr<std::unique_ptr<Device>> pinned =
      OpenPinnedDevice(options.pinned_bytes, devices->backend, &devices->notices);
  if (!pinned.ok()) return pinned.status();
  devices->devices.push_back(*std::move(pinned));
  if (!HasFreeHugePages()) {
    devices->notices.emplace_back(
        "Pinned memory has ordinary pages: no huge pages are free (vm.nr_hugepages).");
  }
  return devices;
}

}  // namespace gpumemd
