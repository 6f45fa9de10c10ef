// SPDX-License-Identifier: Apache-2.0
// Every limit in bytes or segments that can block a request, and how a request stands to it.
//
// A request is measured against the limits of its tenant, of that tenant's ancestors, of the device
// and of the daemon. For each, the usage counts in parts:
// - Memory that only its holders can give up.
// - Memory that can be taken back from its holders after a notice (revocable).
// - Memory that comes back without its holders: retained segments, which can be doomed at once,
//   releasing ones, which the driver is about to take, and those being revoked already.
//
// A request is blocked if the first part alone leaves too little room. Else it fits, now or soon.
// Retained segments are doomed until it does: the requester's before other tenants', the oldest
// first.
//
// Beside the usage, a firm request must leave room for all that is guaranteed (Account::need). A
// revocable one need not: it can be taken back for that.
#include "daemon/core/admission/room.h"

#include <algorithm>

#include "daemon/core/admission/sums.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

uint64_t Room::Obtainable(const Tenant& tenant, size_t device, const Coming& coming) const {
  const auto more = [&coming](const Account& account) -> uint64_t {
    const auto it = coming.find(&account);
    return it == coming.end() ? 0 : it->second;
  };
  const auto held = [&more](const Account& account) {
    return account.charged() - Recoverable(account) + more(account);
  };
  const auto left = [](uint64_t limit, uint64_t used) { return limit - std::min(limit, used); };
  const Account& all = state_.device_accounts[device];
  uint64_t least = left(state_.devices[device].capacity_bytes, held(all) + all.elsewhere());
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    least = std::min(least, left(state_.LimitOn(*each, device), held(each->accounts[device])));
    if (IsHostMemory(state_.devices[device]) || !each->quota.total_limit_bytes) continue;
    least = std::min(least, left(*each->quota.total_limit_bytes,
                                 SumUnpinned(state_.devices, each->accounts, held)));
  }
  // Memory that is guaranteed to others and not held cannot be had firmly.
  if (tenant.quota.revocable) return least;
  const Account& own = tenant.accounts[device];
  const uint64_t guaranteed = own.unused_guarantees();
  const uint64_t uncommitted = left(state_.devices[device].capacity_bytes, all.need() + more(all));
  return std::min(least, Plus(guaranteed, uncommitted));
}

QueueRank RankOf(const records::Request& request) {
  return {Room::Deficit(request), request.tenant->quota.priority};
}

std::vector<WaiterId> WaitersInOrder(const LedgerState& state) {
  std::vector<std::pair<QueueRank, WaiterId>> ranked;
  ranked.reserve(state.waiters.size());
  for (const auto& [id, waiter] : state.waiters) ranked.emplace_back(RankOf(waiter.request), id);
  std::stable_sort(ranked.begin(), ranked.end(),  // they are by arrival already
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<WaiterId> waiters;
  waiters.reserve(ranked.size());
  for (const auto& [rank, id] : ranked) waiters.push_back(id);
  return waiters;
}

std::vector<Standing> Room::StandingsOf(const Request& request, uint32_t reused) const {
  const size_t device = request.device;
  const bool pinned = IsHostMemory(state_.devices[device]);
  // No overflow: bytes is at most a device's capacity, count at most 253.
  const uint64_t asked = request.bytes * request.count;
  // Reused segments are charged already. They count as asked for, so neither as used nor as
  // recoverable. Those of a memory pool are also held: lingering.
  const uint64_t taken = request.bytes * reused;
  const bool of_pool = TraitsOf(request.kind).pooled;
  // To the host tier or back: in the end, there are as many segments as before.
  const bool moves = request.kind == Kind::kTier || request.BringsBack();
  const uint64_t from_retained = of_pool ? 0 : taken;
  const uint32_t segments_from_retained = of_pool ? 0 : reused;
  const auto charged = [](const Account& account) { return account.charged(); };
  const auto segments = [](const Account& account) { return account.segments(); };
  const uint64_t capacity = state_.devices[device].capacity_bytes;

  std::vector<Standing> standings;
  standings.reserve(8);
  uint64_t more = request.revocable ? 0 : asked - (of_pool ? taken : 0);
  uint64_t least_more = request.revocable ? 0 : asked;
  const auto need_of = [&](const Account& account, Standing& standing) {
    standing.need = account.need();
    standing.more_need = more = account.NeedWith(more) - account.need();
    if (request.revocable) return;
    const uint64_t least = account.LeastNeedWith(least_more);
    least_more = least - account.least_need();
    if (least_more > 0) standing.least = least;
  };
  for (const Tenant* each = request.tenant; each != nullptr; each = each->parent) {
    const Account& account = each->accounts[device];
    const uint64_t limit = state_.LimitOn(*each, device);
    Standing on_device = {.cause = Denial::Cause::kDeviceLimit,
                          .whose = each,
                          .device = device,
                          .asked = asked,
                          .used = account.charged() - taken,
                          .recoverable = Recoverable(account) - from_retained,
                          .revocable = account.revocable(),
                          .revoking = account.revoking(),
                          // If it is the capacity that limits the tenant, that is the cause to
                          // report.
                          .limit = limit < capacity ? limit : kUnlimited};
    need_of(account, on_device);
    standings.push_back(on_device);
    if (!pinned && each->quota.total_limit_bytes) {
      standings.push_back(
          {.cause = Denial::Cause::kTotalLimit,
           .whose = each,
           .device = kAllDevices,
           .asked = asked,
           .used = SumUnpinned(state_.devices, each->accounts, charged) - taken,
           .recoverable = SumUnpinned(state_.devices, each->accounts, Recoverable) - from_retained,
           .revocable = SumUnpinned(state_.devices, each->accounts,
                                    [](const Account& on) { return on.revocable(); }),
           .revoking = SumUnpinned(state_.devices, each->accounts,
                                   [](const Account& on) { return on.revoking(); }),
           .limit = *each->quota.total_limit_bytes});
      // Tenants under it must leave each other their guarantees on any device.
      if (each != request.tenant) {
        standings.back().need = SumUnpinned(state_.devices, each->accounts,
                                            [](const Account& on) { return on.need(); });
        standings.back().more_need = more;
        if (least_more > 0) {
          standings.back().least =
              least_more + SumUnpinned(state_.devices, each->accounts,
                                       [](const Account& on) { return on.least_need(); });
        }
      }
    }
    if (each->quota.max_segments && !moves) {
      standings.push_back(
          {.cause = Denial::Cause::kMaxSegments,
           .whose = each,
           .device = kAllDevices,
           .asked = request.count,
           .used = SumOver(each->accounts, segments) - reused,
           .recoverable = SumOver(each->accounts, RecoverableSegments) - segments_from_retained,
           .limit = *each->quota.max_segments});
    }
  }
  const Account& all = state_.device_accounts[device];
  Standing on_device = {.cause = Denial::Cause::kCapacity,
                        .device = device,
                        .asked = asked,
                        .used = all.charged() - taken + all.elsewhere(),
                        .recoverable = Recoverable(all) - from_retained,
                        .revocable = all.revocable(),
                        .revoking = all.revoking(),
                        .limit = capacity};
  need_of(all, on_device);
  standings.push_back(on_device);
  if (request.BringsBack()) return standings;
  standings.push_back(
      {.cause = Denial::Cause::kDaemonLimit,
       .device = kAllDevices,
       .asked = request.count,
       .used = state_.segments.size() - reused,
       .recoverable = SumOver(state_.device_accounts, RecoverableSegments) - segments_from_retained,
       .limit = state_.bounds.max_segments});
  return standings;
}

Fit FitOf(const Standing& standing, const Claim& claim, bool may_revoke) {
  const auto fits = [&](uint64_t used) {
    if (Mutant(Fault::kAdmitsTooMuch)) return true;
    return Plus(Plus(used, standing.asked), claim.asked) <= standing.limit;
  };
  const bool keeps_guarantees =
      standing.more_need == 0 ||
      Plus(Plus(standing.need, standing.more_need), claim.need) <= standing.limit;
  const uint64_t held = standing.used - standing.recoverable;
  if (!keeps_guarantees) return Fit::kBlocked;
  if (fits(standing.used)) return Fit::kNow;
  if (fits(held - standing.revoking)) return Fit::kSoon;
  if (may_revoke && fits(held - standing.revocable)) return Fit::kRevoked;
  return Fit::kBlocked;
}

Decision Room::Check(const Request& request, uint32_t reused, const Claims& claims,
                     bool exactly) const {
  Decision decision{.standings = StandingsOf(request, reused)};
  for (size_t i = 0; i < decision.standings.size(); ++i) {
    const Standing& standing = decision.standings[i];
    const Claim claim = ClaimOn(claims, standing);
    const Fit fit = FitOf(standing, claim, !request.revocable);
    if (fit == Fit::kNow) continue;
    // Only the tenants themselves can free what a limit of theirs blocks: the request claims
    // nothing above that limit.
    if (!decision.kept_by_tenants) decision.claims = i + 1;
    decision.kept_by_tenants |= fit == Fit::kBlocked && standing.whose != nullptr;
    const bool hopeless = fit == Fit::kBlocked && standing.hopeless();
    if (decision.worst && fit <= decision.fit && (!hopeless || decision.hopeless)) continue;
    decision.worst = i;
    decision.worst_claim = claim;
    decision.fit = fit;
    decision.hopeless |= hopeless;
  }
  decision.blocked_firmly = decision.fit == Fit::kBlocked;
  if (!exactly && !state_.ending.empty() && !decision.hopeless && decision.fit >= Fit::kRevoked) {
    decision.fit = Fit::kSoon;
    decision.awaits_end = true;
  }
  if (decision.fit == Fit::kRevoked) {
    decision.candidates = RevocationCandidates(request, decision.standings, claims);
    if (decision.candidates.empty()) decision.fit = Fit::kBlocked;
  }
  return decision;
}

}  // namespace gpumemd
