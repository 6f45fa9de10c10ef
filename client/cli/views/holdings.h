// SPDX-License-Identifier: Apache-2.0
// The holders of a device: the daemon's answers, added up. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

// The memory of a tenant on a device, without the tenants under it.
struct Holding {
  std::string tenant;
  uint64_t leased = 0;
  uint64_t retained = 0;
  uint64_t lingering = 0;
  uint64_t moving = 0;  // being allocated, or returned to the driver

  uint64_t held() const { return leased + retained + lingering + moving; }
};

struct DeviceHoldings {
  std::vector<Holding> tenants;  // those with memory, the largest first
  Holding all;                   // the sum of all
  uint64_t outside = 0;          // taken past the broker, if the driver reports free memory
  uint64_t free = 0;             // of the capacity
};

DeviceHoldings HoldingsOn(const v1::Device& device, const v1::ListTenantsResponse& tenants);

}  // namespace gpumem::cli
