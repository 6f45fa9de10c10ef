// SPDX-License-Identifier: Apache-2.0
// Adds kinds mempool and ipc to a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"

namespace gpumemd {

struct ContextDeviceOptions {
  // Context-bound kinds; added after the base's.
  std::vector<Kind> kinds;
  // See ContextSpec.
  std::string socket_path;
  // Reserves a segment's bytes in the base's free bytes; the returned object's destructor returns
  // them. Absent if the driver itself counts.
  std::function<absl::StatusOr<std::shared_ptr<void>>(uint64_t bytes)> reserve;
};

// Returns `base`, which makes all other kinds, with `options.kinds` added. Their first segment
// starts a context process on the device (process.h), and the end of the last one ends it. If the
// process ends before that, by an error in its context or killed, its segments are lost(); the next
// Create() starts another.
//
// A tenant's first segment of kind mempool makes its pool, of at most CreateSpec::limit_bytes (the
// device's capacity, if that is less). If the limit has grown since, later segments come from a
// new, larger pool. A pool ends with its last segment. Attributes set by SetPool() also apply to
// the tenant's later pools.
std::unique_ptr<Device> AddContextKinds(std::unique_ptr<Device> base, ContextDeviceOptions options);

}  // namespace gpumemd
