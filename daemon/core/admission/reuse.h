// SPDX-License-Identifier: Apache-2.0
// Which of a tenant's unused segments a request reuses.
#pragma once

#include <algorithm>
#include <cstdint>

#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/retained_pool.h"

namespace gpumemd {

// Returns the tenant's unused segments from which the request is served.
inline RetainedPool& PoolFor(const records::Request& request) {
  records::Tenant& tenant = *request.tenant;
  return TraitsOf(request.kind).pooled ? tenant.pools[request.device].idle
                                       : tenant.retained[request.device];
}

// Returns how many of these the request would reuse.
inline uint32_t Reusable(const records::Request& request) {
  if (request.tenant->quota.scrub || request.BringsBack()) return 0;
  const size_t there = PoolFor(request).Fits(request.kind, request.bytes);
  return static_cast<uint32_t>(std::min<size_t>(there, request.count));
}

}  // namespace gpumemd
