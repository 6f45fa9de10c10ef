// SPDX-License-Identifier: Apache-2.0
// Ends tenants whose jobs Slurm has forgotten: the job's epilog did not run, or its prolog went on
// after it, because slurmd was killed or the node was lost for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/slurm/daemon.h"

namespace gpumem::slurm {

// True if the job has a part of this node, by slurmctld (controller.h).
using IsHere = std::function<absl::StatusOr<bool>(uint32_t job)>;

// Asks of each tenant that prologs have made, and ends those without a job. Waits for no memory.
// Asks 256 times at most, and stops at the first question without an answer. Returns the
// tenants that it has ended.
//   UNAVAILABLE  gpumemd does not answer; or slurmctld does not, and nothing more was ended
absl::StatusOr<std::vector<std::string>> Sweep(const Node& node, const std::string& state_dir,
                                               const IsHere& is_here);

}  // namespace gpumem::slurm
