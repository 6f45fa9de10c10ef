// gpumemctl describe: all that is known of one thing, in paragraphs. Pure.
#pragma once

#include <string>

#include "client/cli/views/snapshot.h"

namespace gpumem::cli {

// `thing` was found in the same snapshot. Sizes are in bytes where `exact`; lines are broken
// to fit into `columns`.
std::string DescribeView(const Snapshot& snapshot, const Thing& thing, bool exact, size_t columns);

}  // namespace gpumem::cli
