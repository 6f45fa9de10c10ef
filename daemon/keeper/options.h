// SPDX-License-Identifier: Apache-2.0
// The command line of gpumem-keeper.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace gpumemd::keeper {

struct Options {
  size_t max_fds = 16384;
  std::chrono::milliseconds healthy_after{10'000};
  std::vector<std::string> command;
};

// Returns the options. Nullopt to exit with `exit_code`: 0 after --help and --version, 2 after an
// error message on stderr. Call once: getopt_long(3) has static state.
std::optional<Options> ParseOptions(int argc, char** argv, int& exit_code);

}  // namespace gpumemd::keeper
