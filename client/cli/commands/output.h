// SPDX-License-Identifier: Apache-2.0
// The form of a command's output, by the options of every command.
#pragma once

#include "client/cli/options/command_line.h"
#include "client/cli/text/table.h"
#include "client/cli/text/terminal.h"

namespace gpumem::cli {

// Returns the layout of tables on stdout: the wide form cuts nothing, and has details.
inline Layout LayoutFor(const GlobalOptions& options) {
  return {options.wide ? kAnyWidth : Stdout(options.color).columns, options.headers, options.wide};
}

}  // namespace gpumem::cli
