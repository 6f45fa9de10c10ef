// SPDX-License-Identifier: Apache-2.0
// The devices above the table of gpumemctl top. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "client/cli/text/styled.h"
#include "client/cli/views/top_view.h"

namespace gpumem::cli {

// Adds a line for each of the first `count` devices: name, model, use. Models are cut, or left out,
// where `columns` have no room.
void AddMeters(const TopData& data, size_t count, bool exact, size_t columns,
               std::vector<Line>* lines);

}  // namespace gpumem::cli
