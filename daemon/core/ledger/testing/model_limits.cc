// The model of limits: how a request stands to each, guarantees, what blocks a request, and which
// memory is given up for it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/testing/model.h"

namespace gpumemd {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;

// Sums small numbers, of which one may be kUnlimited.
uint64_t Sum3(uint64_t a, uint64_t b, uint64_t c) {
  const auto sum = static_cast<unsigned __int128>(a) + b + c;
  return sum > kUnlimited ? kUnlimited : static_cast<uint64_t>(sum);
}

}  // namespace

// --- Parents and limits -------------------------------------------------------------------

std::vector<std::string> LedgerModel::PathOf(const std::string& tenant) const {
  std::vector<std::string> path;
  for (std::string each = tenant; !each.empty(); each = tenants_.at(each).parent) {
    path.push_back(each);
  }
  return path;
}

bool LedgerModel::IsUnder(const std::string& tenant, absl::string_view above) const {
  if (above.empty()) return true;
  for (const std::string* each = &tenant; !each->empty(); each = &tenants_.at(*each).parent) {
    if (*each == above) return true;
  }
  return false;
}

bool LedgerModel::Pinned(size_t device) const {
  return devices_[device].kinds == std::vector<Kind>{Kind::kPinned};
}

bool LedgerModel::Makes(size_t device, Kind kind) const {
  for (Kind made : devices_[device].kinds) {
    if (made == kind) return true;
  }
  return false;
}

Kind LedgerModel::KindFor(const std::string& tenant, const AcquireSpec& spec, size_t device) const {
  if (spec.kind) return *spec.kind;
  if (Pinned(device)) return Kind::kPinned;
  return tenants_.at(tenant).quota.kind.value_or(devices_[device].kinds[0]);
}

uint64_t LedgerModel::LimitOn(const std::string& name, size_t device) const {
  const Quota& quota = tenants_.at(name).quota;
  if (Pinned(device)) {
    return std::min(quota.pinned_limit_bytes.value_or(kUnlimited), devices_[device].capacity_bytes);
  }
  uint64_t limit = quota.limit_bytes.value_or(kUnlimited);
  auto it = quota.device_limits.find(devices_[device].uuid);
  if (it != quota.device_limits.end()) limit = it->second;
  return std::min(limit, devices_[device].capacity_bytes);
}

uint64_t LedgerModel::MaxRetainedOn(const Tenant& tenant, size_t device) const {
  auto it = tenant.quota.device_max_retained.find(devices_[device].uuid);
  if (it != tenant.quota.device_max_retained.end()) return it->second;
  return tenant.quota.max_retained_bytes.value_or(kUnlimited);
}

uint64_t LedgerModel::GuaranteeOn(const std::string& name, size_t device) const {
  const Quota& quota = tenants_.at(name).quota;
  auto it = quota.device_guarantees.find(devices_[device].uuid);
  if (Pinned(device)) return 0;
  return it != quota.device_guarantees.end() ? it->second : quota.guarantee_bytes.value_or(0);
}

uint64_t LedgerModel::Need(const std::string& name, size_t device, uint64_t more,
                           bool emptied) const {
  uint64_t held = more;
  for (const auto& [id, segment] : segments_) {
    const bool firm = !segment.given_up && segment.kept_since == 0 && !segment.revocable;
    if (!emptied && firm && segment.device == device && segment.tenant == name) {
      held += segment.bytes;
    }
  }
  for (const auto& [other, tenant] : tenants_) {
    if (tenant.parent == name) held += Need(other, device, 0, emptied);
  }
  return name.empty() ? held : std::max(held, GuaranteeOn(name, device));
}

uint64_t LedgerModel::UnusedGuarantee(const std::string& name, size_t device) const {
  uint64_t unused = Need(name, device);
  for (const auto& [id, segment] : segments_) {
    const bool firm = !segment.given_up && segment.kept_since == 0 && !segment.revocable;
    if (firm && segment.device == device && segment.tenant == name) unused -= segment.bytes;
  }
  for (const auto& [other, tenant] : tenants_) {
    if (tenant.parent == name) unused -= Need(other, device);
  }
  return unused;
}

uint64_t LedgerModel::Deficit(const Request& request) const {
  uint64_t unused = 0;
  for (const std::string& each : PathOf(request.tenant)) {
    unused += UnusedGuarantee(each, request.device);
  }
  return !request.revocable && request.in_all() <= unused ? unused : 0;
}

uint64_t LedgerModel::Obtainable(const std::string& name, size_t device) const {
  uint64_t most = kUnlimited;
  const auto bound = [&](uint64_t limit, uint64_t held) {
    most = std::min(most, limit > held ? limit - held : 0);
  };
  bound(devices_[device].capacity_bytes, Of("", device, Which::kHeld).bytes);
  uint64_t guaranteed = 0;
  for (const std::string& each : PathOf(name)) {
    bound(LimitOn(each, device), Of(each, device, Which::kHeld).bytes);
    const std::optional<uint64_t> total = tenants_.at(each).quota.total_limit_bytes;
    if (!Pinned(device) && total) bound(*total, Of(each, kUnpinned, Which::kHeld).bytes);
    guaranteed += UnusedGuarantee(each, device);
  }
  if (tenants_.at(name).quota.revocable) return most;
  const uint64_t capacity = devices_[device].capacity_bytes;
  return std::min(most, guaranteed + capacity - std::min(capacity, Need("", device)));
}

absl::StatusOr<size_t> LedgerModel::DeviceFor(const std::string& tenant,
                                              const AcquireSpec& spec) const {
  if (!spec.device_uuid.empty()) {
    if (spec.most_free) return absl::InvalidArgumentError("");
    const size_t device = DeviceIndex(spec.device_uuid);
    if (device >= devices_.size()) return absl::NotFoundError("");
    if (!Makes(device, KindFor(tenant, spec, device))) return absl::UnimplementedError("");
    return device;
  }
  std::vector<size_t> makers;
  for (const std::string& uuid : spec.among) {
    if (DeviceIndex(uuid) >= devices_.size()) return absl::NotFoundError("");
  }
  for (size_t device = 0; device < devices_.size(); ++device) {
    bool among = !spec.most_free || spec.among.empty();
    for (const std::string& uuid : spec.among) among |= uuid == devices_[device].uuid;
    if (among && Makes(device, KindFor(tenant, spec, 0))) makers.push_back(device);
  }
  if (makers.empty()) return absl::UnimplementedError("");
  if (!spec.most_free) return makers.front();
  // The first of the best.
  return *std::max_element(makers.begin(), makers.end(), [&](size_t a, size_t b) {
    return Obtainable(tenant, a) < Obtainable(tenant, b);
  });
}

// True if the tenant's memory, without what it has given up, exceeds a limit of the tenant or of
// one above it.
bool LedgerModel::OverALimit(const std::string& name, size_t device) const {
  for (const std::string& each : PathOf(name)) {
    const Quota& quota = tenants_.at(each).quota;
    if (Of(each, device, Which::kStaying).bytes > LimitOn(each, device) ||
        (!Pinned(device) && Of(each, kUnpinned, Which::kStaying).bytes >
                                quota.total_limit_bytes.value_or(kUnlimited)) ||
        Of(each, kEverywhere, Which::kStaying).segments > quota.max_segments.value_or(UINT32_MAX)) {
      return true;
    }
  }
  return false;
}

// --- A request and its limits ------------------------------------------------------------

bool LedgerModel::Limit::Fits(uint64_t taken, const Claim& claim) const {
  return Sum3(asked, taken, claim.asked) <= limit;
}

bool LedgerModel::Limit::KeepsGuarantees(const Claim& claim) const {
  return growth == 0 || Sum3(need, growth, claim.need) <= limit;
}

LedgerModel::Fit LedgerModel::Limit::FitOf(const Claim& claim, bool may_revoke) const {
  if (!KeepsGuarantees(claim)) return Fit::kBlocked;
  if (Fits(used, claim)) return Fit::kNow;
  if (Fits(not_taken, claim)) return Fit::kSoon;
  return may_revoke && Fits(firm, claim) ? Fit::kRevoked : Fit::kBlocked;
}

// Returns the limits in the order in which a denial names them as the reason.
std::vector<LedgerModel::Limit> LedgerModel::LimitsFor(const Request& request,
                                                       const std::set<SegmentId>& reused) const {
  const size_t device = request.device;
  const uint64_t capacity = devices_[device].capacity_bytes;
  std::vector<Limit> limits;
  const auto add = [&](Denial::Cause cause, const std::string& whose, size_t where, bool of_bytes,
                       uint64_t limit) -> Limit& {
    const auto sum = [&](Which which) {
      const Sum found = Of(whose, where, which, reused);
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
    limit.need = Need(whose, device);
    // Above the tenant: the growth of its need is the growth of its parent's need, except for the
    // part that the parent's guarantee already covers.
    limit.growth = growth = Need(whose, device, growth) - limit.need;
    if (request.revocable) return;
    const uint64_t with = Need(whose, device, least, /*emptied=*/true);
    least = with - Need(whose, device, 0, /*emptied=*/true);
    limit.least = least > 0 ? with : 0;
  };
  for (const std::string& each : PathOf(request.tenant)) {
    const Quota& quota = tenants_.at(each).quota;
    const uint64_t limit = LimitOn(each, device);
    // A tenant without a limit below the capacity is denied because of the capacity.
    grow(each, add(Denial::Cause::kDeviceLimit, each, device, true,
                   limit < capacity ? limit : kUnlimited));
    if (!Pinned(device) && quota.total_limit_bytes) {
      Limit& total =
          add(Denial::Cause::kTotalLimit, each, kUnpinned, true, *quota.total_limit_bytes);
      for (size_t d = 0; d < devices_.size() && each != request.tenant; ++d) {
        if (!Pinned(d)) total.need += Need(each, d);
        total.growth = growth;
      }
      if (each != request.tenant && !request.revocable && least > 0) {
        total.least = least;
        for (size_t d = 0; d < devices_.size(); ++d) {
          if (!Pinned(d)) total.least += Need(each, d, 0, /*emptied=*/true);
        }
      }
    }
    if (quota.max_segments) {
      add(Denial::Cause::kMaxSegments, each, kEverywhere, false, *quota.max_segments);
    }
  }
  grow("", add(Denial::Cause::kCapacity, "", device, true, capacity));
  add(Denial::Cause::kDaemonLimit, "", kEverywhere, false, bounds_.max_segments);
  return limits;
}

LedgerModel::Claim LedgerModel::On(const Claims& claims, const LimitName& name) {
  auto it = claims.find(name);
  return it == claims.end() ? Claim{} : it->second;
}

void LedgerModel::Add(const std::vector<Limit>& limits, const std::set<LimitName>& which,
                      Claims& claims) {
  for (const Limit& limit : limits) {
    if (!which.contains(limit.name)) continue;
    claims[limit.name].asked += limit.asked;
    claims[limit.name].need += limit.growth;
  }
}

LedgerModel::Judgement LedgerModel::Judge(const Request& request, const std::set<SegmentId>& reused,
                                          const Claims& claims, bool exactly) const {
  Judgement judgement;
  judgement.limits = LimitsFor(request, reused);
  const auto fit_of = [&](const Limit& limit) {
    return limit.FitOf(On(claims, limit.name), !request.revocable);
  };
  std::set<LimitName> so_far;
  bool for_itself = false;  // it waits for memory that only its tenants can give
  const Limit* reason = nullptr;
  for (const Limit& limit : judgement.limits) {
    so_far.insert(limit.name);
    if (fit_of(limit) != Fit::kNow && !for_itself) judgement.in_the_way = so_far;
    for_itself |= fit_of(limit) == Fit::kBlocked && !limit.name.whose.empty();
    if (reason == nullptr || fit_of(limit) > fit_of(*reason)) reason = &limit;
  }
  judgement.fit = fit_of(*reason);
  if (judgement.fit == Fit::kNow) return judgement;
  for (const Limit& limit : judgement.limits) {
    if (fit_of(limit) != Fit::kBlocked || judgement.hopeless) continue;
    if (limit.asked <= limit.limit && limit.least <= limit.limit) continue;
    judgement.hopeless = true;
    reason = &limit;
  }
  // Sessions that are still ending may make enough room.
  if (!exactly && HasEnding() && !judgement.hopeless &&
      (judgement.fit == Fit::kRevoked || judgement.fit == Fit::kBlocked)) {
    judgement.fit = Fit::kSoon;
    judgement.awaits_end = true;
  }
  if (judgement.fit == Fit::kRevoked) {
    judgement.victims = VictimsFor(request, judgement.limits, claims);
    if (judgement.victims.empty()) judgement.fit = Fit::kBlocked;
  }
  judgement.denial = {reason->name, reason->asked, reason->used, reason->limit};
  if (judgement.fit != Fit::kBlocked) return judgement;
  const Claim claim = On(claims, reason->name);
  judgement.denial.used = reason->held;
  if (!reason->KeepsGuarantees({}) && reason->Fits(reason->firm, {})) {
    judgement.denial.name.cause = Denial::Cause::kGuarantees;
    const uint64_t covered = reason->asked - reason->growth;
    judgement.denial.used = reason->need > covered ? reason->need - covered : 0;
  } else if (reason->FitOf({}, /*may_revoke=*/false) != Fit::kBlocked && claim.asked > 0) {
    judgement.denial.name.cause = Denial::Cause::kQueue;
    judgement.denial.used += claim.asked;
  }
  return judgement;
}

// Gives up retained segments as far as `fresh` more segments, and claims before them, need it: the
// tenant's own before others'.
void LedgerModel::GiveUpFor(const Request& request, uint32_t fresh, const Claims& claims) {
  const std::string& name = request.tenant;
  const size_t device = request.device;
  const auto over = [&](const LimitName& limit, uint64_t staying, uint64_t more, uint64_t most) {
    return Sum3(staying, more, On(claims, limit).asked) > most;
  };
  const auto from_anywhere = [&](const std::string& above, bool pinned_too) {
    if (GiveUpAnywhere(name, pinned_too)) return true;
    for (size_t d = 0; d < devices_.size(); ++d) {
      if ((pinned_too || !Pinned(d)) && GiveUpOfTheRichest(d, above)) return true;
    }
    return false;
  };
  std::vector<std::string> limited = PathOf(name);
  limited.emplace_back("");
  for (const std::string& each : limited) {
    const LimitName here = {each.empty() ? Denial::Cause::kCapacity : Denial::Cause::kDeviceLimit,
                            each, device};
    const uint64_t most = each.empty() ? devices_[device].capacity_bytes : LimitOn(each, device);
    while (over(here, Of(each, device, Which::kStaying).bytes, request.bytes * fresh, most) &&
           (GiveUpOldest(name, device) || GiveUpOfTheRichest(device, each))) {
    }
    if (!each.empty() && tenants_.at(each).quota.total_limit_bytes && !Pinned(device)) {
      while (over({Denial::Cause::kTotalLimit, each, kUnpinned},
                  Of(each, kUnpinned, Which::kStaying).bytes, request.bytes * fresh,
                  *tenants_.at(each).quota.total_limit_bytes) &&
             from_anywhere(each, /*pinned_too=*/false)) {
      }
    }
    const uint64_t segments = each.empty()
                                  ? bounds_.max_segments
                                  : tenants_.at(each).quota.max_segments.value_or(UINT32_MAX);
    const LimitName number = {
        each.empty() ? Denial::Cause::kDaemonLimit : Denial::Cause::kMaxSegments, each,
        kEverywhere};
    while (over(number, Of(each, kEverywhere, Which::kStaying).segments, fresh, segments) &&
           from_anywhere(each, /*pinned_too=*/true)) {
    }
  }
}

}  // namespace gpumemd
