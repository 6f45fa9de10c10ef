// SPDX-License-Identifier: Apache-2.0
// Generates files for packages from gpumemctl's command line: the man page and the completions of
// shells.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "client/cli/options/command_line.h"
#include "client/cli/reference/command_tree.h"
#include "client/cli/reference/completions.h"
#include "client/cli/reference/man_page.h"

int main(int argc, char** argv) {
  using namespace gpumem::cli;
  const std::string what = argc == 2 ? argv[1] : "";
  std::vector<CommandReference> commands;
  WithParser([&commands](const CLI::App& app) { commands = CommandsOf(app); });
  std::string text;
  if (what == "man") {
    text = ManPage(commands);
  } else if (what == "bash") {
    text = BashCompletion(commands);
  } else if (what == "zsh") {
    text = ZshCompletion(commands);
  } else if (what == "fish") {
    text = FishCompletion(commands);
  } else {
    std::fputs("usage: gpumemctl_reference man|bash|zsh|fish\n", stderr);
    return 2;
  }
  return std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0 ? 1 : 0;
}
