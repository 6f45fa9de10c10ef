// SPDX-License-Identifier: Apache-2.0
// A job's tenant on a node: made before the job, ended after it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/slurm/daemon.h"
#include "client/slurm/gres.h"
#include "client/slurm/placement.h"
#include "proto/gpumem/v1/memory.pb.h"

namespace gpumem::slurm {

// The mark of tenants that are Slurm's. An operator's are never touched.
inline constexpr char kOwner[] = "slurm";

// Returns the daemon's devices. Statuses as MakeTenant.
absl::StatusOr<std::vector<v1::Device>> Devices(const Node& node);

// Makes a tenant of this name, or finds that it was made before. Ends an earlier one of that name
// with another quota, and waits for it. Returns the UUIDs of its GPUs. `user`: who may ask what it
// has used, beside operators.
//   UNAVAILABLE          no daemon answers in time
//   FAILED_PRECONDITION  its guarantee cannot be kept
//   ABORTED              the same, on any one of several GPUs
//   ALREADY_EXISTS       it is configured or another's, or has not ended in time
//   Quotas' statuses, and others of the daemon
absl::StatusOr<std::vector<std::string>> MakeTenant(const Node& node, const std::string& tenant,
                                                    const JobGres& gres, const Terms& terms,
                                                    std::optional<uid_t> user);

// Unsets what SuspendMemory has set (suspend.h). Without that it holds for the next tenant of this
// name, too: that of the requeued job.
//   FAILED_PRECONDITION  nothing is set, or others have guarantees there now
absl::Status UnsetGuarantees(Daemon& daemon, const std::string& tenant);

// What a tenant has used of a device since it was made.
struct Use {
  std::string device_uuid;
  uint64_t peak_bytes = 0;               // the most that it was charged
  std::optional<uint64_t> byte_seconds;  // its charge over time; absent: an older gpumemd
};

// Returns the uses of the devices that it has used. NOT_FOUND, or statuses as EndTenant.
absl::StatusOr<std::vector<Use>> UsesOf(const Node& node, const std::string& tenant);

struct Ended {
  bool existed = false;  // there was such a tenant
  std::vector<Use> uses;
  std::string left;  // what it still holds after the wait, and who, in words; empty: nothing
};

// Ends the tenant and waits for its memory. Does nothing to one that is not Slurm's.
//   UNAVAILABLE  no daemon answers in time
absl::StatusOr<Ended> EndTenant(const Node& node, const std::string& tenant);

}  // namespace gpumem::slurm
