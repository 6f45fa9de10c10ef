// SPDX-License-Identifier: Apache-2.0
// Adds kinds mempool and ipc to a device, and copies to and from the host tier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
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
  // True: Copy() runs in a separate process with a context on the device, the copier. False: the
  // base copies.
  bool copier = false;
  // The copier ends once it has been idle for so long, or up to twice as long. Its context takes
  // some 0.5 GB of the GPU, and 2 MiB for each GiB of the tier that it has used. The next one has
  // to register that memory again, 20 GB/s.
  absl::Duration copier_idle = absl::Minutes(10);
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
//
// A copy holds up no other call: the copier is a separate process, and its end loses no segment.
// PrepareCopies() and Copy() of no items only start it.
std::unique_ptr<Device> AddContextKinds(std::unique_ptr<Device> base, ContextDeviceOptions options);

}  // namespace gpumemd
