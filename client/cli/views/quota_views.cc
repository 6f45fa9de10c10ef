// SPDX-License-Identifier: Apache-2.0
// Tenants' quotas and usage, for people.
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/views.h"
#include "common/quota_keys.h"

namespace gpumem::cli {
namespace {

using google::protobuf::FieldDescriptor;

constexpr char kNoLimit[] = "none";
constexpr char kByDevice[] = "by device";

// Marks values that operators set.
class OverrideMarks {
 public:
  explicit OverrideMarks(const google::protobuf::RepeatedPtrField<std::string>& overridden)
      : unseen_(overridden.begin(), overridden.end()), overridden_(unseen_) {}

  // Returns `cell`, marked if one of these fields is overridden.
  std::string operator()(std::string cell, std::initializer_list<absl::string_view> fields) {
    bool any = false;
    for (absl::string_view field : fields) {
      unseen_.erase(std::string(field));
      any |= overridden_.contains(std::string(field));
    }
    return any ? cell + "*" : cell;
  }

  bool any() const { return !overridden_.empty(); }
  // True if an overridden field was not shown in any cell.
  bool unseen() const { return !unseen_.empty(); }

 private:
  std::set<std::string> unseen_;
  const std::set<std::string> overridden_;
};

std::string ByteLimit(bool present, uint64_t bytes, bool exact) {
  return present ? Size(bytes, exact) : kNoLimit;
}

// "3 of 16", or "3" where there is no limit.
std::string UsedOf(uint32_t used, bool limited, uint32_t limit) {
  return limited ? absl::StrCat(used, " of ", limit) : absl::StrCat(used);
}

// The tenant's charge on the pinned host memory.
uint64_t PinnedBytes(const v1::Usage& usage) {
  uint64_t bytes = 0;
  for (const v1::DeviceUsage& device : usage.devices()) {
    if (IsPinnedMemory(device.device_uuid())) bytes += device.charged_bytes();
  }
  return bytes;
}

uint64_t GuaranteeOn(const v1::Quota& quota, const std::string& uuid) {
  if (IsPinnedMemory(uuid)) return 0;
  for (const v1::DeviceGuarantee& own : quota.guarantees()) {
    if (own.device_uuid() == uuid) return own.guarantee_bytes();
  }
  return quota.guarantee_bytes();
}

bool HasGuarantee(const v1::Quota& quota) {
  return quota.guarantee_bytes() > 0 || !quota.guarantees().empty();
}

// An amount that each GPU has; if they differ, says so.
std::string OnEachGpu(const v1::Usage& usage, bool exact,
                      const std::function<uint64_t(const v1::DeviceUsage&)>& amount) {
  std::set<uint64_t> amounts;
  for (const v1::DeviceUsage& device : usage.devices()) {
    if (!IsPinnedMemory(device.device_uuid())) amounts.insert(amount(device));
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

const FieldDescriptor* FieldOf(const google::protobuf::Message& message, absl::string_view name) {
  return message.GetDescriptor()->FindFieldByName(std::string(name));
}

// Returns the value of a key as QuotaView shows it.
std::string ValueText(const v1::Quota& quota, const QuotaKey& key, bool exact) {
  const auto& reflection = *quota.GetReflection();
  const FieldDescriptor* field = FieldOf(quota, key.field);
  switch (key.unit) {
    case QuotaUnit::kBytes:
      return ByteLimit(reflection.HasField(quota, field), reflection.GetUInt64(quota, field),
                       exact);
    case QuotaUnit::kCount:
      return reflection.HasField(quota, field) ? absl::StrCat(reflection.GetUInt32(quota, field))
                                               : kNoLimit;
    case QuotaUnit::kNumber:
      return absl::StrCat(reflection.GetInt32(quota, field));
    case QuotaUnit::kSwitch:
      return reflection.GetBool(quota, field) ? "yes" : "no";
    case QuotaUnit::kKind: {
      const auto kind = static_cast<v1::Kind>(reflection.GetEnumValue(quota, field));
      return kind == v1::KIND_UNSPECIFIED ? "the device's default" : Word(kind);
    }
    case QuotaUnit::kRelease:
      return reflection.GetEnumValue(quota, field) == v1::RELEASE_POLICY_ON_EXIT ? "on-exit"
                                                                                 : "trust";
    case QuotaUnit::kTenant: {
      const std::string tenant = reflection.GetString(quota, field);
      return tenant.empty() ? kNone : tenant;
    }
    case QuotaUnit::kDeviceBytes:
      break;
  }
  return kByDevice;
}

// Returns the usage that a key limits. Requires that the key has one.
uint64_t Used(const v1::Usage& usage, const QuotaKey& key) {
  const FieldDescriptor* field = FieldOf(usage, key.usage);
  if (field->is_repeated()) return PinnedBytes(usage);  // the pinned limit, over its devices
  return key.unit == QuotaUnit::kBytes ? usage.GetReflection()->GetUInt64(usage, field)
                                       : usage.GetReflection()->GetUInt32(usage, field);
}

// Limits with a row: those of a usage, then the others.
void AddLimits(const v1::Quota& quota, const v1::Usage& usage, bool exact, OverrideMarks* marks,
               Table* table) {
  for (const bool with_usage : {true, false}) {
    for (const QuotaKey& key : kQuotaKeys) {
      const bool bytes = key.unit == QuotaUnit::kBytes;
      if (key.row.empty() || key.usage.empty() == with_usage) continue;
      if (!bytes && key.unit != QuotaUnit::kCount) continue;
      const uint64_t used = with_usage ? Used(usage, key) : 0;
      if (key.hidden_if_unused && used == 0 &&
          !quota.GetReflection()->HasField(quota, FieldOf(quota, key.field))) {
        continue;
      }
      table->AddRow({std::string(key.row),
                     !with_usage ? ""
                     : bytes     ? Size(used, exact)
                                 : absl::StrCat(used),
                     (*marks)(ValueText(quota, key, exact), {key.field})});
    }
  }
}

// Settings with a row, by unit.
void AddSettings(const v1::Quota& quota, bool exact, OverrideMarks* marks, Table* table) {
  for (const QuotaUnit unit : {QuotaUnit::kTenant, QuotaUnit::kNumber, QuotaUnit::kKind,
                               QuotaUnit::kSwitch, QuotaUnit::kRelease}) {
    for (const QuotaKey& key : kQuotaKeys) {
      if (key.unit != unit || key.row.empty()) continue;
      table->AddRow({std::string(key.row), (*marks)(ValueText(quota, key, exact), {key.field})});
    }
  }
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
         // The last column, which marks overrides that no earlier column shows.
         return absl::StrCat(row.placed.tenant->configured() ? "config" : "rule",
                             row.marks.unseen() ? "*" : "");
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

std::string QuotaView(const v1::GetQuotaResponse& response, const DeviceList& devices, bool exact,
                      Layout layout) {
  const v1::Quota& quota = response.quota();
  const v1::Usage& usage = response.usage();
  OverrideMarks marks(response.overridden());
  Table counts({{"TENANT " + usage.tenant()}, {"USED", Align::kRight}, {"LIMIT", Align::kRight}});
  AddLimits(quota, usage, exact, &marks, &counts);
  counts.AddRow({"denials", absl::StrCat(usage.denials()), kNone});

  Table settings({{"SETTING"}, {""}});
  AddSettings(quota, exact, &marks, &settings);

  // Empty columns are dropped.
  const bool guaranteed = HasGuarantee(quota);
  const bool waits = std::any_of(usage.devices().begin(), usage.devices().end(),
                                 [](const auto& device) { return device.waiting() > 0; });
  std::vector<Column> columns = {{"DEVICE"}, {"CHARGED", Align::kRight}};
  if (guaranteed) {
    columns.insert(columns.end(), {{"GUARANTEE", Align::kRight}, {"BORROWED", Align::kRight}});
  }
  for (const char* name : {"LIMIT", "USED", "LEASED", "RETAINED", "LINGERING", "PEAK"}) {
    columns.push_back({name, Align::kRight});
  }
  // If space is short: derived columns are dropped first, then past values.
  for (Column& column : columns) {
    if (column.header == "LEASED") column.optional = 3;
    if (column.header == "BORROWED") column.optional = 2;
    if (column.header == "PEAK") column.optional = 1;
    if (column.header == "DEVICE") column.least = 6;
  }
  if (waits) columns.push_back({"WAITING FOR", Align::kRight});
  Table bytes(columns);
  for (const v1::DeviceUsage& device : usage.devices()) {
    const bool pinned = IsPinnedMemory(device.device_uuid());
    std::vector<std::string> cells = {ShortDevice(devices, device.device_uuid()),
                                      Size(device.charged_bytes(), exact)};
    if (guaranteed) {
      const std::string guarantee = Size(GuaranteeOn(quota, device.device_uuid()), exact);
      cells.push_back(pinned ? kNone : marks(guarantee, {"guarantee_bytes", "guarantees"}));
      cells.push_back(pinned ? kNone : Size(device.borrowed_bytes(), exact));
    }
    const std::string limit = Size(device.limit_bytes(), exact);
    cells.push_back(pinned ? marks(limit, {"pinned_limit_bytes"})
                           : marks(limit, {"limit_bytes", "devices"}));
    cells.push_back(Percent(device.charged_bytes(), device.limit_bytes()));
    for (uint64_t amount : {device.leased_bytes(), device.retained_bytes(),
                            device.lingering_bytes(), device.peak_bytes()}) {
      cells.push_back(Size(amount, exact));
    }
    if (waits) cells.push_back(Size(device.waiting_bytes(), exact));
    bytes.AddRow(std::move(cells));
  }
  return absl::StrCat(
      counts.ToString(layout), "\n", settings.ToString(layout), "\n", bytes.ToString(layout),
      marks.any() && layout.headers ? absl::StrCat("* as operators set it, over what the "
                                                   "configuration says (gpumemctl quota unset ",
                                                   Printable(usage.tenant()), " takes it back)\n")
                                    : "");
}

std::string ReloadView(const v1::ReloadResponse& response) {
  std::string text = absl::StrCat("Reloaded ", Printable(response.config_file()),
                                  response.changes().empty() ? ": nothing is different.\n" : ":\n");
  for (const std::string& change : response.changes()) {
    absl::StrAppend(&text, "  ", Printable(change), "\n");
  }
  for (const std::string& notice : response.notices()) {
    absl::StrAppend(&text, "notice: ", Printable(notice), "\n");
  }
  return text;
}

}  // namespace gpumem::cli
