// SPDX-License-Identifier: Apache-2.0
// How this process's threads wait for answers of the daemon that come soon.
#pragma once

#include "common/spin/spin.h"

namespace gpumem {

// Returns the spinner for such waits. $GPUMEM_SPIN_US sets its options (ParseSpin); with a value
// that says nothing it never spins.
Spinner& AnswerSpinner();

}  // namespace gpumem
