// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/trim.h"

#include "daemon/core/admission/sums.h"

namespace gpumemd {
namespace {

using Request = records::Request;
using Tenant = records::Tenant;

}  // namespace

void TrimForShortfall(const LedgerState& state, Segments& segments, const Request& request,
                      uint32_t fresh, const Claims& claims) {
  Tenant& tenant = *request.tenant;
  const size_t device = request.device;
  const uint64_t bytes = request.bytes * fresh;
  const auto over = [](uint64_t used, uint64_t more, uint64_t limit) {
    return Plus(used, more) > limit;
  };
  const auto claimed = [&](Denial::Cause cause, const Tenant* whose, size_t where) {
    auto it = claims.find({cause, whose, where});
    return it == claims.end() ? 0 : it->second.asked;
  };
  const auto doom_anywhere = [&](Tenant& from, bool pinned_too = true) {
    for (size_t d = 0; d < state.devices.size(); ++d) {
      if (!pinned_too && IsHostMemory(state.devices[d])) continue;
      if (segments.DoomOldest(from, d)) return true;
    }
    return false;
  };
  // On the device, the tenant's segments first, then those of others under `above`.
  const auto doom_on_device = [&](const Tenant* above) {
    if (segments.DoomOldest(tenant, device)) return true;
    Tenant* other = segments.RichestRetainer(device, above);
    return other != nullptr && segments.DoomOldest(*other, device);
  };
  const auto doom_under = [&](const Tenant* above, bool pinned_too) {
    if (doom_anywhere(tenant, pinned_too)) return true;
    Tenant* other = nullptr;
    for (size_t d = 0; d < state.devices.size() && other == nullptr; ++d) {
      if (pinned_too || !IsHostMemory(state.devices[d])) other = segments.RichestRetainer(d, above);
    }
    return other != nullptr && doom_anywhere(*other, pinned_too);
  };

  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    const uint64_t more = Plus(bytes, claimed(Denial::Cause::kDeviceLimit, each, device));
    while (over(Staying(each->accounts[device]), more, state.LimitOn(*each, device)) &&
           doom_on_device(each)) {
    }
    const uint64_t total_limit = each->quota.total_limit_bytes.value_or(kUnlimited);
    const uint64_t more_in_all =
        Plus(bytes, claimed(Denial::Cause::kTotalLimit, each, kAllDevices));
    while (!IsHostMemory(state.devices[device]) && total_limit != kUnlimited &&
           over(SumUnpinned(state.devices, each->accounts, Staying), more_in_all, total_limit) &&
           doom_under(each, /*pinned_too=*/false)) {
    }
    const uint64_t max_segments = each->quota.max_segments.value_or(UINT32_MAX);
    const uint64_t more_segments =
        Plus(fresh, claimed(Denial::Cause::kMaxSegments, each, kAllDevices));
    while (over(SumOver(each->accounts, StayingSegments), more_segments, max_segments) &&
           doom_under(each, /*pinned_too=*/true)) {
    }
  }
  const uint64_t more = Plus(bytes, claimed(Denial::Cause::kCapacity, nullptr, device));
  while (over(Staying(state.device_accounts[device]), more, state.devices[device].capacity_bytes) &&
         doom_on_device(nullptr)) {
  }
  const uint64_t more_segments =
      Plus(fresh, claimed(Denial::Cause::kDaemonLimit, nullptr, kAllDevices));
  while (over(SumOver(state.device_accounts, StayingSegments), more_segments,
              state.bounds.max_segments) &&
         doom_under(nullptr, /*pinned_too=*/true)) {
  }
}

}  // namespace gpumemd
