// SPDX-License-Identifier: Apache-2.0
// --dry-run, and the question before a command takes something from others.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/cli/effects/effects.h"
#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// True if a question can be asked: standard input and standard error are terminals.
bool CanAsk();

// Returns true if the command is to be carried out; false: --dry-run has printed the effects. Asks
// the user if others lose something, CanAsk() and there is no --yes. Calls `effects` only if they
// are needed.
//   CANCELLED  the answer was not yes
//   else       the status of `effects`
absl::StatusOr<bool> Proceed(const Caution& caution, const std::string& what,
                             absl::FunctionRef<absl::StatusOr<Effects>()> effects,
                             const GlobalOptions& options);

}  // namespace gpumem::cli
