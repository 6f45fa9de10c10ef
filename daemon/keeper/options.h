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

// The options; or nullopt, and in `exit_code` how to end: 0 after --help and --version, 2 after
// complaining on stderr. To be called once: getopt_long(3) has a state of its own.
std::optional<Options> ParseOptions(int argc, char** argv, int& exit_code);

}  // namespace gpumemd::keeper
