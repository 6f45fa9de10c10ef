// SPDX-License-Identifier: Apache-2.0
// Places at which a test kills the daemon, to check that the next one goes on.
#pragma once

#include "common/failpoint.h"

namespace gpumemd {

using gpumem::Failpoint;

}  // namespace gpumemd
