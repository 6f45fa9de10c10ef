// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/guarantees.h"

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/core/ledger/testing/model/devices.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

uint64_t Need(const LedgerModel& model, const std::string& name, size_t device, uint64_t more,
              bool emptied) {
  uint64_t held = more;
  for (const auto& [id, segment] : model.segments) {
    const bool firm = !segment.given_up && segment.kept_since == 0 && !segment.revocable;
    if (!emptied && firm && segment.device == device && segment.tenant == name) {
      held += segment.bytes;
    }
  }
  for (const auto& [other, tenant] : model.tenants) {
    if (tenant.parent == name) held += Need(model, other, device, 0, emptied);
  }
  return name.empty() ? held : std::max(held, GuaranteeOn(model, name, device));
}

uint64_t UnusedGuarantee(const LedgerModel& model, const std::string& name, size_t device) {
  uint64_t unused = Need(model, name, device);
  for (const auto& [id, segment] : model.segments) {
    const bool firm = !segment.given_up && segment.kept_since == 0 && !segment.revocable;
    if (firm && segment.device == device && segment.tenant == name) unused -= segment.bytes;
  }
  for (const auto& [other, tenant] : model.tenants) {
    if (tenant.parent == name) unused -= Need(model, other, device);
  }
  return unused;
}

uint64_t Deficit(const LedgerModel& model, const Request& request) {
  uint64_t unused = 0;
  for (const std::string& each : PathOf(model, request.tenant)) {
    unused += UnusedGuarantee(model, each, request.device);
  }
  return !request.revocable && request.in_all() <= unused ? unused : 0;
}

bool Allowed(const LedgerModel& model, const Request& request, bool emptied) {
  uint64_t more = request.revocable ? 0 : request.in_all();
  std::vector<std::string> limited = PathOf(model, request.tenant);
  limited.emplace_back("");
  const auto held = [&](const std::string& whose, size_t device, Which which) {
    return emptied ? Sum{} : SumOf(model, whose, device, which);
  };
  for (const std::string& each : limited) {
    const uint64_t limit = each.empty() ? model.devices[request.device].capacity_bytes
                                        : LimitOn(model, each, request.device);
    const uint64_t before = Need(model, each, request.device, 0, emptied);
    const uint64_t need = Need(model, each, request.device, more, emptied);
    more = need - before;
    if (need > limit || request.in_all() > limit) return false;
    const uint64_t segments = each.empty()
                                  ? model.bounds.max_segments
                                  : model.tenants.at(each).quota.max_segments.value_or(UINT32_MAX);
    if (held(each, kEverywhere, Which::kHeld).segments + request.count > segments) return false;
    if (each.empty() || Pinned(model, request.device)) continue;
    const uint64_t total = model.tenants.at(each).quota.total_limit_bytes.value_or(UINT64_MAX);
    uint64_t needs = more;
    for (size_t d = 0; d < model.devices.size(); ++d) {
      if (!Pinned(model, d)) needs += Need(model, each, d, 0, emptied);
    }
    if (request.in_all() > total) return false;
    // Unused guarantees of the tenant on other devices do not count: the tenant chooses where to
    // use its total limit.
    if (each == request.tenant
            ? held(each, kUnpinned, Which::kHeld).bytes + request.in_all() > total
            : needs > total) {
      return false;
    }
  }
  return true;
}

}  // namespace gpumemd::model
