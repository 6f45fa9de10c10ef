// SPDX-License-Identifier: Apache-2.0
// Segments of kind driver: their memory is made by the CUDA driver of the process that leases them.
#pragma once

#include <memory>

#include "daemon/device/device.h"

namespace gpumemd {

// Returns the Allocation of such a segment. It has nothing to share and frees nothing.
inline std::unique_ptr<Allocation> MakeChargeOnly() {
  class ChargeOnly : public Allocation {};
  return std::make_unique<ChargeOnly>();
}

}  // namespace gpumemd
