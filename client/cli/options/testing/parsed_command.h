// SPDX-License-Identifier: Apache-2.0
// For tests of the command line: the command, or the error, that arguments are parsed to.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// Returns the command of these arguments; fails the test if it is another command.
template <typename C>
C Parsed(const std::vector<std::string>& arguments, GlobalOptions* global = nullptr) {
  CommandLine line = ParseCommandLine(arguments);
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(line.text, "");
  if (global != nullptr) *global = line.global;
  if (!line.command || !std::holds_alternative<C>(*line.command)) {
    ADD_FAILURE() << "not the command expected";
    return {};
  }
  return std::get<C>(*line.command);
}

// Returns the error of these arguments; fails the test if they are valid.
inline std::string ErrorOf(const std::vector<std::string>& arguments) {
  CommandLine line = ParseCommandLine(arguments);
  EXPECT_FALSE(line.command.has_value());
  EXPECT_EQ(line.text, "");
  return line.error;
}

}  // namespace gpumem::cli
