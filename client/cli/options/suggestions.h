// SPDX-License-Identifier: Apache-2.0
// Corrections of words that the command line does not know. Pure.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumem::cli {

// Returns the candidate that was probably meant by `word`: one that differs in few letters, or that
// begins with it. Empty: none is near.
std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates);

// Returns the names of the subcommands that help lists.
std::vector<std::string> CommandNames(const CLI::App& app);

// Returns "unknown command \"tpo\" (did you mean top?)"; `app` is the innermost known command.
std::string UnknownCommand(const CLI::App& app, const std::string& word);

// Returns the error of a line with words that `app` does not know; the line is parsed up to its
// end.
std::string UnknownWord(const CLI::App& app);

}  // namespace gpumem::cli
