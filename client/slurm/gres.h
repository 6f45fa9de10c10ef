// SPDX-License-Identifier: Apache-2.0
// What Slurm has allocated to a job on a node, from the text in which Slurm says it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumem::slurm {

struct JobGres {
  uint64_t mib = 0;  // of the GRES that counts memory; 0: none
  // Slurm's numbers of the GPUs that it has chosen, in order; empty: it has not chosen.
  std::vector<uint32_t> gpus;
};

// Parses the details of one node, such as "gpumem(CNT:2048)", "gpu:2(IDX:0-1),gpumem(CNT:2048)" or
// "shard:2048(IDX:1)". `name` is the GRES that counts MiB. GPUs are those of "gpu" and of `name`.
// Parts that do not parse are skipped.
JobGres ParseGres(absl::string_view details, absl::string_view name);

}  // namespace gpumem::slurm
