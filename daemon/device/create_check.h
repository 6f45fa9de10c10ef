// The part of Device::Create that is the same on every device.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/device/device.h"

namespace gpumemd {

// OK where a device like `info` can make `bytes` of this kind while it is empty; else
// the status that Device::Create promises.
absl::Status CheckCreate(const DeviceInfo& info, Kind kind, uint64_t bytes);

}  // namespace gpumemd
