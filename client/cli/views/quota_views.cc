// Tenants' quotas and usage, for people.
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

constexpr char kNone[] = "-";
constexpr char kNoLimit[] = "none";
constexpr char kByDevice[] = "by device";

// Marks values that operators set.
class Marks {
 public:
  explicit Marks(const google::protobuf::RepeatedPtrField<std::string>& overridden)
      : unseen_(overridden.begin(), overridden.end()), overridden_(unseen_) {}

  // Returns `cell`, marked if one of these fields is overridden.
  std::string operator()(std::string cell, std::initializer_list<const char*> fields) {
    for (const char* field : fields) unseen_.erase(field);
    const bool any = std::any_of(fields.begin(), fields.end(),
                                 [&](const char* field) { return overridden_.contains(field); });
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

std::string CountLimit(bool present, uint32_t count) {
  return present ? absl::StrCat(count) : kNoLimit;
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

std::string KindWord(const v1::Quota& quota) {
  return quota.has_kind() && quota.kind() != v1::KIND_UNSPECIFIED ? Word(quota.kind())
                                                                  : "the device's default";
}

std::string YesNo(bool yes) { return yes ? "yes" : "no"; }

}  // namespace

std::string TenantsView(const v1::ListTenantsResponse& response, bool exact, size_t width) {
  if (response.tenants().empty()) return "No tenants.\n";
  using Tenant = v1::TenantInfo;
  struct Row {
    const Placed& placed;
    const v1::Usage& usage;
    const v1::Quota& quota;
    Marks marks;
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
            Marks(placed.tenant->overridden())};
    marked |= row.marks.any();
    std::vector<std::string> cells;
    for (const Shown* one : shown) cells.push_back(one->cell(row));
    table.AddRow(std::move(cells));
  }
  return absl::StrCat(table.ToString(width),
                      marked
                          ? "* as operators set it (gpumemctl quota get TENANT shows what; quota "
                            "unset takes it back)\n"
                          : "");
}

std::string QuotaView(const v1::GetQuotaResponse& response, const DeviceList& devices, bool exact,
                      size_t width) {
  const v1::Quota& quota = response.quota();
  const v1::Usage& usage = response.usage();
  Marks marks(response.overridden());
  Table counts({{"TENANT " + usage.tenant()}, {"USED", Align::kRight}, {"LIMIT", Align::kRight}});
  const auto bytes_row = [&](const char* what, const std::string& used, bool limited,
                             uint64_t limit, const char* field) {
    counts.AddRow({what, used, marks(ByteLimit(limited, limit, exact), {field})});
  };
  const auto count_row = [&](const char* what, uint32_t used, bool limited, uint32_t limit,
                             const char* field) {
    counts.AddRow({what, absl::StrCat(used), marks(CountLimit(limited, limit), {field})});
  };
  bytes_row("bytes on all devices", Size(usage.charged_bytes(), exact),
            quota.has_total_limit_bytes(), quota.total_limit_bytes(), "total_limit_bytes");
  bytes_row("bytes of pinned host memory", Size(PinnedBytes(usage), exact),
            quota.has_pinned_limit_bytes(), quota.pinned_limit_bytes(), "pinned_limit_bytes");
  count_row("segments", usage.segments(), quota.has_max_segments(), quota.max_segments(),
            "max_segments");
  count_row("sessions", usage.sessions(), quota.has_max_sessions(), quota.max_sessions(),
            "max_sessions");
  count_row("calls in flight", usage.in_flight(), quota.has_max_in_flight(), quota.max_in_flight(),
            "max_in_flight");
  count_row("requests that wait", usage.waiting(), quota.has_max_waiting(), quota.max_waiting(),
            "max_waiting");
  if (usage.publications() > 0 || quota.has_max_publications()) {
    count_row("publications", usage.publications(), quota.has_max_publications(),
              quota.max_publications(), "max_publications");
  }
  bytes_row("retained bytes on each device", "", quota.has_max_retained_bytes(),
            quota.max_retained_bytes(), "max_retained_bytes");
  counts.AddRow({"denials", absl::StrCat(usage.denials()), kNone});

  Table settings({{"SETTING"}, {""}});
  settings.AddRow({"under tenant", quota.parent().empty() ? kNone : quota.parent()});
  settings.AddRow({"priority", marks(absl::StrCat(quota.priority()), {"priority"})});
  settings.AddRow({"kind", marks(KindWord(quota), {"kind"})});
  settings.AddRow({"scrub", marks(YesNo(quota.scrub()), {"scrub"})});
  settings.AddRow({"revocable", marks(YesNo(quota.revocable()), {"revocable"})});
  settings.AddRow(
      {"release",
       marks(quota.release() == v1::RELEASE_POLICY_ON_EXIT ? "on-exit" : "trust", {"release"})});

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
  return absl::StrCat(counts.ToString(), "\n", settings.ToString(), "\n", bytes.ToString(width),
                      marks.any() ? absl::StrCat("* as operators set it, over what the "
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
