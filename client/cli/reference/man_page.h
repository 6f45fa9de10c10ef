// SPDX-License-Identifier: Apache-2.0
// gpumemctl(1), in the language of man(7).
#pragma once

#include <string>
#include <vector>

#include "client/cli/reference/command_tree.h"

namespace gpumem::cli {

std::string ManPage(const std::vector<CommandReference>& commands);

}  // namespace gpumem::cli
