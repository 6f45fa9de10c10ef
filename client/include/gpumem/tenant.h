// SPDX-License-Identifier: Apache-2.0
// Tenants that a program makes under its tenant, to hold a part of its work to less. Part of
// client.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "gpumem/types.h"

namespace gpumem {

// The limits of a tenant that Client::CreateTenant makes. An absent one is no limit of this tenant.
// Those of the tenants above it hold as well: nothing here gives it more than they have.
struct TenantLimits {
  std::optional<uint64_t> limit_bytes;            // on any one GPU
  std::map<std::string, uint64_t> device_limits;  // on single GPUs, by UUID, in place of that
  std::optional<uint64_t> total_limit_bytes;      // over all GPUs
  std::optional<uint64_t> pinned_limit_bytes;     // of pinned host memory
  std::optional<uint64_t> tier_limit_bytes;       // of suspended memory in the host tier
  std::optional<uint32_t> max_segments, max_sessions;
  std::optional<uint32_t> max_waiting;  // requests that wait at one time
  std::optional<int32_t> priority;      // that of the tenant above it at most
  std::optional<PreloadMode> preload;   // absent: as in the tenant above it
};

struct TenantOptions {
  // Letters, digits, '.', '_' and '-'. Empty: one that no other tenant has; a lasting one has a
  // name.
  std::string name;
  TenantLimits limits;
  // False: it ends with the Client's session. True: it lasts until EndTenant, or until a tenant
  // above it ends, also without sessions and over restarts of the daemon.
  bool lasting = false;
};

// A tenant that programs of this user have made under a Client's.
struct MadeTenant {
  std::string name;  // whole
  bool lasting = false;
  bool ending = false;  // EndTenant was called, and it still has something
  absl::Time created;
  uint64_t charged_bytes = 0;  // over all GPUs, with those under it
  uint32_t sessions = 0;       // the same
};

// What a tenant that has ended, and those under it, still have.
struct TenantRemains {
  bool gone = false;                             // nothing
  std::map<std::string, uint64_t> device_bytes;  // by UUID; only those above 0
  uint32_t sessions = 0;
};

}  // namespace gpumem
