// SPDX-License-Identifier: Apache-2.0
// The findings of gpumemctl doctor as text and as JSON. Pure.
#pragma once

#include <vector>

#include "client/cli/doctor/examine.h"
#include "client/cli/text/json.h"
#include "client/cli/text/styled.h"

namespace gpumem::cli {

// For people, in lines of at most `columns` characters.
std::vector<Line> DoctorView(const std::vector<Finding>& findings, size_t columns);

// {"findings": [{"area", "level", "text", "help"}], "problems", "warnings", "unseen"}; level is
// "ok", "warning", "problem" or "unseen".
Json DoctorJson(const std::vector<Finding>& findings);

}  // namespace gpumem::cli
