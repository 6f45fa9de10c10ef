// The findings of gpumemctl doctor. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/cli/doctor/facts.h"
#include "client/cli/text/json.h"
#include "client/cli/text/styled.h"

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

// For people, in lines of at most `columns` characters.
std::vector<Line> DoctorView(const std::vector<Finding>& findings, size_t columns);

// {"findings": [{"area", "level", "text", "help"}], "problems", "warnings", "unseen"}; level is
// "ok", "warning", "problem" or "unseen".
Json DoctorJson(const std::vector<Finding>& findings);

}  // namespace gpumem::cli
