// SPDX-License-Identifier: Apache-2.0
// Moves the memory of a job's processes on this node into the host tier, and back.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/slurm/daemon.h"

namespace gpumem::slurm {

// Asks all processes of the tenant, side by side, to suspend their memory, then sets its guarantees
// aside: others may use the free memory. All or nothing: after an error the processes that have
// suspended are asked to resume. Returns the bytes that are in the tier.
//   FAILED_PRECONDITION  a process does not serve suspensions; nothing is changed
//   others               the first status of SuspendSession (admin.proto) that is not OK
absl::StatusOr<uint64_t> SuspendMemory(const Node& node, const std::string& tenant);

// Puts the guarantees of the tenant in force again. May be repeated.
//   FAILED_PRECONDITION  others have guarantees there now
absl::Status RestoreGuarantees(const Node& node, const std::string& tenant);

// Asks all processes of the tenant to resume, which have to run. Returns the bytes that are back.
absl::StatusOr<uint64_t> ResumeMemory(const Node& node, const std::string& tenant);

}  // namespace gpumem::slurm
