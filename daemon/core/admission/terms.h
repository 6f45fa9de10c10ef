// SPDX-License-Identifier: Apache-2.0
// What a request for memory comes to: device, kind and rounded size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

struct AcquireTerms {
  size_t device = 0;
  Kind kind = Kind::kVmm;
  uint64_t bytes = 0;  // of each segment, rounded up
};

//   NOT_FOUND         there is no such device
//   INVALID_ARGUMENT  the request is for no bytes, too many segments, or more than the device has
//   UNIMPLEMENTED     the device does not make the kind, or the kind cannot be revocable
absl::StatusOr<AcquireTerms> CheckSpec(const LedgerState& state, const records::Tenant& tenant,
                                       const AcquireSpec& spec);

}  // namespace gpumemd
