#include "client/cli/views.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/table.h"

namespace gpumem::cli {
namespace {

constexpr char kNone[] = "-";

std::string Counted(uint64_t n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
}

std::string StateWord(v1::SessionInfo::State state) {
  switch (state) {
    case v1::SessionInfo::STATE_LIVE:
      return "live";
    case v1::SessionInfo::STATE_LINGERING:
      return "lingering";
    default:
      return "unknown";
  }
}

std::string StateWord(v1::SegmentInfo::State state) {
  switch (state) {
    case v1::SegmentInfo::STATE_PENDING:
      return "pending";
    case v1::SegmentInfo::STATE_LEASED:
      return "leased";
    case v1::SegmentInfo::STATE_RETAINED:
      return "retained";
    case v1::SegmentInfo::STATE_LINGERING:
      return "lingering";
    case v1::SegmentInfo::STATE_RELEASING:
      return "releasing";
    default:
      return "unknown";
  }
}

std::string ByteLimit(bool present, uint64_t bytes, bool exact) {
  return present ? Size(bytes, exact) : "none";
}

std::string CountLimit(bool present, uint32_t count) {
  return present ? absl::StrCat(count) : "none";
}

// "3 of 16", or "3" where there is no limit.
std::string UsedOf(uint32_t used, bool limited, uint32_t limit) {
  return limited ? absl::StrCat(used, " of ", limit) : absl::StrCat(used);
}

// "[####------]"
std::string Bar(uint64_t part, uint64_t whole) {
  constexpr size_t kWidth = 20;
  const double share = whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  const auto full = static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * kWidth));
  return absl::StrCat("[", std::string(full, '#'), std::string(kWidth - full, '-'), "]");
}

}  // namespace

std::string StatusView(const v1::GetStatusResponse& status, bool exact) {
  std::string text = absl::StrCat(
      "gpumemd ", status.version(), " (pid ", status.pid(), "), up ", Age(status.uptime_ms()), ", ",
      status.draining() ? "draining: admits nothing new" : "admitting", "\n");
  absl::StrAppend(&text, "backend      ", Word(status.backend()), "\n");
  absl::StrAppend(&text, "runtime dir  ", status.runtime_dir(), "\n");
  absl::StrAppend(&text, "config       ",
                  status.config_file().empty() ? "built-in defaults" : status.config_file(), "\n");
  absl::StrAppend(&text, "holds        ", Counted(status.segments(), "segment"), " for ",
                  Counted(status.sessions(), "session"), " and ",
                  Counted(status.tenants(), "tenant"), "\n");
  for (const std::string& notice : status.notices()) {
    absl::StrAppend(&text, "notice       ", Printable(notice), "\n");
  }
  absl::StrAppend(&text, "\n",
                  DevicesView({status.devices().begin(), status.devices().end()}, exact));
  return text;
}

std::string DevicesView(const DeviceList& devices, bool exact) {
  if (devices.empty()) return "The daemon has no devices.\n";
  Table table({{"INDEX", Align::kRight},
               {"NAME"},
               {"UUID"},
               {"BACKEND"},
               {"CAPACITY", Align::kRight},
               {"CHARGED", Align::kRight},
               {"USED", Align::kRight},
               {"DRIVER FREE", Align::kRight},
               {"KINDS"}});
  for (const v1::Device& device : devices) {
    table.AddRow({absl::StrCat(device.index()), device.name(), device.device_uuid(),
                  Word(device.backend()), Size(device.capacity_bytes(), exact),
                  Size(device.charged_bytes(), exact),
                  Percent(device.charged_bytes(), device.capacity_bytes()),
                  device.driver_free_bytes() == 0 ? kNone : Size(device.driver_free_bytes(), exact),
                  absl::StrJoin(device.kinds(), ",", [](std::string* out, int kind) {
                    absl::StrAppend(out, Word(static_cast<v1::Kind>(kind)));
                  })});
  }
  return table.ToString();
}

std::string SessionsView(const v1::ListSessionsResponse& response, bool exact) {
  if (response.sessions().empty()) return "No sessions.\n";
  Table table({{"SESSION", Align::kRight},
               {"TENANT"},
               {"STATE"},
               {"PID", Align::kRight},
               {"UID", Align::kRight},
               {"NAME"},
               {"COMMAND"},
               {"LEASES", Align::kRight},
               {"LEASED", Align::kRight},
               {"AGE", Align::kRight}});
  for (const v1::SessionInfo& session : response.sessions()) {
    table.AddRow({absl::StrCat(session.session_id()), session.tenant(), StateWord(session.state()),
                  absl::StrCat(session.pid()), absl::StrCat(session.uid()), session.client_name(),
                  session.command(), absl::StrCat(session.leases()),
                  Size(session.leased_bytes(), exact), Age(session.age_ms())});
  }
  return table.ToString();
}

std::string SegmentsView(const v1::ListSegmentsResponse& response, const DeviceList& devices,
                         bool exact) {
  if (response.segments().empty()) return "No segments.\n";
  Table table({{"SEGMENT", Align::kRight},
               {"TENANT"},
               {"DEVICE"},
               {"KIND"},
               {"SIZE", Align::kRight},
               {"STATE"},
               {"LEASES", Align::kRight},
               {"SESSIONS"},
               {"AGE", Align::kRight}});
  for (const v1::SegmentInfo& segment : response.segments()) {
    table.AddRow({absl::StrCat(segment.segment_id()), segment.tenant(),
                  ShortDevice(devices, segment.device_uuid()), Word(segment.kind()),
                  Size(segment.size_bytes(), exact), StateWord(segment.state()),
                  absl::StrCat(segment.leases()),
                  segment.session_ids().empty() ? kNone : absl::StrJoin(segment.session_ids(), ","),
                  Age(segment.age_ms())});
  }
  return table.ToString();
}

std::string TenantsView(const v1::ListTenantsResponse& response, bool exact) {
  if (response.tenants().empty()) return "No tenants.\n";
  Table table({{"TENANT"},
               {"CHARGED", Align::kRight},
               {"LIMIT EACH DEVICE", Align::kRight},
               {"LIMIT IN ALL", Align::kRight},
               {"SEGMENTS", Align::kRight},
               {"SESSIONS", Align::kRight},
               {"DENIALS", Align::kRight},
               {"MADE BY"}});
  for (const v1::TenantInfo& tenant : response.tenants()) {
    const v1::Usage& usage = tenant.usage();
    const v1::Quota& quota = tenant.quota();
    std::string limit = ByteLimit(quota.has_limit_bytes(), quota.limit_bytes(), exact);
    if (!quota.devices().empty()) limit = "by device";
    table.AddRow({usage.tenant(), Size(usage.charged_bytes(), exact), limit,
                  ByteLimit(quota.has_total_limit_bytes(), quota.total_limit_bytes(), exact),
                  UsedOf(usage.segments(), quota.has_max_segments(), quota.max_segments()),
                  UsedOf(usage.sessions(), quota.has_max_sessions(), quota.max_sessions()),
                  absl::StrCat(usage.denials()), tenant.configured() ? "configuration" : "rule"});
  }
  return table.ToString();
}

std::string QuotaView(const v1::Quota& quota, const v1::Usage& usage, const DeviceList& devices,
                      bool exact) {
  Table counts({{"TENANT " + usage.tenant()}, {"USED", Align::kRight}, {"LIMIT", Align::kRight}});
  counts.AddRow({"bytes on all devices", Size(usage.charged_bytes(), exact),
                 ByteLimit(quota.has_total_limit_bytes(), quota.total_limit_bytes(), exact)});
  counts.AddRow({"segments", absl::StrCat(usage.segments()),
                 CountLimit(quota.has_max_segments(), quota.max_segments())});
  counts.AddRow({"sessions", absl::StrCat(usage.sessions()),
                 CountLimit(quota.has_max_sessions(), quota.max_sessions())});
  counts.AddRow({"calls in flight", absl::StrCat(usage.in_flight()),
                 CountLimit(quota.has_max_in_flight(), quota.max_in_flight())});
  counts.AddRow({"retained bytes on each device", "",
                 ByteLimit(quota.has_max_retained_bytes(), quota.max_retained_bytes(), exact)});
  counts.AddRow({"denials", absl::StrCat(usage.denials()), kNone});

  Table bytes({{"DEVICE"},
               {"CHARGED", Align::kRight},
               {"LIMIT", Align::kRight},
               {"USED", Align::kRight},
               {"LEASED", Align::kRight},
               {"RETAINED", Align::kRight},
               {"LINGERING", Align::kRight},
               {"PEAK", Align::kRight}});
  for (const v1::DeviceUsage& device : usage.devices()) {
    bytes.AddRow({ShortDevice(devices, device.device_uuid()), Size(device.charged_bytes(), exact),
                  Size(device.limit_bytes(), exact),
                  Percent(device.charged_bytes(), device.limit_bytes()),
                  Size(device.leased_bytes(), exact), Size(device.retained_bytes(), exact),
                  Size(device.lingering_bytes(), exact), Size(device.peak_bytes(), exact)});
  }
  return absl::StrCat(counts.ToString(), "\n", bytes.ToString());
}

std::string TopView(const v1::GetStatusResponse& status, v1::ListTenantsResponse tenants,
                    v1::ListSessionsResponse sessions, bool exact) {
  std::string text = absl::StrCat(
      "gpumemd ", status.version(), "  ", Word(status.backend()), "  up ", Age(status.uptime_ms()),
      "  ", Counted(status.sessions(), "session"), "  ", Counted(status.segments(), "segment"),
      status.draining() ? "  draining" : "", "\n\n");

  DeviceList devices(status.devices().begin(), status.devices().end());
  Table table({{"DEVICE"},
               {"NAME"},
               {"CHARGED", Align::kRight},
               {"CAPACITY", Align::kRight},
               {"USED", Align::kRight},
               {""}});
  for (const v1::Device& device : devices) {
    table.AddRow({ShortDevice(devices, device.device_uuid()), device.name(),
                  Size(device.charged_bytes(), exact), Size(device.capacity_bytes(), exact),
                  Percent(device.charged_bytes(), device.capacity_bytes()),
                  Bar(device.charged_bytes(), device.capacity_bytes())});
  }
  std::stable_sort(tenants.mutable_tenants()->begin(), tenants.mutable_tenants()->end(),
                   [](const v1::TenantInfo& a, const v1::TenantInfo& b) {
                     return a.usage().charged_bytes() > b.usage().charged_bytes();
                   });
  std::stable_sort(sessions.mutable_sessions()->begin(), sessions.mutable_sessions()->end(),
                   [](const v1::SessionInfo& a, const v1::SessionInfo& b) {
                     return a.leased_bytes() > b.leased_bytes();
                   });
  absl::StrAppend(&text, table.ToString(), "\n", TenantsView(tenants, exact), "\n",
                  SessionsView(sessions, exact));
  return text;
}

}  // namespace gpumem::cli
