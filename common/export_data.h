// SPDX-License-Identifier: Apache-2.0
// The 64 bytes by which one process opens another's memory.
#pragma once

#include <array>
#include <cstdint>

namespace gpumem {

// A cudaIpcMemHandle_t (kind ipc) or a cudaMemPoolPtrExportData (kind mempool); on the host
// backend, their stand-ins.
using ExportData = std::array<uint8_t, 64>;

}  // namespace gpumem
