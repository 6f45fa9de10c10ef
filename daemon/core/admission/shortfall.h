// SPDX-License-Identifier: Apache-2.0
// What a request lacks at each limit, and how much of it suspended leases would make free. Changes
// nothing.
//
// The amounts are upper bounds: memory that others share, or that a session leases twice, counts
// for each lease. So a request may lack something after all asked sessions have suspended. Then
// others are asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/admission/account.h"
#include "daemon/core/admission/standing.h"
#include "daemon/core/ledger/records.h"

namespace gpumemd {

class Shortfall {
 public:
  // The tenants must outlive this. `claims`: of the waiters before it.
  Shortfall(const records::Request& request, const Decision& decision, const Claims& claims);

  // Counts bytes of this tenant on the request's device as free. False if that helps at no limit
  // where something is lacking, or the tenant holds no more than is guaranteed to it there. Such
  // memory is not for others.
  bool Free(const records::Tenant& tenant, uint64_t bytes);
  // True if the request would fit then, with memory that is on its way already.
  bool Covered() const;
  // True if it would fit once `revocable` bytes of the device were revoked as well.
  bool CoveredBy(uint64_t revocable) const;

 private:
  struct Lack {
    Standing standing;
    Claim claim;
  };
  // Returns the bytes of the tenant that others may have: those above its guarantee, and above the
  // guarantees of the tenants above it that do not stand above the asking tenant, too.
  uint64_t AboveGuarantees(const records::Tenant& tenant) const;

  const records::Tenant& tenant_;  // that asks
  const size_t device_;
  std::vector<Lack> lacks_;
  absl::flat_hash_map<const Account*, uint64_t> freed_;
};

}  // namespace gpumemd
