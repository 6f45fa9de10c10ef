// SPDX-License-Identifier: Apache-2.0
// The host tier as a device: host memory for the contents of suspended segments.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/device/device.h"

namespace gpumemd {

inline constexpr char kTierDeviceUuid[] = "TIER-00000000-0000-0000-0000-000000000000";

struct TierOptions {
  uint64_t capacity_bytes = 0;  // rounded down to 2 MiB
  bool huge_pages = true;       // where the machine has them
  bool prefault = false;        // allocate all pages from the start, in the background
  // The file of an earlier daemon, with the contents of its suspended segments. Its size overrides
  // the capacity. Invalid: the tier gets a new file.
  gpumem::UniqueFd file;
  std::string root;  // for tests: a folder in place of "/" (machine_memory.h)
};

// Segments of kind tier are extents of one file of fixed size. Only the daemon and its context
// processes open the file.
class TierDevice : public Device {
 public:
  // Returns the descriptor of the file, close-on-exec and open as long as the device.
  virtual int file() const = 0;
  // True if the file is that of an earlier daemon.
  virtual bool inherited() const = 0;
  // Returns facts for the operator, one sentence each.
  virtual const std::vector<std::string>& notices() const = 0;
  // Blocks until no pages are being allocated ahead. Returns the bytes of all allocated pages.
  virtual uint64_t AwaitPrefault() const = 0;
};

// Makes the device. The file has huge pages if the machine has enough free ones for all of it
// (vm.nr_hugepages), else ordinary ones, transparent huge pages where allowed. Its pages are
// allocated by Create() at the latest, and then stay so.
//
// Create() zeroes memory whose last owner was another tenant (CreateSpec::tenant), or is unknown.
// It refuses with RESOURCE_EXHAUSTED sizes over the free capacity, and ordinary pages that exceed
// the remainder of the machine or of the daemon's control group (BytesToTake in machine_memory.h).
//
// Adopt() takes spec.extents of an inherited file; INVALID_ARGUMENT if the file is new, since then
// the contents are lost. Allocations may outlive their device.
//   INVALID_ARGUMENT    the capacity is below 2 MiB, and no file was inherited
//   RESOURCE_EXHAUSTED  no descriptors or threads left
absl::StatusOr<std::unique_ptr<TierDevice>> MakeTierDevice(TierOptions options);

}  // namespace gpumemd
