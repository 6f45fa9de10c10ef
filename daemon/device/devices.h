// SPDX-License-Identifier: Apache-2.0
// Opens the devices of this node. Programs that use this must call RunAsContextProcess
// (context/process.h) first.
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
  std::optional<Backend> backend;  // absent: CUDA if it works, else the host
  // Folder of the sockets on which host devices answer openers of kinds ipc and mempool. It must
  // exist when the first such segment is made, not before. Empty: they do not make these kinds.
  std::string runtime_dir;
  // Capacity of the pinned host memory, rounded down to 2 MiB; 0: no such device.
  uint64_t pinned_bytes = 0;
  // GPUs: lets the driver do its bookkeeping after large frees (tidy/driver_tidy.h).
  bool tidies = false;
  // For the host backend alone.
  uint32_t host_devices = 1;
  uint64_t host_device_bytes = uint64_t{8} << 30;  // of each
};

struct Devices {
  Backend backend = Backend::kHost;
  // At least one; the pinned memory, if any, is the last.
  std::vector<std::unique_ptr<Device>> devices;
  // Facts for the operator, one sentence each: why the host was chosen, which GPU was left out,
  // risks of the driver's settings.
  std::vector<std::string> notices;
};

// Opens the devices. Leaves out GPUs that cannot share memory, with a notice.
//   UNAVAILABLE       CUDA was asked for and there is no usable driver
//   UNIMPLEMENTED     CUDA was asked for and no GPU here can share memory
//   INVALID_ARGUMENT  no host devices, devices too small to hold a segment, or less than 2 MiB
//                     to pin
//   INTERNAL          any other driver error, by its name
absl::StatusOr<Devices> OpenDevices(const DeviceOptions& options);

// Opens one host device with all kinds that the host backend can imitate; `runtime_dir` as in
// DeviceOptions.
absl::StatusOr<std::unique_ptr<Device>> OpenHostDevice(const HostDeviceOptions& options,
                                                       const std::string& runtime_dir);

// Opens the page-locked host memory of a node with this backend, with all kinds that the driver can
// share. Appends a notice if that is not kind host; `notices` may be null.
//   INVALID_ARGUMENT  less than 2 MiB
absl::StatusOr<std::unique_ptr<Device>> OpenPinnedDevice(uint64_t bytes, Backend backend,
                                                         std::vector<std::string>* notices);

// Opens one GPU with all kinds that it supports. `tidies` as in DeviceOptions.
//   UNIMPLEMENTED  it supports none
//   and the statuses of DescribeCudaDevice
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& uuid,
                                                       bool tidies = false);

}  // namespace gpumemd
