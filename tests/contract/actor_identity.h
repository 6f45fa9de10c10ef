// SPDX-License-Identifier: Apache-2.0
// Takes an actor's identity, before the process does anything else.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace gpumem::contract {

// `name` as from IdentityName. For "own_namespaces" the process goes on as the first of its PID
// namespace, and this call returns only there; it dies with the process that called.
absl::Status BecomeIdentity(const std::string& name);

}  // namespace gpumem::contract
