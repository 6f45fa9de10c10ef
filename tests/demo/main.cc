// SPDX-License-Identifier: Apache-2.0
// gpumem_demo: the main job from end to end, told step by step.
//
//   gpumem_demo [--gpumemd PATH] [--gpumemctl PATH] [--backend auto|cuda|host]
//
// The last line is "demo: ok, N checks" (exit code 0) or begins with "demo: failed: "
// (exit code 1). Needs no privilege, and nothing but the three programs.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/demo/director.h"
#include "tests/demo/process.h"
#include "tests/demo/workers.h"

namespace {

// Returns this program's path, from /proc; without /proc, the name that it was called by.
std::string OwnPath(const char* called) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string(called);
}

}  // namespace

int main(int argc, char** argv) {
  gpumem::demo::DemoOptions options{.self = OwnPath(argv[0])};
  const std::string folder = options.self.substr(0, options.self.rfind('/') + 1);
  options.gpumemd = folder + "gpumemd";
  options.gpumemctl = folder + "gpumemctl";
  std::string role;

  CLI::App app("The main job of gpumem from end to end, told step by step.", "gpumem_demo");
  app.add_option("--gpumemd", options.gpumemd, "The daemon (default: beside this program)");
  app.add_option("--gpumemctl", options.gpumemctl, "The tool (default: beside this program)");
  app.add_option("--backend", options.backend, "The daemon's backend (default: auto)")
      ->check(CLI::IsMember({"auto", "cuda", "host"}));
  app.add_option("--role", role, "Be one of the demo's workers")->group("");
  CLI11_PARSE(app, argc, argv);
  if (!role.empty()) return gpumem::demo::RunWorker(role);

  gpumem::demo::CatchSignals();
  try {
    const int checks = gpumem::demo::RunDemo(options);
    std::cout << "\ndemo: ok, " << checks << " checks" << std::endl;
    return EXIT_SUCCESS;
  } catch (const std::exception& failure) {
    std::cout << "\ndemo: failed: " << failure.what() << std::endl;
    return EXIT_FAILURE;
  }
}
