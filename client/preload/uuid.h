// SPDX-License-Identifier: Apache-2.0
// Names of devices as NVML prints them.
#pragma once

namespace gpumem::preload {

// Converts "GPU-01234567-89ab-cdef-0123-456789abcdef" (or "MIG-…") to bytes. False if it is not
// such a name.
bool ParseUuid(const char* text, unsigned char (*uuid)[16]);

}  // namespace gpumem::preload
