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
  // Context-bound ones; those that it adds, after the base's.
  std::vector<Kind> kinds;
  // See ContextSpec.
  std::string socket_path;
  // Takes the bytes of a segment from what the base has free; the answer's end gives them
  // back. None where the driver itself counts.
  std::function<absl::StatusOr<std::shared_ptr<void>>(uint64_t bytes)> reserve;
};

// `base`, which makes all other kinds, with `options.kinds`. The first segment of them starts a
// context process on the device (process.h), and the end of the last one ends it.
// Where it ends before that, by an error in its context or killed, its segments are lost();
// the next Create starts another.
//
// A tenant's first segment of kind mempool makes his pool, of at most CreateSpec::limit_bytes
// (the device's capacity, where that is less). When his limit has grown since, later segments
// come from a new, larger pool. A pool goes with its last segment. What SetPool sets holds for
// the tenant's later pools, too.
std::unique_ptr<Device> AddContextKinds(std::unique_ptr<Device> base, ContextDeviceOptions options);

}  // namespace gpumemd
