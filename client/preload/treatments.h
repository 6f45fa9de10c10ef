// SPDX-License-Identifier: Apache-2.0
// How the preload treats each of the driver's functions that could bring memory to a program.
#pragma once

#include <vector>

namespace gpumem::preload {

enum class Treatment {
  kAccount,  // reserved, then left to the driver
  kServe,    // answered by the preload, from the driver's answer and the tenant's limit
  kHold,     // left to the driver, but not while the program's memory is suspended
  kPass,     // left to the driver, for the reason given
  // Answered with an error. No function needs that so far.
  kRefuse,
};

struct Treated {
  const char* name;
  Treatment treatment;
  const char* reason;  // of kPass and kRefuse
};

// Returns the table: each version and variant of a function by itself. A test compares it with the
// toolkit's cuda.h.
std::vector<Treated> Treatments();

}  // namespace gpumem::preload
