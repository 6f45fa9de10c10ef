// SPDX-License-Identifier: Apache-2.0
// The help of gpumemctl, in lines of at most 80 columns. It shows what a user types, and no
// internals of the parser.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gpumem::cli {

// Returns "gpumemctl quota set".
std::string FullName(const CLI::App& app);

// The commands by group: for gpumemctl without arguments.
std::string Overview(const CLI::App& app);

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

}  // namespace gpumem::cli
