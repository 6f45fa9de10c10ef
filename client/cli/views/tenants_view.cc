// SPDX-License-Identifier: Apache-2.0
// All tenants with their quotas and usage, for people.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/quota_values.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

// "3 of 16", or "3" where there is no limit.
std::string UsedOf(uint32_t used, bool limited, uint32_t limit) {
  return limited ? absl::StrCat(used, " of ", limit) : absl::StrCat(used);
}

// An amount that each GPU has; if they differ, says so.
std::string OnEachGpu(const v1::Usage& usage, bool exact,
                      const std::function<uint64_t(const v1::DeviceUsage&)>& amount) {
  std::set<uint64_t> amounts;
  for (const v1::DeviceUsage& device : usage.devices()) {
    if (!IsHostMemory(device.device_uuid())) amounts.insert(amount(device));
  }
  return amounts.size() == 1 ? Size(*amounts.begin(), exact) : kByDevice;
}

std::string Limit(const v1::TenantInfo& tenant, bool exact) {
  if (tenant.quota().devices().empty()) {
    return ByteLimit(tenant.quota().has_limit_bytes(), tenant.quota().limit_bytes(), exact);
  }
  return OnEachGpu(tenant.usage(), exact,
                   [](const v1::DeviceUsage& device) { return device.limit_bytes(); });
}

std::string Guarantee(const v1::TenantInfo& tenant, bool exact) {
  if (!HasGuarantee(tenant.quota())) return kNone;
  if (tenant.quota().guarantees().empty()) return Size(tenant.quota().guarantee_bytes(), exact);
  return OnEachGpu(tenant.usage(), exact, [&](const v1::DeviceUsage& device) {
    return GuaranteeOn(tenant.quota(), device.device_uuid());
  });
}

// Returns "device limit: 3, queue: 1".
std::string DenialCauses(const v1::Usage& usage) {
  if (usage.denials_by_cause().empty()) return kNone;
  return absl::StrJoin(usage.denials_by_cause(), ", ",
                       [](std::string* out, const v1::DenialCount& each) {
                         absl::StrAppend(out, CauseWords(each.cause()), ": ", each.count());
                       });
}

// Each tenant after its parent, one level deeper.
struct Placed {
  const v1::TenantInfo* tenant = nullptr;
  size_t depth = 0;
};
std::vector<Placed> AsTree(const v1::ListTenantsResponse& response) {
  std::set<std::string> names;
  for (const v1::TenantInfo& tenant : response.tenants()) names.insert(tenant.usage().tenant());
  std::vector<Placed> placed;
  const std::function<void(const std::string&, size_t)> place = [&](const std::string& parent,
                                                                    size_t depth) {
    if (depth > names.size()) return;
    for (const v1::TenantInfo& tenant : response.tenants()) {
      const std::string& above = tenant.quota().parent();
      if ((names.contains(above) ? above : "") != parent) continue;
      placed.push_back({&tenant, depth});
      place(tenant.usage().tenant(), depth + 1);
    }
  };
  place("", 0);
  return placed;
}

}  // namespace

std::string TenantsView(const v1::ListTenantsResponse& response, bool exact, Layout layout) {
  if (response.tenants().empty()) return "No tenants.\n";
  using Tenant = v1::TenantInfo;
  struct Row {
    const Placed& placed;
    const v1::Usage& usage;
    const v1::Quota& quota;
    OverrideMarks marks;
  };
  // Columns that are empty for all tenants are dropped.
  struct Shown {
    Column column;
    std::function<bool(const Tenant&)> filled;  // null: always shown
    std::function<std::string(Row&)> cell;
  };
  const auto has_pinned = [](const Tenant& tenant) {
    return tenant.quota().has_pinned_limit_bytes() || PinnedBytes(tenant.usage()) > 0;
  };
  const auto has_tier = [](const Tenant& tenant) {
    return tenant.quota().has_tier_limit_bytes() || TierBytes(tenant.usage()) > 0;
  };
  const std::vector<Shown> all = {
      {{"TENANT", Align::kLeft, 8},
       nullptr,
       [](Row& row) { return std::string(2 * row.placed.depth, ' ') + row.usage.tenant(); }},
      {{"CHARGED", Align::kRight},
       nullptr,
       [&](Row& row) { return Size(row.usage.charged_bytes(), exact); }},
      {{"GUARANTEE", Align::kRight},
       [](const Tenant& tenant) { return HasGuarantee(tenant.quota()); },
       [&](Row& row) {
         return row.marks(Guarantee(*row.placed.tenant, exact), {"guarantee_bytes", "guarantees"});
       }},
      {{"LIMIT", Align::kRight},
       nullptr,
       [&](Row& row) {
         return row.marks(Limit(*row.placed.tenant, exact), {"limit_bytes", "devices"});
       }},
      {{"TOTAL LIMIT", Align::kRight},
       [](const Tenant& tenant) { return tenant.quota().has_total_limit_bytes(); },
       [&](Row& row) {
         return row.marks(
             ByteLimit(row.quota.has_total_limit_bytes(), row.quota.total_limit_bytes(), exact),
             {"total_limit_bytes"});
       }},
      {{"PINNED", Align::kRight},
       has_pinned,
       [&](Row& row) { return Size(PinnedBytes(row.usage), exact); }},
      {{"LIMIT", Align::kRight},
       has_pinned,
       [&](Row& row) {
         return row.marks(
             ByteLimit(row.quota.has_pinned_limit_bytes(), row.quota.pinned_limit_bytes(), exact),
             {"pinned_limit_bytes"});
       }},
      {{"TIER", Align::kRight},
       has_tier,
       [&](Row& row) { return Size(TierBytes(row.usage), exact); }},
      {{"LIMIT", Align::kRight},
       has_tier,
       [&](Row& row) {
         return row.marks(
             ByteLimit(row.quota.has_tier_limit_bytes(), row.quota.tier_limit_bytes(), exact),
             {"tier_limit_bytes"});
       }},
      {{"DEMOTED", Align::kRight},
       [](const Tenant& tenant) { return tenant.usage().demoted_bytes() > 0; },
       [&](Row& row) { return Size(row.usage.demoted_bytes(), exact); }},
      {{"PRIORITY", Align::kRight, 0, 2},
       [](const Tenant& tenant) { return tenant.quota().priority() != 0; },
       [](Row& row) { return row.marks(absl::StrCat(row.quota.priority()), {"priority"}); }},
      {{"WAITING", Align::kRight},
       [](const Tenant& tenant) { return tenant.usage().waiting() > 0; },
       [](Row& row) {
         return row.marks(
             UsedOf(row.usage.waiting(), row.quota.has_max_waiting(), row.quota.max_waiting()),
             {"max_waiting"});
       }},
      {{"PUBLICATIONS", Align::kRight, 0, 3},
       [](const Tenant& tenant) { return tenant.usage().publications() > 0; },
       [](Row& row) {
         return row.marks(UsedOf(row.usage.publications(), row.quota.has_max_publications(),
                                 row.quota.max_publications()),
                          {"max_publications"});
       }},
      {{"SEGMENTS", Align::kRight, 0, 1},
       nullptr,
       [](Row& row) {
         return row.marks(
             UsedOf(row.usage.segments(), row.quota.has_max_segments(), row.quota.max_segments()),
             {"max_segments"});
       }},
      {{"SESSIONS", Align::kRight, 0, 4},
       nullptr,
       [](Row& row) {
         return row.marks(
             UsedOf(row.usage.sessions(), row.quota.has_max_sessions(), row.quota.max_sessions()),
             {"max_sessions"});
       }},
      {{"DENIALS", Align::kRight, 0, 5},
       nullptr,
       [](Row& row) { return absl::StrCat(row.usage.denials()); }},
      {{"MADE BY", Align::kLeft, 0, 6},
       nullptr,
       [](Row& row) {
         // Also marks overrides that no earlier column shows.
         const Tenant& tenant = *row.placed.tenant;
         return absl::StrCat(tenant.configured() ? "config"
                             : tenant.has_made() ? MakerOf(tenant.made())
                                                 : "rule",
                             !tenant.configured() && tenant.made().ending() ? " (ended)" : "",
                             row.marks.unseen() ? "*" : "");
       }},
      {Detail("RETAINED", Align::kRight), nullptr,
       [&](Row& row) {
         uint64_t bytes = 0;
         for (const v1::DeviceUsage& device : row.usage.devices()) bytes += device.retained_bytes();
         return Size(bytes, exact);
       }},
      {Detail("IN FLIGHT", Align::kRight), nullptr,
       [](Row& row) {
         return UsedOf(row.usage.in_flight(), row.quota.has_max_in_flight(),
                       row.quota.max_in_flight());
       }},
      {Detail("DENIED FOR"), nullptr, [](Row& row) { return DenialCauses(row.usage); }},
      {Detail("SET BY OPERATORS"), nullptr,
       [](Row& row) {
         const auto& fields = row.placed.tenant->overridden();
         return fields.empty() ? kNone : absl::StrJoin(fields, ",");
       }},
  };
  std::vector<const Shown*> shown;
  std::vector<Column> columns;
  for (const Shown& one : all) {
    if (one.filled &&
        std::none_of(response.tenants().begin(), response.tenants().end(), one.filled)) {
      continue;
    }
    shown.push_back(&one);
    columns.push_back(one.column);
  }
  Table table(columns);
  bool marked = false;
  for (const Placed& placed : AsTree(response)) {
    Row row{placed, placed.tenant->usage(), placed.tenant->quota(),
            OverrideMarks(placed.tenant->overridden())};
    marked |= row.marks.any();
    std::vector<std::string> cells;
    for (const Shown* one : shown) cells.push_back(one->cell(row));
    table.AddRow(std::move(cells));
  }
  return absl::StrCat(table.ToString(layout),
                      marked && layout.headers
                          ? "* as operators set it (gpumemctl quota get TENANT shows what; quota "
                            "unset takes it back)\n"
                          : "");
}

}  // namespace gpumem::cli
