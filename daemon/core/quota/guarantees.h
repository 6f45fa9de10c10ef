// Whether guarantees can be kept all at the same time. Pure arithmetic over quotas, for the
// configuration, for what operators change, and for what is remembered of that.
//
// What a tenant needs on a device is its guarantee, or the sum of what its members need where
// that is more: members draw on the guarantee of the tenant they are under. A need fits where
//   - a tenant's guarantee is within its own limit,
//   - what its members need together is within its limit,
//   - what it needs on all devices together is within its total limit,
//   - what all tenants that are under none need together is within the device's capacity.
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

// Without a word in the quota there is none, nor ever one of pinned memory.
uint64_t GuaranteeOn(const Quota& quota, const DeviceInfo& device);
// UINT64_MAX where the quota has none.
uint64_t LimitOn(const Quota& quota, const DeviceInfo& device);

struct GuaranteeProblem {
  enum class What {
    kAboveLimit,         // a tenant's guarantee
    kMembersAboveLimit,  // what its members need
    kAboveTotalLimit,    // what a tenant needs on all devices
    kAboveCapacity,      // what all tenants need
  };
  What what{};
  std::string tenant;   // empty: all
  std::string device;   // its UUID; empty: all, or no certain one
  uint64_t needed = 0;  // bytes
  uint64_t limit = 0;
  std::vector<std::pair<std::string, uint64_t>> parts;  // of a sum: who needs what, by name
};

// Tenants by name. A parent that is not among them counts as none. nullopt: there is no problem.
std::optional<GuaranteeProblem> FindGuaranteeProblem(const std::map<std::string, Quota>& tenants,
                                                     absl::Span<const DeviceInfo> devices);

// One sentence: what is wrong and what would help. `show` writes an amount.
std::string Tell(const GuaranteeProblem& problem, const std::function<std::string(uint64_t)>& show);
// With amounts as people read them.
std::string Tell(const GuaranteeProblem& problem);

}  // namespace gpumemd
