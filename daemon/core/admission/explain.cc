// SPDX-License-Identifier: Apache-2.0
// Why a request does not fit, as a denial: for people and programs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "daemon/core/admission/room.h"

namespace gpumemd {
namespace {

// Returns who raises a limit of the tenant, and the beginning of the command. A user who divides a
// tenant raises the parts' limits.
absl::string_view HelpToRaise(const LedgerState& state, absl::string_view limited) {
  const records::Tenant* tenant = state.FindTenant(limited);
  return tenant != nullptr && tenant->made && tenant->made->by_session()
             ? "raise the limit that it was made with (gpumemctl tenant update "
             : "ask an operator for a higher limit (gpumemctl quota set ";
}

}  // namespace

using gpumem::FormatBytes;

Denial Room::Explain(const Request& request, const Decision& decision) const {
  if (!decision.worst) return {};
  return DenialFor(request, decision.standings[*decision.worst], decision.worst_claim,
                   decision.fit);
}

Denial Room::DenialFor(const Request& request, const Standing& standing, const Claim& claim,
                       Fit fit) const {
  Denial denial;
  denial.cause = standing.cause;
  denial.tenant = request.tenant->name;
  if (standing.device != kAllDevices) denial.device_uuid = state_.devices[standing.device].uuid;
  if (standing.whose != nullptr && standing.whose != request.tenant) {
    denial.limited_tenant = standing.whose->name;
  }
  denial.asked = standing.asked;
  denial.limit = standing.limit;
  if (fit == Fit::kSoon || fit == Fit::kRevoked) {
    denial.used = standing.used;
    denial.help = fit == Fit::kSoon
                      ? "memory for this request is being released to the driver; ask again"
                      : "revocable leases are being taken back for this request; wait for it";
    return denial;
  }
  denial.used = standing.used - standing.recoverable;
  if (standing.more_need > 0 && Plus(standing.need, standing.more_need) > standing.limit &&
      Plus(denial.used - standing.revocable, denial.asked) <= standing.limit) {
    denial.cause = Denial::Cause::kGuarantees;
    denial.used = standing.need - std::min(standing.need, standing.asked - standing.more_need);
  } else if (FitOf(standing, {}, /*may_revoke=*/false) < Fit::kBlocked && claim.asked > 0) {
    denial.queued_at = denial.cause;
    denial.cause = Denial::Cause::kQueue;
    denial.used = Plus(denial.used, claim.asked);
  }
  if (denial.cause != Denial::Cause::kQueue) AddHolders(standing, denial);
  denial.help = HelpFor(*request.tenant, denial);
  return denial;
}

void Room::AddHolders(const Standing& standing, Denial& denial) const {
  constexpr size_t kFew = 4;
  if (standing.device == kAllDevices || standing.whose == nullptr
          ? standing.cause != Denial::Cause::kCapacity
          : standing.whose->children.empty()) {
    return;
  }
  std::vector<std::pair<uint64_t, const std::string*>> holders;
  for (const auto& [name, tenant] : state_.tenants) {
    if (!tenant->children.empty()) continue;  // those under it are named
    if (standing.whose != nullptr && !state_.IsUnder(*tenant, *standing.whose)) continue;
    const uint64_t held = tenant->accounts[standing.device].held();
    if (held > 0) holders.emplace_back(held, &name);
  }
  const size_t few = std::min(kFew, holders.size());
  std::partial_sort(holders.begin(), holders.begin() + static_cast<ptrdiff_t>(few), holders.end(),
                    [](const auto& a, const auto& b) {
                      return a.first != b.first ? a.first > b.first : *a.second < *b.second;
                    });
  for (size_t i = 0; i < few; ++i) {
    Denial::Holder& holder = denial.holders.emplace_back();
    holder.tenant = *holders[i].second;
    holder.used = holders[i].first;
  }
}

std::string Room::HelpFor(const Tenant& tenant, const Denial& denial) const {
  switch (denial.cause) {
    case Denial::Cause::kDeviceLimit:
    case Denial::Cause::kTotalLimit: {
      const auto device = state_.FindDevice(denial.device_uuid);
      const bool tier = device.ok() && IsHostTier(state_.devices[*device]);
      const bool pinned = device.ok() && !tier && IsHostMemory(state_.devices[*device]);
      const std::string& limited =
          denial.limited_tenant.empty() ? tenant.name : denial.limited_tenant;
      const std::string raise =
          absl::StrCat(HelpToRaise(state_, limited), limited,
                       denial.cause == Denial::Cause::kTotalLimit ? " --total-limit"
                       : pinned                                   ? " --pinned-limit"
                       : tier                                     ? " --tier-limit"
                                                                  : " --limit",
                       " SIZE)");
      if (denial.asked > denial.limit) return absl::StrCat("ask for less, or ", raise);
      const uint64_t idle =
          state_.IdleInPools(tenant, device.ok() ? std::optional<size_t>(*device) : std::nullopt);
      return absl::StrCat(
          "release ", FormatBytes(denial.used - (denial.limit - denial.asked)), ", or ",
          idle == 0 ? ""
                    : absl::StrCat("end the processes that have used kind mempool (CUDA keeps ",
                                   FormatBytes(idle), " that were released until then), or "),
          raise);
    }
    case Denial::Cause::kMaxSegments:
      return absl::StrCat(
          "use fewer and larger segments, or ask an operator for more (gpumemctl "
          "quota set ",
          denial.limited_tenant.empty() ? tenant.name : denial.limited_tenant,
          " --max-segments N)");
    case Denial::Cause::kCapacity:
      if (const auto device = state_.FindDevice(denial.device_uuid);
          device.ok() && IsHostTier(state_.devices[*device])) {
        return "resume or release suspended memory, or ask an operator for a larger host tier "
               "(capacity of [tier])";
      }
      if (denial.asked > denial.limit) {
        return "ask for less, or spread it over several devices";
      }
      return "release memory, or wait until other tenants do (gpumemctl segments shows the "
             "holders), or use another device";
    case Denial::Cause::kGuarantees:
      return "wait until other tenants release memory, use another device, or request a revocable "
             "lease, which may use idle memory that is guaranteed to other tenants";
    case Denial::Cause::kQueue:
      if (denial.queued_at == Denial::Cause::kMaxSegments ||
          denial.queued_at == Denial::Cause::kDaemonLimit) {
        return "earlier requests wait for segments: wait, too (AcquireOptions::wait; gpumemctl "
               "hold --wait), or use fewer and larger segments";
      }
      return "earlier requests wait for this memory: wait, too (AcquireOptions::wait; gpumemctl "
             "hold --wait), or use another device";
    default:
      return "the daemon is at its limit of segments (daemon.max_segments)";
  }
}

}  // namespace gpumemd
