// SPDX-License-Identifier: Apache-2.0
// The value of --gpumem: SIZE[,guarantee=SIZE][,priority=N][,wait=TIME].
//
// Only the C++ library: this is also in the plug-in, which srun, sbatch, salloc, slurmd and
// slurmstepd load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gpumem::slurm {

struct Option {
  uint64_t mib = 0;                       // MiB on a node
  std::optional<uint64_t> guarantee_mib;  // of them, always to be had; absent: all
  int priority = 0;                       // among requests that wait
  std::optional<uint64_t> wait_ms;        // how long an allocation waits for memory
};

// Reads `text` into `option`. Sizes are whole numbers of MiB, or have a unit of K, M, G or T, with
// or without "iB", and are rounded up to MiB. Times have a unit of ms, s, m or h, or are seconds.
// Returns the mistake, in words for the author of the text; empty: none.
std::string ParseOption(const std::string& text, Option* option);

}  // namespace gpumem::slurm
