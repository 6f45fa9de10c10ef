// SPDX-License-Identifier: Apache-2.0
// Tenants that were made at run time, for people.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/quota_values.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {

std::string MakerOf(const v1::MadeTenant& made) {
  if (made.lasting()) return absl::StrCat("uid ", made.uid());
  if (made.session_id() != 0) return absl::StrCat("session ", made.session_id());
  return made.owner().empty() ? "operator" : made.owner();
}

std::string MadeTenantsView(const v1::ListTenantsResponse& response, bool exact, Layout layout) {
  if (response.tenants().empty()) return "No tenants were made at run time.\n";
  Table table({{"TENANT", Align::kLeft, 8},
               {"UNDER", Align::kLeft, 8},
               {"MADE BY"},
               {"UID", Align::kRight},
               {"CREATED (UTC)", Align::kLeft, 0, 1},
               {"CHARGED", Align::kRight},
               {"LIMIT", Align::kRight},
               {"SESSIONS", Align::kRight, 0, 2},
               {"STATE"}});
  for (const v1::TenantInfo& tenant : response.tenants()) {
    const v1::MadeTenant& made = tenant.made();
    const v1::Quota& quota = tenant.quota();
    const std::string limit = quota.devices().empty()
                                  ? ByteLimit(quota.has_limit_bytes(), quota.limit_bytes(), exact)
                                  : kByDevice;
    table.AddRow({tenant.usage().tenant(), OrNone(made.parent()), MakerOf(made),
                  made.has_uid() ? absl::StrCat(made.uid()) : kNone,
                  absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(made.created_ms()),
                                   absl::UTCTimeZone()),
                  Size(tenant.usage().charged_bytes(), exact), limit,
                  absl::StrCat(tenant.usage().sessions()),
                  tenant.configured() ? "configured"
                  : made.ending()     ? "ended"
                                      : "live"});
  }
  return table.ToString(layout);
}

std::string EndedTenantView(const std::string& tenant, const v1::EndTenantResponse& held,
                            bool exact) {
  if (held.gone()) return absl::StrCat("Tenant ", Printable(tenant), " is gone.\n");
  std::string text = absl::StrCat("Tenant ", Printable(tenant), " has ended, and still has:\n");
  for (const v1::HeldBytes& device : held.devices()) {
    absl::StrAppend(&text, "  ", Size(device.bytes(), exact), " on ",
                    Printable(device.device_uuid()), "\n");
  }
  for (const v1::HeldBySession& session : held.sessions()) {
    absl::StrAppend(&text, "  session ", session.session_id(), " (pid ", session.pid(), ")\n");
  }
  const int more = static_cast<int>(held.session_count()) - held.sessions_size();
  if (more > 0)
    absl::StrAppend(&text, "  ", Counted(static_cast<uint64_t>(more), "session"), " more\n");
  return text;
}

}  // namespace gpumem::cli
