// SPDX-License-Identifier: Apache-2.0
// Checks whether all guarantees can be kept at the same time. Pure arithmetic over quotas, for the
// configuration, for operators' changes, and for saved changes.
//
// A tenant's need on a device is the larger of its guarantee and the sum of its members' needs:
// members draw on the guarantee of the tenant they are under. All needs fit if
//   - a tenant's guarantee is within its limit,
//   - its members' needs together are within its limit,
//   - its needs on all devices together are within its total limit,
//   - the needs of all tenants without a parent together are within the device's capacity.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/quota/quota.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Returns 0 if the quota names none, and always for pinned memory.
uint64_t GuaranteeOn(const Quota& quota, const DeviceInfo& device);
// Returns UINT64_MAX if the quota has no limit.
uint64_t LimitOn(const Quota& quota, const DeviceInfo& device);
// Returns true if the quota has a guarantee, on any device.
inline bool HasGuarantee(const Quota& quota) {
  return quota.guarantee_bytes || !quota.device_guarantees.empty();
}
inline bool HaveSameGuarantees(const Quota& a, const Quota& b) {
  return a.guarantee_bytes == b.guarantee_bytes && a.device_guarantees == b.device_guarantees;
}

struct GuaranteeProblem {
  enum class What {
    kAboveLimit,         // a tenant's guarantee
    kMembersAboveLimit,  // its members' needs
    kAboveTotalLimit,    // a tenant's needs on all devices
    kAboveCapacity,      // all tenants' needs
  };
  What what{};
  std::string tenant;   // empty: all
  std::string device;   // its UUID; empty: all, or no particular one
  uint64_t needed = 0;  // bytes
  uint64_t limit = 0;
  // Of a sum: each tenant's need, by name. Empty: not told.
  std::vector<std::pair<std::string, uint64_t>> parts;
};

// Returns the first problem, or nullopt. `tenants` is by name. A parent that is not in it counts as
// none.
std::optional<GuaranteeProblem> FindGuaranteeProblem(const std::map<std::string, Quota>& tenants,
                                                     absl::Span<const DeviceInfo> devices);

// Returns one sentence: the problem and what would help. `show` formats an amount.
std::string Tell(const GuaranteeProblem& problem, const std::function<std::string(uint64_t)>& show);
// As above, with amounts as people read them.
std::string Tell(const GuaranteeProblem& problem);

}  // namespace gpumemd
