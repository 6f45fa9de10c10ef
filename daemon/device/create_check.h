// SPDX-License-Identifier: Apache-2.0
// The part of Device::Create that all devices share.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Returns OK if an empty device like `info` can make `bytes` of this kind; else the status that
// Device::Create promises.
absl::Status CheckCreate(const DeviceInfo& info, Kind kind, uint64_t bytes);

}  // namespace gpumemd
