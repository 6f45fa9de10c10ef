// SPDX-License-Identifier: Apache-2.0
// Which GPUs a job's memory is on, and the quota of its tenant. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/slurm/gres.h"
#include "proto/gpumem/v1/memory.pb.h"
#include "proto/gpumem/v1/tenant.pb.h"

namespace gpumem::slurm {

struct Terms {
  std::optional<uint64_t> guarantee_mib;  // absent: all of the job's memory
  int priority = 0;
};

// Returns the devices that Slurm counts: GPUs, without pinned host memory and the host tier.
std::vector<v1::Device> Gpus(const std::vector<v1::Device>& devices);

// Returns quotas for the job's tenant, the best first. The daemon says which one it can keep.
// - If Slurm has chosen GPUs, the one quota has an equal part of the memory on each of them.
// - Otherwise each quota has all of it on one GPU, the one with most memory that is guaranteed to
//   no tenant first.
// Other GPUs have a limit of 0.
//   NOT_FOUND         Slurm has chosen a GPU that the daemon does not have
//   OUT_OF_RANGE      no GPU is as large
absl::StatusOr<std::vector<v1::Quota>> Quotas(const JobGres& gres, const Terms& terms,
                                              const std::vector<v1::Device>& gpus,
                                              const v1::ListTenantsResponse& tenants);

// Returns the lines of slurm.conf and gres.conf for a node with these GPUs. `name` is "gpumem", or
// "shard", which Slurm keeps within one GPU.
std::string ConfigurationLines(const std::string& node, const std::string& name,
                               const std::vector<v1::Device>& gpus);

}  // namespace gpumem::slurm
