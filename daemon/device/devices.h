// Opens the devices of this node.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace gpumemd {

struct DeviceOptions {
  std::optional<Backend> backend;  // absent: CUDA where it works, else the host
  // For the host backend alone.
  uint32_t host_devices = 1;
  uint64_t host_device_bytes = uint64_t{8} << 30;  // of each
};

struct Devices {
  Backend backend = Backend::kHost;
  std::vector<std::unique_ptr<Device>> devices;  // at least one
  // What an operator should know, one sentence each: why the host was chosen, which GPU
  // was left out, what the driver's settings put at risk.
  std::vector<std::string> notices;
};

// GPUs that cannot share memory are left out, with a notice.
//   UNAVAILABLE       CUDA was asked for and there is no usable driver
//   UNIMPLEMENTED     CUDA was asked for and no GPU here can share memory
//   INVALID_ARGUMENT  no host devices, or devices too small to hold a segment
//   INTERNAL          any other driver error, by its name
absl::StatusOr<Devices> OpenDevices(const DeviceOptions& options);

}  // namespace gpumemd
