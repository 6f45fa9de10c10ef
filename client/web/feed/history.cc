// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/history.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/web/feed/compact.h"

namespace gpumem::web {
namespace {

// A series includes the tenants under its tenant.
bool IsShown(const std::string& tenant, const VisibleTenants& visible) {
  return visible.contains(tenant) && !visible.has_hidden(tenant);
}

// Returns the first point of a tenant that was made at that time. If there is none since then, the
// last before has the tenant's present values.
int FirstSince(const v1::TenantHistory& series, int64_t since_ms) {
  int first = 0;
  while (first + 1 < series.points_size() && series.points(first).time_unix_ms() < since_ms) {
    ++first;
  }
  return first;
}

}  // namespace

std::string HistoryText(const v1::GetHistoryResponse& history, const VisibleTenants* visible) {
  std::string json = absl::StrCat("{\"interval_ms\":", history.interval_ms(),
                                  ",\"since_ms\":", history.since_unix_ms(),
                                  ",\"now_ms\":", history.now_unix_ms(), ",\"series\":[");
  bool first = true;
  for (const v1::TenantHistory& series : history.series()) {
    if (visible != nullptr && !IsShown(series.tenant(), *visible)) continue;
    absl::StrAppend(&json, first ? "" : ",", "{\"tenant\":");
    first = false;
    AppendQuoted(series.tenant(), &json);
    json += ",\"device_uuid\":";
    AppendQuoted(series.device_uuid(), &json);
    absl::StrAppend(&json, ",\"cut\":", series.cut() ? "true" : "false", ",\"points\":[");
    const int64_t since_ms = visible != nullptr ? visible->since_ms(series.tenant()) : 0;
    const int begin = FirstSince(series, since_ms);
    for (int i = begin; i < series.points_size(); ++i) {
      const v1::HistoryPoint& point = series.points(i);
      absl::StrAppend(&json, i == begin ? "[" : ",[", std::max(since_ms, point.time_unix_ms()), ",",
                      point.charged_bytes(), ",", point.limit_bytes(), ",");
      absl::StrAppend(&json, point.guarantee_bytes(), ",", point.waiting_bytes(), ",",
                      point.leased_bytes(), "]");
    }
    json += "]}";
  }
  return json + "]}";
}

std::vector<std::string> TenantsWithHistory(const std::vector<std::string>& wanted,
                                            const VisibleTenants& visible) {
  std::vector<std::string> tenants = wanted;
  if (wanted.empty()) tenants.assign(visible.names().begin(), visible.names().end());
  std::erase_if(tenants, [&](const std::string& each) { return !IsShown(each, visible); });
  std::sort(tenants.begin(), tenants.end());
  return tenants;
}

absl::Status CheckVisible(const std::vector<std::string>& tenants, const VisibleTenants* visible) {
  if (visible == nullptr) return absl::OkStatus();
  for (const std::string& tenant : tenants) {
    if (!visible->contains(tenant)) {
      return absl::NotFoundError(absl::StrCat("there is no tenant \"", tenant, "\""));
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumem::web
