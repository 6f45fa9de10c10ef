// SPDX-License-Identifier: Apache-2.0
// Descriptors reserved for operators, so that gpumemctl works when workers have taken the others.
#pragma once

#include "absl/status/status.h"

namespace gpumemd {

// True if `fd`, just opened, is one of the last that the process may open. A worker's descriptor
// must then be closed again. The kernel assigns the lowest free number, so such a number means that
// all lower ones are in use.
bool IsOfReserve(int fd);

// Returns RESOURCE_EXHAUSTED, with advice.
absl::Status NoDescriptors();

}  // namespace gpumemd
