// SPDX-License-Identifier: Apache-2.0
// The findings of gpumemctl doctor. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/cli/doctor/facts.h"

namespace gpumem::cli {

enum class Level {
  kOk,
  kWarning,  // it works, but may stop working
  kProblem,  // it does not work
  kUnseen,   // this user may not see it
};

struct Finding {
  std::string area;
  Level level = Level::kOk;
  std::string text;  // a sentence
  std::string help;  // the remedy; may be empty
};

// Returns the findings by area, always in the same order.
std::vector<Finding> Examine(const Facts& facts);

size_t CountOf(const std::vector<Finding>& findings, Level level);

}  // namespace gpumem::cli
