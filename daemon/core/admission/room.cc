// Is there room for it? Every limit in bytes or segments that can stand in the way of a request,
// and the making of room.
//
// A request is measured against the limits of its tenant, of those that this one is under, of the
// device and of the daemon. For each, what is used counts in parts: what only its holders can give
// up; what can be taken back from them after a notice (revocable); and what comes back without them
// (retained segments, which can be doomed at once, releasing ones, which the driver is about to
// take, and what is being taken back already). A request is blocked where the first part alone
// leaves too little room. Else it fits, now or soon; retained segments are doomed until it does,
// the requester's own before other tenants', the oldest first.
//
// Beside what is used, a firm request must leave room for all that is guaranteed (Account::need).
// A revocable one need not: it can be taken back for that.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {
namespace {

using gpumem::FormatBytes;

constexpr uint64_t kUnlimited = UINT64_MAX;

// What of an account comes back without its holders.
uint64_t Recoverable(const Account& account) {
  return account.bytes(SegmentState::kRetained) + account.bytes(SegmentState::kReleasing);
}

uint64_t RecoverableSegments(const Account& account) {
  return account.segments(SegmentState::kRetained) + account.segments(SegmentState::kReleasing);
}

// What stays where nobody gives anything up: all but what is releasing.
uint64_t Staying(const Account& account) {
  return account.charged() - account.bytes(SegmentState::kReleasing);
}

uint64_t StayingSegments(const Account& account) {
  return account.segments() - account.segments(SegmentState::kReleasing);
}

template <typename Measure>
uint64_t SumOver(const std::vector<Account>& accounts, Measure measure) {
  uint64_t sum = 0;
  for (const Account& account : accounts) sum += measure(account);
  return sum;
}

// Over all devices but pinned memory, which limits on devices do not count.
template <typename Measure>
uint64_t SumUnpinned(const std::vector<DeviceInfo>& devices, const std::vector<Account>& accounts,
                     Measure measure) {
  uint64_t sum = 0;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!IsPinnedMemory(devices[i])) sum += measure(accounts[i]);
  }
  return sum;
}

}  // namespace

uint64_t Ledger::Obtainable(const Tenant& tenant, size_t device) const {
  const auto held = [](const Account& account) { return account.charged() - Recoverable(account); };
  const auto left = [](uint64_t limit, uint64_t used) { return limit - std::min(limit, used); };
  uint64_t least =
      left(state_.devices[device].capacity_bytes, held(state_.device_accounts[device]));
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    least = std::min(least, left(state_.LimitOn(*each, device), held(each->accounts[device])));
    if (IsPinnedMemory(state_.devices[device])) continue;
    least = std::min(least, left(each->quota.total_limit_bytes.value_or(kUnlimited),
                                 SumUnpinned(state_.devices, each->accounts, held)));
  }
  // What is guaranteed to others and nobody holds is not to be had firmly.
  if (tenant.quota.revocable) return least;
  const Account& own = tenant.accounts[device];
  const uint64_t guaranteed = own.unused_guarantees();
  const uint64_t uncommitted =
      left(state_.devices[device].capacity_bytes, state_.device_accounts[device].need());
  return std::min(least, Plus(guaranteed, uncommitted));
}

std::vector<Standing> Ledger::StandingsOf(const Request& request, uint32_t reused) const {
  const size_t device = request.device;
  const bool pinned = IsPinnedMemory(state_.devices[device]);
  // No overflow: bytes is at most a device's capacity, count at most 253.
  const uint64_t asked = request.bytes * request.count;
  // What is reused is charged already. It counts as asked for, so not as used, nor as what can be
  // had back. Of a memory pool it is held, too: lingering.
  const uint64_t taken = request.bytes * reused;
  const bool of_pool = request.kind == Kind::kMempool;
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
                          // Where it is the capacity that limits the tenant, that shall be the
                          // cause.
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
      // Those under it must leave each other what is guaranteed on any device.
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
    if (each->quota.max_segments) {
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
                        .used = all.charged() - taken,
                        .recoverable = Recoverable(all) - from_retained,
                        .revocable = all.revocable(),
                        .revoking = all.revoking(),
                        .limit = capacity};
  need_of(all, on_device);
  standings.push_back(on_device);
  standings.push_back(
      {.cause = Denial::Cause::kDaemonLimit,
       .device = kAllDevices,
       .asked = request.count,
       .used = state_.segments.size() - reused,
       .recoverable = SumOver(state_.device_accounts, RecoverableSegments) - segments_from_retained,
       .limit = state_.bounds.max_segments});
  return standings;
}

Verdict Ledger::Judge(const Request& request, uint32_t reused, const Claims& claims,
                      bool exactly) const {
  Verdict verdict{.standings = StandingsOf(request, reused)};
  for (size_t i = 0; i < verdict.standings.size(); ++i) {
    const Standing& standing = verdict.standings[i];
    const Claim claim = ClaimOn(claims, standing);
    const Fit fit = FitOf(standing, claim, !request.revocable);
    if (fit == Fit::kNow) continue;
    // What a limit of tenants keeps from it, only they can give it: it claims nothing above that.
    if (!verdict.kept_by_tenants) verdict.claims = i + 1;
    verdict.kept_by_tenants |= fit == Fit::kBlocked && standing.whose != nullptr;
    const bool hopeless = fit == Fit::kBlocked && standing.hopeless();
    if (verdict.worst && fit <= verdict.fit && (!hopeless || verdict.hopeless)) continue;
    verdict.worst = i;
    verdict.worst_claim = claim;
    verdict.fit = fit;
    verdict.hopeless |= hopeless;
  }
  verdict.blocked_firmly = verdict.fit == Fit::kBlocked;
  if (!exactly && HasEnding() && !verdict.hopeless && verdict.fit >= Fit::kRevoked) {
    verdict.fit = Fit::kSoon;
    verdict.awaits_end = true;
  }
  if (verdict.fit == Fit::kRevoked) {
    verdict.victims = Victims(request, verdict.standings, claims);
    if (verdict.victims.empty()) verdict.fit = Fit::kBlocked;
  }
  return verdict;
}

Denial Ledger::Explain(const Request& request, const Verdict& verdict) const {
  if (!verdict.worst) return {};
  return DenialFor(request, verdict.standings[*verdict.worst], verdict.worst_claim, verdict.fit);
}

Denial Ledger::DenialFor(const Request& request, const Standing& standing, const Claim& claim,
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
                      ? "memory that makes room for it is on its way back to the driver; ask again"
                      : "leases that may be taken back for it are; wait for it";
    return denial;
  }
  denial.used = standing.used - standing.recoverable;
  if (standing.more_need > 0 && Plus(standing.need, standing.more_need) > standing.limit &&
      Plus(denial.used - standing.revocable, denial.asked) <= standing.limit) {
    denial.cause = Denial::Cause::kGuarantees;
    denial.used = standing.need - std::min(standing.need, standing.asked - standing.more_need);
  } else if (FitOf(standing, {}, /*may_revoke=*/false) < Fit::kBlocked && claim.asked > 0) {
    denial.cause = Denial::Cause::kQueue;
    denial.used = Plus(denial.used, claim.asked);
  }
  if (denial.cause != Denial::Cause::kQueue) AddHolders(standing, denial);
  denial.help = HelpFor(*request.tenant, denial);
  return denial;
}

void Ledger::AddHolders(const Standing& standing, Denial& denial) const {
  constexpr size_t kFew = 4;
  if (standing.device == kAllDevices || standing.whose == nullptr
          ? standing.cause != Denial::Cause::kCapacity
          : standing.whose->children == 0) {
    return;
  }
  std::vector<std::pair<uint64_t, const std::string*>> holders;
  for (const auto& [name, tenant] : state_.tenants) {
    if (tenant->children > 0) continue;  // those under it are named
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

std::string Ledger::HelpFor(const Tenant& tenant, const Denial& denial) const {
  switch (denial.cause) {
    case Denial::Cause::kDeviceLimit:
    case Denial::Cause::kTotalLimit: {
      const auto device = state_.FindDevice(denial.device_uuid);
      const bool pinned = device.ok() && IsPinnedMemory(state_.devices[*device]);
      const std::string& limited =
          denial.limited_tenant.empty() ? tenant.name : denial.limited_tenant;
      const std::string raise =
          absl::StrCat("ask an operator for a higher limit (gpumemctl quota set ", limited,
                       denial.cause == Denial::Cause::kTotalLimit ? " --total-limit"
                       : pinned                                   ? " --pinned-limit"
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
      if (denial.asked > denial.limit) {
        return "ask for less, or spread it over several devices";
      }
      return "release memory, or wait until other tenants do (gpumemctl segments shows who holds "
             "it), or "
             "use another device";
    case Denial::Cause::kGuarantees:
      return "wait until others release, use another device, or ask for it as revocable: what is "
             "guaranteed to others and idle can be had that way";
    case Denial::Cause::kQueue:
      return "wait for it, too (AcquireOptions::wait; gpumemctl hold --wait), or use another "
             "device";
    default:
      return "the daemon has as many segments as it is configured for (daemon.max_segments)";
  }
}

void Ledger::TrimForShortfall(const Request& request, uint32_t fresh, const Claims& claims) {
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
  const auto doom_anywhere = [this](Tenant& from, bool pinned_too = true) {
    for (size_t d = 0; d < state_.devices.size(); ++d) {
      if (!pinned_too && IsPinnedMemory(state_.devices[d])) continue;
      if (DoomOldest(from, d)) return true;
    }
    return false;
  };
  // On the device, the tenant's own first, then that of others under `above`.
  const auto doom_on_device = [&](const Tenant* above) {
    if (DoomOldest(tenant, device)) return true;
    Tenant* other = RichestRetainer(device, above);
    return other != nullptr && DoomOldest(*other, device);
  };
  const auto doom_under = [&](const Tenant* above, bool pinned_too) {
    if (doom_anywhere(tenant, pinned_too)) return true;
    Tenant* other = nullptr;
    for (size_t d = 0; d < state_.devices.size() && other == nullptr; ++d) {
      if (pinned_too || !IsPinnedMemory(state_.devices[d])) other = RichestRetainer(d, above);
    }
    return other != nullptr && doom_anywhere(*other, pinned_too);
  };

  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    const uint64_t more = Plus(bytes, claimed(Denial::Cause::kDeviceLimit, each, device));
    while (over(Staying(each->accounts[device]), more, state_.LimitOn(*each, device)) &&
           doom_on_device(each)) {
    }
    const uint64_t total_limit = each->quota.total_limit_bytes.value_or(kUnlimited);
    const uint64_t more_in_all =
        Plus(bytes, claimed(Denial::Cause::kTotalLimit, each, kAllDevices));
    while (!IsPinnedMemory(state_.devices[device]) && total_limit != kUnlimited &&
           over(SumUnpinned(state_.devices, each->accounts, Staying), more_in_all, total_limit) &&
           doom_under(each, /*pinned_too=*/false)) {
    }
    const uint64_t max_segments = each->quota.max_segments.value_or(kUnlimited);
    const uint64_t more_segments =
        Plus(fresh, claimed(Denial::Cause::kMaxSegments, each, kAllDevices));
    while (max_segments != kUnlimited &&
           over(SumOver(each->accounts, StayingSegments), more_segments, max_segments) &&
           doom_under(each, /*pinned_too=*/true)) {
    }
  }
  const uint64_t more = Plus(bytes, claimed(Denial::Cause::kCapacity, nullptr, device));
  while (
      over(Staying(state_.device_accounts[device]), more, state_.devices[device].capacity_bytes) &&
      doom_on_device(nullptr)) {
  }
  const uint64_t more_segments =
      Plus(fresh, claimed(Denial::Cause::kDaemonLimit, nullptr, kAllDevices));
  while (over(SumOver(state_.device_accounts, StayingSegments), more_segments,
              state_.bounds.max_segments) &&
         doom_under(nullptr, /*pinned_too=*/true)) {
  }
}

Ledger::Tenant* Ledger::RichestRetainer(size_t device, const Tenant* above) {
  Tenant* richest = nullptr;
  uint64_t most = 0;
  for (auto& [name, tenant] : state_.tenants) {
    const uint64_t retained = tenant->retained[device].bytes();
    if (retained > most && (above == nullptr || state_.IsUnder(*tenant, *above))) {
      most = retained;
      richest = tenant.get();
    }
  }
  return richest;
}

}  // namespace gpumemd
