// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/limits.h"

#include <set>
#include <string>
#include <vector>

#include "daemon/core/denial.h"
#include "daemon/core/ledger/testing/model/devices.h"
#include "daemon/core/ledger/testing/model/guarantees.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/revocation.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

uint64_t SumOfThree(uint64_t a, uint64_t b, uint64_t c) {
  const auto sum = static_cast<unsigned __int128>(a) + b + c;
  return sum > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(sum);
}

bool Limit::Fits(uint64_t taken, const Claim& claim) const {
  return SumOfThree(asked, taken, claim.asked) <= limit;
}

bool Limit::KeepsGuarantees(const Claim& claim) const {
  return growth == 0 || SumOfThree(need, growth, claim.need) <= limit;
}

Fit Limit::FitOf(const Claim& claim, bool may_revoke) const {
  if (!KeepsGuarantees(claim)) return Fit::kBlocked;
  if (Fits(used, claim)) return Fit::kNow;
  if (Fits(not_taken, claim)) return Fit::kSoon;
  return may_revoke && Fits(firm, claim) ? Fit::kRevoked : Fit::kBlocked;
}

std::vector<Limit> LimitsFor(const LedgerModel& model, const Request& request,
                             const std::set<SegmentId>& reused) {
  const size_t device = request.device;
  const uint64_t capacity = model.devices[device].capacity_bytes;
  std::vector<Limit> limits;
  const auto add = [&](Denial::Cause cause, const std::string& whose, size_t where, bool of_bytes,
                       uint64_t limit) -> Limit& {
    const auto sum = [&](Which which) {
      const Sum found = SumOf(model, whose, where, which, reused);
      return of_bytes ? found.bytes : found.segments;
    };
    Limit entry = {.name = {cause, whose, where},
                   .asked = of_bytes ? request.in_all() : request.count,
                   .used = sum(Which::kAll),
                   .held = sum(Which::kHeld),
                   .limit = limit};
    // Limits on numbers of segments revoke nothing.
    entry.not_taken = of_bytes ? sum(Which::kNotTaken) : entry.held;
    entry.firm = of_bytes ? sum(Which::kFirm) : entry.held;
    limits.push_back(entry);
    return limits.back();
  };
  // Segments that are idle in a pool are held already, and are not revocable.
  uint64_t growth = request.revocable ? 0 : request.in_all();
  if (request.kind == Kind::kMempool) growth -= request.bytes * reused.size();
  uint64_t least = request.in_all();
  const auto grow = [&](const std::string& whose, Limit& limit) {
    limit.need = Need(model, whose, device);
    // Above the tenant: the growth of its need is the growth of its parent's need, except for the
    // part that the parent's guarantee already covers.
    limit.growth = growth = Need(model, whose, device, growth) - limit.need;
    if (request.revocable) return;
    const uint64_t with = Need(model, whose, device, least, /*emptied=*/true);
    least = with - Need(model, whose, device, 0, /*emptied=*/true);
    limit.least = least > 0 ? with : 0;
  };
  for (const std::string& each : PathOf(model, request.tenant)) {
    const Quota& quota = model.tenants.at(each).quota;
    const uint64_t limit = LimitOn(model, each, device);
    // A tenant without a limit below the capacity is denied because of the capacity.
    grow(each, add(Denial::Cause::kDeviceLimit, each, device, true,
                   limit < capacity ? limit : UINT64_MAX));
    if (!Pinned(model, device) && quota.total_limit_bytes) {
      Limit& total =
          add(Denial::Cause::kTotalLimit, each, kUnpinned, true, *quota.total_limit_bytes);
      for (size_t d = 0; d < model.devices.size() && each != request.tenant; ++d) {
        if (!Pinned(model, d)) total.need += Need(model, each, d);
        total.growth = growth;
      }
      if (each != request.tenant && !request.revocable && least > 0) {
        total.least = least;
        for (size_t d = 0; d < model.devices.size(); ++d) {
          if (!Pinned(model, d)) total.least += Need(model, each, d, 0, /*emptied=*/true);
        }
      }
    }
    if (quota.max_segments) {
      add(Denial::Cause::kMaxSegments, each, kEverywhere, false, *quota.max_segments);
    }
  }
  grow("", add(Denial::Cause::kCapacity, "", device, true, capacity));
  add(Denial::Cause::kDaemonLimit, "", kEverywhere, false, model.bounds.max_segments);
  return limits;
}

Claim On(const Claims& claims, const LimitName& name) {
  auto it = claims.find(name);
  return it == claims.end() ? Claim{} : it->second;
}

void Add(const std::vector<Limit>& limits, const std::set<LimitName>& which, Claims& claims) {
  for (const Limit& limit : limits) {
    if (!which.contains(limit.name)) continue;
    claims[limit.name].asked += limit.asked;
    claims[limit.name].need += limit.growth;
  }
}

Decision Decide(const LedgerModel& model, const Request& request, const std::set<SegmentId>& reused,
                const Claims& claims, bool exactly) {
  Decision decision;
  decision.limits = LimitsFor(model, request, reused);
  const auto fit_of = [&](const Limit& limit) {
    return limit.FitOf(On(claims, limit.name), !request.revocable);
  };
  std::set<LimitName> so_far;
  bool for_itself = false;  // it waits for memory that only its tenants can give
  const Limit* reason = nullptr;
  for (const Limit& limit : decision.limits) {
    so_far.insert(limit.name);
    if (fit_of(limit) != Fit::kNow && !for_itself) decision.blocking = so_far;
    for_itself |= fit_of(limit) == Fit::kBlocked && !limit.name.whose.empty();
    if (reason == nullptr || fit_of(limit) > fit_of(*reason)) reason = &limit;
  }
  decision.fit = fit_of(*reason);
  if (decision.fit == Fit::kNow) return decision;
  for (const Limit& limit : decision.limits) {
    if (fit_of(limit) != Fit::kBlocked || decision.hopeless) continue;
    if (limit.asked <= limit.limit && limit.least <= limit.limit) continue;
    decision.hopeless = true;
    reason = &limit;
  }
  // Sessions that are still ending may make enough room.
  if (!exactly && HasEnding(model) && !decision.hopeless &&
      (decision.fit == Fit::kRevoked || decision.fit == Fit::kBlocked)) {
    decision.fit = Fit::kSoon;
    decision.awaits_end = true;
  }
  if (decision.fit == Fit::kRevoked) {
    decision.to_revoke = SegmentsToRevoke(model, request, decision.limits, claims);
    if (decision.to_revoke.empty()) decision.fit = Fit::kBlocked;
  }
  decision.denial = {reason->name, reason->asked, reason->used, reason->limit};
  if (decision.fit != Fit::kBlocked) return decision;
  const Claim claim = On(claims, reason->name);
  decision.denial.used = reason->held;
  if (!reason->KeepsGuarantees({}) && reason->Fits(reason->firm, {})) {
    decision.denial.name.cause = Denial::Cause::kGuarantees;
    const uint64_t covered = reason->asked - reason->growth;
    decision.denial.used = reason->need > covered ? reason->need - covered : 0;
  } else if (reason->FitOf({}, /*may_revoke=*/false) != Fit::kBlocked && claim.asked > 0) {
    decision.denial.queued_at = reason->name.cause;
    decision.denial.name.cause = Denial::Cause::kQueue;
    decision.denial.used += claim.asked;
  }
  return decision;
}

}  // namespace gpumemd::model
