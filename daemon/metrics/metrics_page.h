// SPDX-License-Identifier: Apache-2.0
// The daemon's metrics for Prometheus: docs/reference/metrics.md, in that order.
//
// The number of series is bounded. Tenants beyond `max_tenants`, those with the smallest charges,
// are shown as one, kOtherTenants.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/inspect/measures.h"
#include "daemon/metrics/process_stats.h"

namespace gpumemd {

// No tenant's name has parentheses.
inline constexpr absl::string_view kOtherTenants = "(other)";

// All that goes onto one page.
struct MetricsFacts {
  Measures measures;
  std::map<std::string, uint64_t> foreign_bytes;  // by device
  uint32_t generation = 1;                        // number of daemons so far, this one included
  uint64_t notices = 0;
  uint64_t store_places = 0;    // of the service manager's store; 0: unknown
  uint64_t store_used = 0;      // of them
  uint64_t unkept = 0;          // segments and publications that it had no place for
  absl::Duration spun;          // by threads that waited for calls
  uint64_t log_dropped = 0;     // lines that standard error did not take
  uint64_t log_suppressed = 0;  // lines beyond what one user may cause
  std::string version;
  Backend backend = Backend::kHost;
  absl::Time started;
  ProcessStats process;
};

// Not thread-safe.
class MetricsPage {
 public:
  // At least one.
  explicit MetricsPage(uint32_t max_tenants) : max_tenants_(max_tenants) {}

  // Returns the page. It remembers the written counters of each tenant. The denials of tenants that
  // are not shown are added up in kOtherTenants, which so never decreases.
  std::string Write(const MetricsFacts& facts);

 private:
  using Tenant = LedgerMeasures::Tenant;
  using Denials = std::map<Denial::Cause, uint64_t>;

  // Returns the tenants to show; the last one sums the others.
  std::vector<Tenant> Shown(const Measures& measures);
  // `parent_is_there`: the tenant's parent is also among the others.
  static void AddToOther(const Tenant& tenant, bool parent_is_there, Tenant& other);

  const uint32_t max_tenants_;
  std::map<std::string, Denials> seen_;  // by tenant
  Denials others_denials_;
};

}  // namespace gpumemd
