// Descriptors that are kept for operators, so that gpumemctl works when workers have taken the
// others.
#pragma once

#include "absl/status/status.h"

namespace gpumemd {

// True if `fd`, which has just been opened, is one of the last that the process may open: for a
// worker it has to be closed again. The kernel gives out the lowest number that is free, so such a
// number means that all lower ones are in use.
bool IsOfReserve(int fd);

// RESOURCE_EXHAUSTED, with what would help.
absl::Status NoDescriptors();

}  // namespace gpumemd
