// SPDX-License-Identifier: Apache-2.0
// gpumemctl in a terminal, beside a real daemon of the host backend.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "tests/cli/gpumemctl.h"
#include "tests/cli/pseudo_terminal.h"

namespace gpumem {

class TerminalTest : public GpumemctlTest {
 protected:
  std::unique_ptr<PseudoTerminal> InTerminal(
      std::vector<std::string> arguments, PseudoTerminal::Size size = {},
      const std::map<std::string, std::string>& environment = {}) {
    std::vector<std::string> argv = {"client/cli/gpumemctl", "--runtime-dir", dir_};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return std::make_unique<PseudoTerminal>(argv, size, environment);
  }
  static absl::Time Soon() { return absl::Now() + kTimeout; }
};

// Success if no line is wider than `columns`.
inline ::testing::AssertionResult Fits(const std::string& text, size_t columns) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.size() > columns) return ::testing::AssertionFailure() << line;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace gpumem
