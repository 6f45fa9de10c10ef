// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/history/history.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace gpumemd {
namespace {

// A clock that is corrected may be set back a little.
constexpr int64_t kCorrectionMs = 10'000;

HistoryValues ValuesOf(const LedgerMeasures::OnDevice& on) {
  HistoryValues values{
      .limit = on.limit,
      .guarantee = on.guarantee,
      .waiting = on.waited_for,
      .leased = on.charged[static_cast<size_t>(SegmentState::kLeased)],
  };
  for (const uint64_t bytes : on.charged) values.charged += bytes;
  return values;
}

bool HasBegun(const LedgerMeasures::OnDevice& on) {
  return on.ever_charged || on.waiting > 0 || ValuesOf(on).charged > 0;
}

using ByName = absl::flat_hash_map<absl::string_view, const LedgerMeasures::Tenant*>;

ByName TenantsOf(const LedgerMeasures& measures) {
  ByName tenants;
  tenants.reserve(measures.tenants.size());
  for (const LedgerMeasures::Tenant& tenant : measures.tenants) {
    tenants.emplace(tenant.name, &tenant);
  }
  return tenants;
}

// Returns the name of its topmost tenant.
const std::string& FamilyOf(const LedgerMeasures::Tenant& tenant, const ByName& tenants) {
  const LedgerMeasures::Tenant* topmost = &tenant;
  for (auto above = tenants.find(topmost->parent); above != tenants.end();
       above = tenants.find(topmost->parent)) {
    topmost = above->second;
  }
  return topmost->name;
}

}  // namespace

void History::Add(absl::Time now, const LedgerMeasures& measures) {
  int64_t now_ms = absl::ToUnixMillis(now);
  if (last_ms_ && now_ms < *last_ms_) {
    if (*last_ms_ - now_ms > kCorrectionMs) Clear();
    now_ms = last_ms_.value_or(now_ms);
  }
  if (!first_ms_) first_ms_ = now_ms;
  last_ms_ = now_ms;
  DropOlderThan(now_ms - absl::ToInt64Milliseconds(options_.kept));

  for (auto& [name, tenant] : tenants_) tenant.seen = false;
  const ByName by_name = TenantsOf(measures);
  for (const LedgerMeasures::Tenant& tenant : measures.tenants) {
    Sample(now_ms, tenant, FamilyOf(tenant, by_name));
  }
  // What ends others may remove one that has ended before.
  std::vector<std::string> ended;
  for (const auto& [name, tenant] : tenants_) {
    if (tenant.is_there && !tenant.seen) ended.push_back(name);
  }
  for (const std::string& name : ended) End(now_ms, tenants_.find(name));
}

void History::Clear() {
  tenants_.clear();
  families_.clear();
  by_units_.clear();
  intervals_.clear();
  free_.reset();
  used_ = 0;
  first_ms_.reset();
  last_ms_.reset();
}

void History::DropOlderThan(int64_t ms) {
  std::string name;
  for (auto family = families_.begin(); family != families_.end();
       family = families_.upper_bound(name)) {
    name = family->first;
    // The last one may take the family with it.
    for (size_t left = family->second.intervals;
         left > 0 && intervals_[family->second.oldest].end_ms <= ms; --left) {
      DropOldest(family, /*for_room=*/false);
    }
  }
}

void History::Sample(int64_t now_ms, const LedgerMeasures::Tenant& measured,
                     const std::string& family) {
  auto tenant = tenants_.find(measured.name);
  if (tenant != tenants_.end()) {
    tenant->second.is_there = true;
    tenant->second.seen = true;
    if (tenant->second.family->first != family) Move(tenant->second, family);
  }
  for (size_t i = 0; i < measured.devices.size(); ++i) {
    const auto device = static_cast<uint32_t>(i);
    Series* series = tenant == tenants_.end() ? nullptr : Find(tenant->second, device);
    if (series != nullptr) {
      Set(now_ms, *tenant, *series, ValuesOf(measured.devices[i]));
      continue;
    }
    if (!HasBegun(measured.devices[i])) continue;
    if (tenant == tenants_.end()) {
      tenant = Begin(measured.name, family);
      if (tenant == tenants_.end()) return;
    }
    if (!MakeRoom(tenant->second.family, 1)) continue;
    Charge(tenant->second.family, 1);
    std::vector<Series>& all = tenant->second.series;
    const auto place = std::find_if(all.begin(), all.end(),
                                    [&](const Series& each) { return each.device > device; });
    all.insert(place,
               Series{.now = ValuesOf(measured.devices[i]), .begin_ms = now_ms, .device = device});
  }
}

History::Tenants::iterator History::Begin(const std::string& name, const std::string& family) {
  const auto of = families_.try_emplace(family).first;
  ++of->second.tenants;  // so that it stays
  if (!MakeRoom(of, kTenantUnits + 1)) {
    --of->second.tenants;
    RemoveIfUnused(of);
    return tenants_.end();
  }
  Charge(of, kTenantUnits);
  const auto tenant = tenants_.try_emplace(name).first;
  tenant->second.family = of;
  tenant->second.seen = true;
  return tenant;
}

void History::Set(int64_t now_ms, Tenants::value_type& tenant, Series& series,
                  const HistoryValues& values) {
  if (series.now == values) return;
  const HistoryValues before = std::exchange(series.now, values);
  if (series.begin_ms == now_ms) return;  // they were never those of a time
  const Families::iterator family = tenant.second.family;
  if (!MakeRoom(family, 1)) {
    series.begin_ms = now_ms;
    series.cut = true;
    return;
  }
  uint32_t place = static_cast<uint32_t>(intervals_.size());
  if (free_) {
    place = *free_;
    free_ = intervals_[place].next == place ? std::nullopt
                                            : std::optional<uint32_t>(intervals_[place].next);
  } else {
    intervals_.emplace_back();
  }
  intervals_[place] = {
      .values = before, .end_ms = now_ms, .tenant = &tenant, .device = series.device};
  ++tenant.second.intervals;
  Family& of = family->second;
  if (of.intervals == 0) {
    of.oldest = place;
  } else {
    intervals_[of.newest].next = place;
  }
  of.newest = place;
  ++of.intervals;
  Charge(family, 1);
}

void History::End(int64_t now_ms, Tenants::iterator tenant) {
  for (Series& series : tenant->second.series) Set(now_ms, *tenant, series, {});
  tenant->second.is_there = false;
  if (tenant->second.intervals == 0) Remove(tenant);
}

History::Series* History::Find(Tenant& tenant, uint32_t device) {
  for (Series& series : tenant.series) {
    if (series.device == device) return &series;
  }
  return nullptr;
}

void History::Charge(Families::iterator family, int64_t units) {
  Family& of = family->second;
  by_units_.erase({of.units, family->first});
  of.units += static_cast<size_t>(units);
  used_ += static_cast<size_t>(units);
  if (of.intervals > 0) by_units_.emplace(of.units, family->first);
}

void History::Move(Tenant& tenant, const std::string& family) {
  const auto units = static_cast<int64_t>(kTenantUnits + tenant.series.size());
  const auto from = tenant.family;
  tenant.family = families_.try_emplace(family).first;
  ++tenant.family->second.tenants;
  Charge(tenant.family, units);
  Charge(from, -units);
  --from->second.tenants;
  RemoveIfUnused(from);
}

bool History::MakeRoom(Families::iterator family, size_t units) {
  while (used_ + units > options_.most) {
    if (by_units_.empty()) return false;
    const auto& [most, name] = *by_units_.rbegin();
    if (most < family->second.units) return false;
    DropOldest(families_.find(std::string(name)), /*for_room=*/true);
  }
  return true;
}

void History::DropOldest(Families::iterator family, bool for_room) {
  const uint32_t place = family->second.oldest;
  Interval& dropped = intervals_[place];
  const auto tenant = tenants_.find(dropped.tenant->first);
  Series& series = *Find(tenant->second, dropped.device);
  series.begin_ms = std::max(series.begin_ms, dropped.end_ms);
  series.cut |= for_room;

  family->second.oldest = dropped.next;
  --family->second.intervals;
  Charge(family, -1);
  dropped.next = free_.value_or(place);
  dropped.tenant = nullptr;
  free_ = place;

  const bool is_own = tenant->second.family == family;
  if (--tenant->second.intervals == 0 && !tenant->second.is_there) Remove(tenant);
  // A tenant's own family stays, or has just gone with it.
  if (!is_own) RemoveIfUnused(family);
}

void History::Remove(Tenants::iterator tenant) {
  const Families::iterator family = tenant->second.family;
  Charge(family, -static_cast<int64_t>(kTenantUnits + tenant->second.series.size()));
  --family->second.tenants;
  tenants_.erase(tenant);
  RemoveIfUnused(family);
}

void History::RemoveIfUnused(Families::iterator family) {
  if (family->second.tenants > 0 || family->second.intervals > 0) return;
  families_.erase(family);
}

absl::Time History::Since(absl::Time now) const {
  if (!first_ms_) return now;
  return std::max(absl::FromUnixMillis(*first_ms_), now - options_.kept);
}

std::vector<HistorySeries> History::Read(absl::Time now, const LedgerMeasures& measures,
                                         const std::set<std::string>& tenants,
                                         std::optional<size_t> device) const {
  now = std::max(now, absl::FromUnixMillis(last_ms_.value_or(0)));
  const auto is_wanted = [&](const std::string& tenant, size_t of_device) {
    return (tenants.empty() || tenants.contains(tenant)) && device.value_or(of_device) == of_device;
  };
  struct Kept {
    const Series* series = nullptr;  // null: begun since the last sample
    std::vector<const Interval*> intervals;
  };
  std::map<std::pair<absl::string_view, size_t>, Kept> all;
  for (const auto& [name, tenant] : tenants_) {
    for (const Series& series : tenant.series) {
      if (is_wanted(name, series.device)) all[{name, series.device}].series = &series;
    }
  }
  for (const LedgerMeasures::Tenant& tenant : measures.tenants) {
    for (size_t i = 0; i < tenant.devices.size(); ++i) {
      if (HasBegun(tenant.devices[i]) && is_wanted(tenant.name, i)) all[{tenant.name, i}];
    }
  }
  for (const auto& [name, family] : families_) {
    uint32_t place = family.oldest;
    for (size_t left = family.intervals; left > 0; --left) {
      const Interval& interval = intervals_[place];
      const auto of = all.find({interval.tenant->first, interval.device});
      if (of != all.end()) of->second.intervals.push_back(&interval);
      place = interval.next;
    }
  }
  const ByName present = TenantsOf(measures);
  const int64_t since_ms = absl::ToUnixMillis(Since(now));
  std::vector<HistorySeries> result;
  for (auto& [key, kept] : all) {
    HistorySeries& out =
        result.emplace_back(HistorySeries{.tenant = std::string(key.first), .device = key.second});
    const auto add = [&](absl::Time time, const HistoryValues& values) {
      out.points.push_back({time, values});
    };
    if (kept.series != nullptr) {
      out.cut = kept.series->cut && kept.series->begin_ms > since_ms;
      int64_t begin_ms = std::max(kept.series->begin_ms, since_ms);
      // A tenant that has changed its family has them in several lists.
      std::stable_sort(
          kept.intervals.begin(), kept.intervals.end(),
          [](const Interval* one, const Interval* other) { return one->end_ms < other->end_ms; });
      for (const Interval* interval : kept.intervals) {
        if (interval->end_ms <= begin_ms) continue;
        add(absl::FromUnixMillis(begin_ms), interval->values);
        begin_ms = interval->end_ms;
      }
      add(absl::FromUnixMillis(begin_ms), kept.series->now);
    }
    const auto tenant = present.find(key.first);
    const HistoryValues values =
        tenant == present.end() ? HistoryValues() : ValuesOf(tenant->second->devices[key.second]);
    if (out.points.empty() || out.points.back().values != values) add(now, values);
  }
  return result;
}

}  // namespace gpumemd
