// SPDX-License-Identifier: Apache-2.0
// Reads ResourceClaims and ResourceSlices in JSON. Pure.
//
// The objects are untrusted: counts and names are bounded. An object that makes no sense is
// reported and does not hide the others.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/kubernetes/api/claims.h"
#include "client/kubernetes/api/json_reader.h"

namespace gpumem::kubernetes {

inline constexpr char kClaimKind[] = "ResourceClaim";
inline constexpr char kSliceKind[] = "ResourceSlice";
inline constexpr size_t kMostSliceDevices = 128;  // as in Kubernetes

// Returns a claim that has devices of `driver` allocated; nullopt: it has none. Allocations for
// administrators take no memory, and do not count. `pool`: other pools' devices do not count
// either; empty: those of all pools do.
std::optional<Claim> ReadClaim(const Json& object, absl::string_view driver,
                               absl::string_view pool = "");

// Returns a slice of `driver`; nullopt: it is another driver's, or has no pool.
std::optional<Slice> ReadSlice(const Json& object, absl::string_view driver);

// Returns the devices of the slices. Of a pool's slices, only those of its newest generation count.
SliceList MergeSlices(absl::Span<const Slice> slices);

}  // namespace gpumem::kubernetes
