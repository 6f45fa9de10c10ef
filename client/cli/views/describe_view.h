// SPDX-License-Identifier: Apache-2.0
// gpumemctl describe: all known facts of one object, in paragraphs. Pure.
#pragma once

#include <string>

#include "client/cli/text/table.h"
#include "client/cli/views/snapshot.h"

namespace gpumem::cli {

// Requires that `thing` was found in this snapshot. Sizes are in bytes if `exact`; lines are broken
// to fit into the layout's columns, and its tables obey the layout.
std::string DescribeView(const Snapshot& snapshot, const Thing& thing, bool exact, Layout layout);

}  // namespace gpumem::cli
