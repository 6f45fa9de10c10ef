// SPDX-License-Identifier: Apache-2.0
// The command line of gpumem-slurm: KEY=VALUE, from the plug-in or from an operator.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "client/slurm/daemon.h"

namespace gpumem::slurm {

struct Arguments {
  uint32_t job = 0;           // 0: none is named
  std::optional<uid_t> user;  // the job's; absent: unknown
  std::string node_name;      // Slurm's name of this node; empty: unknown
  std::string gres;           // the GRES that counts MiB
  std::string option;         // the value of --gpumem
  int max_priority = 0;       // that a job may ask for
  std::string state_dir;
  bool background = false;
  Node node;
};

// Reads the words after the command. Returns the mistake, in words; empty: none.
std::string ParseArguments(int argc, char** argv, Arguments* arguments);

// Prints words for slurmd's log, or for an operator.
void Say(absl::string_view words);

}  // namespace gpumem::slurm
