// SPDX-License-Identifier: Apache-2.0
// What a tenant has used over time, for people.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/views.h"
#include "common/bytes.h"

namespace gpumem::cli {
namespace {

std::string Moment(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
}

// Returns two lines: "Tenant job-17 of slurm, uid 1000", and from when to when it was there.
std::string Title(const v1::TenantUsage& usage) {
  std::string title = absl::StrCat("Tenant ", Printable(usage.tenant()));
  if (!usage.owner().empty()) absl::StrAppend(&title, " of ", Printable(usage.owner()));
  if (usage.has_user()) absl::StrAppend(&title, ", uid ", usage.user());
  absl::StrAppend(&title, "\n");
  if (!usage.has_created_ms()) return title;
  absl::StrAppend(&title, "  from ", Moment(usage.created_ms()));
  if (usage.has_ended_ms()) {
    return absl::StrCat(title, " to ", Moment(usage.ended_ms()), " UTC: has ended\n");
  }
  return absl::StrCat(
      title, " UTC: ", usage.ending() ? "has ended, and still has memory or sessions" : "is there",
      "\n");
}

// Host memory, and devices that the tenant may not have, are only shown if it has used them.
bool IsShown(const v1::TenantDeviceUsage& device) {
  return device.peak_bytes() > 0 ||
         (device.limit_bytes() > 0 && !IsHostMemory(device.device_uuid()));
}

}  // namespace

std::string UsageView(const v1::GetTenantUsageResponse& response, const DeviceList& devices,
                      bool exact, Layout layout) {
  std::string text;
  for (const v1::TenantUsage& usage : response.usages()) {
    if (!text.empty() && layout.headers) absl::StrAppend(&text, "\n");
    if (layout.headers) absl::StrAppend(&text, Title(usage));
    Table table({{"DEVICE", Align::kLeft, 6},
                 {"CHARGED", Align::kRight},
                 {"LIMIT", Align::kRight},
                 {"GUARANTEE", Align::kRight, 0, 1},
                 {"PEAK", Align::kRight},
                 {exact ? "BYTE-SECONDS" : "GIB-HOURS", Align::kRight},
                 Detail("DEVICE UUID")});
    for (const v1::TenantDeviceUsage& device : usage.devices()) {
      if (!IsShown(device)) continue;
      table.AddRow(
          {ShortDevice(devices, device.device_uuid()),
           usage.has_ended_ms() ? kNone : Size(device.charged_bytes(), exact),
           Size(device.limit_bytes(), exact), Size(device.guarantee_bytes(), exact),
           Size(device.peak_bytes(), exact),
           exact ? absl::StrCat(device.byte_seconds()) : FormatGibHours(device.byte_seconds()),
           device.device_uuid()});
    }
    absl::StrAppend(&text, table.ToString(layout));
  }
  return text;
}

}  // namespace gpumem::cli
