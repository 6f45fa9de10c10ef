// Opens the devices of this node. Programs that use this call RunAsContextProcess
// (context/process.h) first of all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/host_device.h"

namespace gpumemd {

struct DeviceOptions {
  std::optional<Backend> backend;  // absent: CUDA where it works, else the host
  // Where host devices answer those who open memory of kinds ipc and mempool. It need not be there
  // yet, but must be when the first such segment is made. Empty: they do not make these kinds.
  std::string runtime_dir;
  // Capacity of the host memory that processes pin, rounded down to 2 MiB; 0: none of it.
  uint64_t pinned_bytes = 0;
  // For the host backend alone.
  uint32_t host_devices = 1;
  uint64_t host_device_bytes = uint64_t{8} << 30;  // of each
};

struct Devices {
  Backend backend = Backend::kHost;
  // At least one; the memory that processes pin, if any, is the last.
  std::vector<std::unique_ptr<Device>> devices;
  // What an operator should know, one sentence each: why the host was chosen, which GPU
  // was left out, what the driver's settings put at risk.
  std::vector<std::string> notices;
};

// GPUs that cannot share memory are left out, with a notice.
//   UNAVAILABLE       CUDA was asked for and there is no usable driver
//   UNIMPLEMENTED     CUDA was asked for and no GPU here can share memory
//   INVALID_ARGUMENT  no host devices, devices too small to hold a segment, or so little memory
//                     to pin
//   INTERNAL          any other driver error, by its name
absl::StatusOr<Devices> OpenDevices(const DeviceOptions& options);

// One host device with all kinds of which the host backend has a stand-in; `runtime_dir` as in
// DeviceOptions.
absl::StatusOr<std::unique_ptr<Device>> OpenHostDevice(const HostDeviceOptions& options,
                                                       const std::string& runtime_dir);

// One GPU with all kinds that it can do.
//   UNIMPLEMENTED  it can do none
//   and the statuses of DescribeCudaDevice
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& uuid);

}  // namespace gpumemd
