// SPDX-License-Identifier: Apache-2.0
// A tenant's quota and usage, and reloads, for people.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/quota_values.h"
#include "client/cli/views/views.h"
#include "common/quota_keys.h"

namespace gpumem::cli {
namespace {

using google::protobuf::FieldDescriptor;

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
    case QuotaUnit::kDuration:
      return DurationText(reflection.GetUInt64(quota, field));
    case QuotaUnit::kSwitch:
      return reflection.GetBool(quota, field) ? "yes" : "no";
    case QuotaUnit::kKind: {
      const auto kind = static_cast<v1::Kind>(reflection.GetEnumValue(quota, field));
      return kind == v1::KIND_UNSPECIFIED ? "the device's default" : Word(kind);
    }
    case QuotaUnit::kRelease:
      return reflection.GetEnumValue(quota, field) == v1::RELEASE_POLICY_ON_EXIT ? "on-exit"
                                                                                 : "trust";
    case QuotaUnit::kPreload:  // in force: AddSettings
      break;
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
  if (field->is_repeated()) {  // a limit of host memory, over its devices
    return key.field == "tier_limit_bytes" ? TierBytes(usage) : PinnedBytes(usage);
  }
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
void AddSettings(const v1::Quota& quota, const v1::Usage& usage, bool exact, OverrideMarks* marks,
                 Table* table) {
  for (const QuotaUnit unit :
       {QuotaUnit::kTenant, QuotaUnit::kNumber, QuotaUnit::kKind, QuotaUnit::kSwitch,
        QuotaUnit::kDuration, QuotaUnit::kRelease, QuotaUnit::kPreload}) {
    for (const QuotaKey& key : kQuotaKeys) {
      if (key.unit != unit || key.row.empty()) continue;
      if (key.hidden_if_unused && !quota.swappable() && !marks->has(key.field)) continue;
      const bool inherited = key.unit == QuotaUnit::kPreload;  // the quota may not have it
      if (inherited && usage.preload() == v1::PRELOAD_MODE_UNSPECIFIED) continue;
      const std::string value = inherited ? Word(usage.preload()) : ValueText(quota, key, exact);
      table->AddRow({std::string(key.row), (*marks)(value, {key.field})});
    }
  }
}

}  // namespace

std::string QuotaView(const v1::GetQuotaResponse& response, const DeviceList& devices, bool exact,
                      Layout layout) {
  const v1::Quota& quota = response.quota();
  const v1::Usage& usage = response.usage();
  OverrideMarks marks(response.overridden());
  Table counts({{"TENANT " + usage.tenant()}, {"USED", Align::kRight}, {"LIMIT", Align::kRight}});
  AddLimits(quota, usage, exact, &marks, &counts);
  counts.AddRow({"denials", absl::StrCat(usage.denials()), kNone});

  Table settings({{"SETTING"}, {""}});
  AddSettings(quota, usage, exact, &marks, &settings);

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
  columns.insert(columns.end(),
                 {Detail("REVOCABLE", Align::kRight), Detail("UNBROKERED", Align::kRight),
                  Detail("OBTAINABLE", Align::kRight), Detail("DEVICE UUID")});
  Table bytes(columns);
  for (const v1::DeviceUsage& device : usage.devices()) {
    const bool tier = IsHostTier(device.device_uuid());
    const bool host = IsHostMemory(device.device_uuid());
    std::vector<std::string> cells = {ShortDevice(devices, device.device_uuid()),
                                      Size(device.charged_bytes(), exact)};
    if (guaranteed) {
      const std::string guarantee = Size(GuaranteeOn(quota, device.device_uuid()), exact);
      cells.push_back(host ? kNone : marks(guarantee, {"guarantee_bytes", "guarantees"}));
      cells.push_back(host ? kNone : Size(device.borrowed_bytes(), exact));
    }
    const std::string limit = Size(device.limit_bytes(), exact);
    cells.push_back(tier   ? marks(limit, {"tier_limit_bytes"})
                    : host ? marks(limit, {"pinned_limit_bytes"})
                           : marks(limit, {"limit_bytes", "devices"}));
    cells.push_back(Percent(device.charged_bytes(), device.limit_bytes()));
    for (uint64_t amount : {device.leased_bytes(), device.retained_bytes(),
                            device.lingering_bytes(), device.peak_bytes()}) {
      cells.push_back(Size(amount, exact));
    }
    if (waits) cells.push_back(Size(device.waiting_bytes(), exact));
    cells.push_back(Size(device.revocable_bytes(), exact));
    cells.push_back(Size(device.unbrokered_bytes(), exact));
    cells.push_back(device.has_obtainable_bytes() ? Size(device.obtainable_bytes(), exact) : kNone);
    cells.push_back(device.device_uuid());
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
