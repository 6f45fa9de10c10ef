// SPDX-License-Identifier: Apache-2.0
// What tenants held on each device in the last hour, in a bounded amount of memory.
//
// A series is a tenant on a device. It begins when the tenant is first charged there, or waits for
// memory there. The history keeps a series' present values, and an interval for each former value:
// the value and its end. So samples without a change take no memory, and an interval that is
// dropped changes nothing about those after it.
//
// Bound: `most` units of 64 bytes. An interval takes one, a series one, and a tenant kTenantUnits
// for its names. A family is a topmost tenant and all tenants under it. If there is no room, the
// family with the most units drops its oldest interval, but never for a larger family: that one
// then loses its newest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/inspect/measures.h"

namespace gpumemd {

// Bytes of a tenant on a device, with the tenants under it.
struct HistoryValues {
  uint64_t charged = 0;
  uint64_t limit = 0;
  uint64_t guarantee = 0;
  uint64_t waiting = 0;  // of requests that wait
  uint64_t leased = 0;   // of those charged

  bool operator==(const HistoryValues&) const = default;
};

// The values from `time` until the next point.
struct HistoryPoint {
  absl::Time time;
  HistoryValues values;
};

struct HistorySeries {
  std::string tenant;
  size_t device = 0;  // its place among LedgerMeasures::devices
  std::vector<HistoryPoint> points;
  bool cut = false;  // intervals of the kept time were dropped for room
};

// Not thread-safe.
class History {
 public:
  // With the allocator's share, less than 4 MiB.
  static constexpr size_t kMostUnits = size_t{60} << 10;
  struct Options {
    size_t most = kMostUnits;
    absl::Duration kept = absl::Hours(1);
  };
  static constexpr size_t kUnitBytes = 64;
  static constexpr size_t kTenantUnits = 6;

  History() : History(Options{}) {}
  explicit History(Options options) : options_(options) {}
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Takes a sample, later than those before: a clock that was set back begins the history anew.
  void Add(absl::Time now, const LedgerMeasures& measures);

  // Returns the series by tenant and device. `tenants` and `device`: only these; empty: all. The
  // values of `measures`, which are those of `now`, follow as a point where they differ from the
  // last sample. A tenant that is neither there nor kept has no series.
  std::vector<HistorySeries> Read(absl::Time now, const LedgerMeasures& measures,
                                  const std::set<std::string>& tenants,
                                  std::optional<size_t> device) const;

  // True if the tenant has a series.
  bool Knows(const std::string& tenant) const { return tenants_.contains(tenant); }
  // Returns the begin of the kept time, at `now`.
  absl::Time Since(absl::Time now) const;
  // Returns the units in use, at most Options::most.
  size_t used() const { return used_; }

 private:
  struct Family {
    size_t units = 0;
    size_t tenants = 0;               // that belong to it
    size_t intervals = 0;             // of its list
    uint32_t oldest = 0, newest = 0;  // of the list; valid if there are intervals
  };
  using Families = std::map<std::string, Family>;
  struct Series {
    HistoryValues now;
    int64_t begin_ms = 0;  // of the first interval that is kept, or of `now`
    uint32_t device = 0;
    bool cut = false;
  };
  struct Tenant {
    Families::iterator family;
    std::vector<Series> series;  // by device
    size_t intervals = 0;        // also in lists of former families
    bool is_there = true;        // false: it has ended, and goes with its last interval
    bool seen = false;           // in the sample that is being taken
  };
  using Tenants = std::map<std::string, Tenant>;
  struct Interval {
    HistoryValues values;
    int64_t end_ms = 0;
    Tenants::value_type* tenant = nullptr;
    uint32_t device = 0;
    uint32_t next = 0;  // in the family's list, or in that of free ones
  };
  static_assert(sizeof(Interval) <= kUnitBytes && sizeof(Series) <= kUnitBytes);

  static Series* Find(Tenant& tenant, uint32_t device);
  void Clear();
  void DropOlderThan(int64_t ms);
  void Sample(int64_t now_ms, const LedgerMeasures::Tenant& measured, const std::string& family);
  // Returns the new tenant, without a series, or the end if there is no room.
  Tenants::iterator Begin(const std::string& name, const std::string& family);
  // Sets the values of a series from `now_ms` on.
  void Set(int64_t now_ms, Tenants::value_type& tenant, Series& series,
           const HistoryValues& values);
  void End(int64_t now_ms, Tenants::iterator tenant);
  void Remove(Tenants::iterator tenant);
  void Move(Tenant& tenant, const std::string& family);
  // Adds to a family's units, and to those in use.
  void Charge(Families::iterator family, int64_t units);
  // Makes room for units of the family. False if only smaller families could give it.
  bool MakeRoom(Families::iterator family, size_t units);
  void DropOldest(Families::iterator family, bool for_room);
  // Removes it if it has no tenants and no intervals.
  void RemoveIfUnused(Families::iterator family);

  const Options options_;
  Tenants tenants_;
  Families families_;
  std::set<std::pair<size_t, absl::string_view>> by_units_;  // those with intervals
  std::deque<Interval> intervals_;                           // of all families, and free ones
  std::optional<uint32_t> free_;                             // the first of the free ones
  size_t used_ = 0;
  std::optional<int64_t> first_ms_, last_ms_;  // samples
};

}  // namespace gpumemd
