// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/views.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

std::string StateWord(v1::SessionInfo::State state) {
  switch (state) {
    case v1::SessionInfo::STATE_LIVE:
      return "live";
    case v1::SessionInfo::STATE_LINGERING:
      return "lingering";
    case v1::SessionInfo::STATE_AWAY:
      return "away";
    default:
      return "unknown";
  }
}

std::string Kinds(const v1::Device& device) {
  return absl::StrJoin(device.kinds(), ",", [](std::string* out, int kind) {
    absl::StrAppend(out, Word(static_cast<v1::Kind>(kind)));
  });
}

// Returns the access of `device` to the memory of `other`: "self", "no", "yes 1", "yes+a 0".
std::string Peer(const v1::Device& device, const v1::Device& other) {
  if (device.device_uuid() == other.device_uuid()) return "self";
  for (const v1::PeerAccess& peer : device.peers()) {
    if (peer.device_uuid() != other.device_uuid()) continue;
    if (!peer.access()) return "no";
    return absl::StrCat("yes", peer.native_atomics() ? "+a" : "", " ", peer.performance_rank());
  }
  return kNone;
}

// Empty if no GPU has a peer.
std::string PeersView(const DeviceList& devices, Layout layout) {
  DeviceList gpus;
  for (const v1::Device& device : devices) {
    if (!device.peers().empty()) gpus.push_back(device);
  }
  if (gpus.empty()) return "";
  std::vector<Column> columns = {{"PEERS", Align::kRight}};
  for (const v1::Device& gpu : gpus) columns.push_back({absl::StrCat(gpu.index())});
  Table table(columns);
  for (const v1::Device& gpu : gpus) {
    std::vector<std::string> cells = {absl::StrCat(gpu.index())};
    for (const v1::Device& other : gpus) cells.push_back(Peer(gpu, other));
    table.AddRow(std::move(cells));
  }
  if (!layout.headers) return absl::StrCat("\n", table.ToString(layout));
  return absl::StrCat("\n", table.ToString(layout),
                      "Whether the GPU of the row can use the memory of the column's.\n"
                      "+a: with atomic operations of the link; number: the link's rank, 0 is the "
                      "fastest.\n");
}

// Empty if all users of a device have a session.
std::string ForeignView(const v1::GetStatusResponse& status, bool exact, Layout layout) {
  if (status.foreign_processes().empty()) return "";
  const DeviceList devices(status.devices().begin(), status.devices().end());
  uint64_t total = 0;
  Table table({{"DEVICE"},
               {"PID", Align::kRight},
               {"COMMAND"},
               {"USES", Align::kRight},
               Detail("DEVICE UUID")});
  for (const v1::ForeignProcess& process : status.foreign_processes()) {
    total += process.bytes();
    table.AddRow({ShortDevice(devices, process.device_uuid()),
                  process.pid() == 0 ? kNone : absl::StrCat(process.pid()), process.command(),
                  process.bytes() == 0 ? kNone : Size(process.bytes(), exact),
                  process.device_uuid()});
  }
  if (!layout.headers) return absl::StrCat("\n", table.ToString(layout));
  return absl::StrCat("\n", table.ToString(layout),
                      "Used by processes without a session: ", Size(total, exact), ".\n");
}

// Returns who may have the session suspend, or that it is asked to.
std::string SuspendsWord(const v1::SessionInfo& session) {
  if (session.suspension_asked()) return "asked";
  if (session.swappable()) return "swappable";
  return session.serves_suspension() ? "operator" : kNone;
}

}  // namespace

std::string StatusView(const v1::GetStatusResponse& status, bool exact, Layout layout) {
  std::string text =
      absl::StrCat("gpumemd ", Printable(status.version()), " (pid ", status.pid(), "), up ",
                   Age(status.uptime_ms()), ", ",
                   status.draining() ? "draining: admits nothing new" : "admitting", "\n");
  absl::StrAppend(
      &text, "backend      ", Word(status.backend()),
      status.has_cuda_toolkit() && status.cuda_toolkit().empty() ? ", built without CUDA" : "",
      "\n");
  absl::StrAppend(&text, "runtime dir  ", Printable(status.runtime_dir()), "\n");
  absl::StrAppend(
      &text, "config       ",
      status.config_file().empty() ? "built-in defaults" : Printable(status.config_file()), "\n");
  absl::StrAppend(&text, "holds        ", Counted(status.segments(), "segment"), " for ",
                  Counted(status.sessions(), "session"), " and ",
                  Counted(status.tenants(), "tenant"), "\n");
  for (const std::string& notice : status.notices()) {
    absl::StrAppend(&text, "notice       ", Printable(notice), "\n");
  }
  absl::StrAppend(&text, "\n",
                  DevicesView({status.devices().begin(), status.devices().end()}, exact, layout),
                  ForeignView(status, exact, layout));
  return text;
}

std::string DevicesView(const DeviceList& devices, bool exact, Layout layout) {
  if (devices.empty()) return "The daemon has no devices.\n";
  // Two tables, since one would be wider than most terminals.
  Table names({{"INDEX", Align::kRight}, {"UUID"}, {"NAME"}, {"BACKEND"}, Detail("PCI BUS ID")});
  Table state({{"INDEX", Align::kRight},
               {"CAPACITY", Align::kRight},
               {"CHARGED", Align::kRight},
               {"USED", Align::kRight},
               {"DRIVER FREE", Align::kRight},
               {"CONTEXT"},
               {"KINDS"},
               Detail("GRANULARITY", Align::kRight),
               Detail("OF POOLS", Align::kRight)});
  for (const v1::Device& device : devices) {
    const std::string index = absl::StrCat(device.index());
    names.AddRow({index, device.device_uuid(), device.name(), Word(device.backend()),
                  OrNone(device.pci_bus_id())});
    state.AddRow({index, Size(device.capacity_bytes(), exact), Size(device.charged_bytes(), exact),
                  Percent(device.charged_bytes(), device.capacity_bytes()),
                  device.driver_free_bytes() == 0 ? kNone : Size(device.driver_free_bytes(), exact),
                  device.context_pid() == 0 ? kNone : absl::StrCat("pid ", device.context_pid()),
                  Kinds(device), Size(device.granularity_bytes(), exact),
                  Size(device.pool_granularity_bytes() == 0 ? device.granularity_bytes()
                                                            : device.pool_granularity_bytes(),
                       exact)});
  }
  return absl::StrCat(names.ToString(layout), "\n", state.ToString(layout),
                      PeersView(devices, layout));
}

std::string SessionsView(const v1::ListSessionsResponse& response, bool exact, Layout layout) {
  if (response.sessions().empty()) return "No sessions.\n";
  const bool unbrokered =
      std::any_of(response.sessions().begin(), response.sessions().end(),
                  [](const v1::SessionInfo& session) { return session.unbrokered_bytes() > 0; });
  std::vector<Column> columns = {
      {"SESSION", Align::kRight},      {"TENANT", Align::kLeft, 10},    {"STATE"},
      {"PID", Align::kRight},          {"UID", Align::kRight, 0, 3},    {"NAME", Align::kLeft, 8},
      {"COMMAND", Align::kLeft, 8, 1}, {"LEASES", Align::kRight, 0, 2}, {"LEASED", Align::kRight},
      {"AGE", Align::kRight}};
  const bool suspended =
      std::any_of(response.sessions().begin(), response.sessions().end(),
                  [](const v1::SessionInfo& session) { return session.suspended_bytes() > 0; });
  if (suspended) columns.insert(columns.end() - 1, {"SUSPENDED", Align::kRight});
  const bool demoted =
      std::any_of(response.sessions().begin(), response.sessions().end(),
                  [](const v1::SessionInfo& session) { return session.demoted_bytes() > 0; });
  if (demoted) columns.insert(columns.end() - 1, {"DEMOTED", Align::kRight});
  if (unbrokered) columns.insert(columns.end() - 1, {"UNBROKERED", Align::kRight});
  columns.insert(columns.end(), {Detail("SUSPENDS"), Detail("IDLE", Align::kRight),
                                 Detail("GID", Align::kRight), Detail("RULE"), Detail("CGROUP")});
  Table table(columns);
  for (const v1::SessionInfo& session : response.sessions()) {
    std::vector<std::string> cells = {absl::StrCat(session.session_id()),
                                      session.tenant(),
                                      StateWord(session.state()),
                                      absl::StrCat(session.pid()),
                                      absl::StrCat(session.uid()),
                                      session.client_name(),
                                      session.command(),
                                      absl::StrCat(session.leases()),
                                      Size(session.leased_bytes(), exact)};
    if (suspended) {
      const uint64_t bytes = session.suspended_bytes();
      cells.push_back(bytes == 0 ? kNone : Size(bytes, exact));
    }
    if (demoted) {
      const uint64_t bytes = session.demoted_bytes();
      cells.push_back(bytes == 0 ? kNone : Size(bytes, exact));
    }
    if (unbrokered) {
      const uint64_t bytes = session.unbrokered_bytes();
      cells.push_back(bytes == 0 ? kNone : Size(bytes, exact));
    }
    cells.push_back(Age(session.age_ms()));
    cells.push_back(SuspendsWord(session));
    cells.push_back(Age(session.idle_ms()));
    cells.push_back(absl::StrCat(session.gid()));
    cells.push_back(OrNone(session.rule()));
    cells.push_back(OrNone(session.cgroup()));
    table.AddRow(std::move(cells));
  }
  return table.ToString(layout);
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

std::string WaitsFor(const v1::Denial& denial, bool exact) {
  const std::string whose = denial.limited_tenant().empty()
                                ? "its own"
                                : absl::StrCat("tenant ", denial.limited_tenant(), "'s");
  switch (denial.cause()) {
    case v1::Denial::CAUSE_DEVICE_LIMIT:
      return absl::StrCat(whose, " limit of ", Size(denial.limit(), exact));
    case v1::Denial::CAUSE_TOTAL_LIMIT:
      return absl::StrCat(whose, " total limit of ", Size(denial.limit(), exact));
    case v1::Denial::CAUSE_MAX_SEGMENTS:
      return absl::StrCat(whose, " limit of ", denial.limit(), " segments");
    case v1::Denial::CAUSE_CAPACITY: {
      const auto holder = [exact](std::string* text, const v1::Denial::Holder& each) {
        absl::StrAppend(text, each.tenant(), " (", Size(each.used(), exact), ")");
      };
      if (denial.holders().empty()) return "memory that others hold";
      return absl::StrCat("memory of ", absl::StrJoin(denial.holders(), ", ", holder));
    }
    case v1::Denial::CAUSE_GUARANTEES:
      return "memory that is not guaranteed to others";
    case v1::Denial::CAUSE_QUEUE:
      return "those before it";
    default:
      return "memory on its way back";
  }
}

std::string WaitingView(const v1::ListWaitingResponse& response, const DeviceList& devices,
                        bool exact, Layout layout) {
  if (response.waiting().empty()) return "";
  Table table({{"PLACE", Align::kRight},
               {"DEVICE", Align::kLeft, 6},
               {"SESSION", Align::kRight, 0, 1},
               {"TENANT", Align::kLeft, 8},
               {"ASKS FOR", Align::kRight},
               {"WAITS", Align::kRight},
               {"FOR"},
               Detail("KIND"),
               Detail("REVOCABLE"),
               Detail("DEVICE UUID")});
  for (const v1::WaitingInfo& waiting : response.waiting()) {
    const std::string size = Size(waiting.bytes(), exact);
    table.AddRow({absl::StrCat(waiting.position()), ShortDevice(devices, waiting.device_uuid()),
                  absl::StrCat(waiting.session_id()), waiting.tenant(),
                  waiting.count() == 1 ? size : absl::StrCat(waiting.count(), " x ", size),
                  Age(waiting.age_ms()), WaitsFor(waiting.blocked_by(), exact),
                  Word(waiting.kind()), waiting.revocable() ? "yes" : "no", waiting.device_uuid()});
  }
  return absl::StrCat(
      "\n", layout.headers ? "Waiting for memory, in the order in which they are served:\n" : "",
      table.ToString(layout));
}

std::string SegmentsView(const v1::ListSegmentsResponse& response, const DeviceList& devices,
                         bool exact, Layout layout) {
  if (response.segments().empty()) return "No segments.\n";
  Table table({{"SEGMENT", Align::kRight},
               {"TENANT", Align::kLeft, 8},
               {"DEVICE", Align::kLeft, 6},
               {"KIND"},
               {"SIZE", Align::kRight},
               {"STATE", Align::kLeft, 8},
               {"LEASES", Align::kRight},
               {"SESSIONS", Align::kLeft, 8},
               {"AGE", Align::kRight},
               Detail("PUBLICATIONS", Align::kRight),
               Detail("DEVICE UUID")});
  for (const v1::SegmentInfo& segment : response.segments()) {
    table.AddRow(
        {absl::StrCat(segment.segment_id()), segment.tenant(),
         absl::StrCat(ShortDevice(devices, segment.device_uuid()),
                      segment.home_uuid().empty() ? "" : " of ",
                      segment.home_uuid().empty() ? "" : ShortDevice(devices, segment.home_uuid())),
         Word(segment.kind()), Size(segment.size_bytes(), exact),
         absl::StrCat(
             StateWord(segment.state()), segment.revocable() ? ", revocable" : "",
             segment.publications() > 0 ? ", published" : "",
             segment.suspended() == 0                  ? ""
             : segment.suspended() == segment.leases() ? ", suspended"
                                                       : ", partly suspended",
             segment.dropped_bytes() > 0 ? ", dropped" : "",
             segment.kind() == v1::KIND_HOST && !segment.home_uuid().empty() ? ", demoted" : "",
             segment.lost() ? ", lost" : ""),
         absl::StrCat(segment.leases()),
         segment.session_ids().empty() ? kNone : absl::StrJoin(segment.session_ids(), ","),
         Age(segment.age_ms()), absl::StrCat(segment.publications()), segment.device_uuid()});
  }
  return table.ToString(layout);
}

std::string PublicationsView(const v1::ListPublicationsResponse& response, bool exact,
                             Layout layout) {
  if (response.publications().empty()) return "No publications.\n";
  Table table({{"PUBLICATION", Align::kLeft, 12},
               {"VERSION", Align::kRight},
               {"SEGMENTS", Align::kRight, 0, 4},
               {"SIZE", Align::kRight},
               {"FOR", Align::kLeft, 0, 3},
               {"ATTACHED", Align::kRight},
               {"STAYS", Align::kLeft, 10, 1},
               {"PUBLISHER", Align::kLeft, 8, 2},
               {"AGE", Align::kRight},
               Detail("METADATA", Align::kRight),
               Detail("EXPIRES AFTER", Align::kRight),
               Detail("PUBLISHED BY", Align::kRight),
               Detail("CONTENT", Align::kLeft)});
  for (const v1::PublicationInfo& each : response.publications()) {
    std::string stays = each.ephemeral() ? "with its publisher" : "until unpublished";
    if (each.expires_in_ms() > 0) {
      stays = absl::StrCat("for ", Age(each.expires_in_ms()));
    } else if (each.expire_after_ms() > 0) {
      stays = absl::StrCat("in use, then ", Age(each.expire_after_ms()));
    }
    std::string publisher = kNone;
    if (each.publisher_pid() != 0) {
      publisher = absl::StrCat(each.publisher_client_name(), " (pid ", each.publisher_pid(),
                               each.publisher_alive() ? ")" : ", gone)");
    }
    table.AddRow(
        {absl::StrCat(each.tenant(), "/", each.name()), absl::StrCat(each.version()),
         absl::StrCat(each.segments()), Size(each.bytes(), exact),
         each.access() == v1::PUBLICATION_ACCESS_ANY ? "any tenant" : "its tenant",
         each.suspended_segments() > 0 ? "suspended" : absl::StrCat(each.attached_sessions()),
         stays, publisher, Age(each.age_ms()), Size(each.metadata_bytes(), exact),
         each.expire_after_ms() == 0 ? kNone : Age(each.expire_after_ms()),
         each.publisher_session_id() == 0 ? kNone
                                          : absl::StrCat("session ", each.publisher_session_id()),
         each.content_id().empty() ? kNone
                                   : absl::BytesToHexString(each.content_id()).substr(0, 16)});
  }
  return table.ToString(layout);
}

std::string UnpublishedView(const std::string& name, const v1::UnpublishResponse& response) {
  return absl::StrCat("Unpublished ", Printable(name), ", version ", response.version(), ".\n");
}

std::string PoolsView(const PoolList& pools, const DeviceList& devices, bool exact, Layout layout) {
  if (pools.empty()) {
    return "No pools: a tenant has one on a device while it has segments of kind mempool there.\n";
  }
  Table table({{"TENANT"},
               {"DEVICE"},
               {"SEGMENTS", Align::kRight},
               {"RESERVED", Align::kRight},
               {"PEAK", Align::kRight},
               {"USED", Align::kRight},
               {"PEAK", Align::kRight},
               {"MAX", Align::kRight},
               {"THRESHOLD", Align::kRight},
               {"REUSE"},
               Detail("DEVICE UUID")});
  for (const v1::PoolInfo& pool : pools) {
    const std::string reuse = absl::StrCat(pool.reuse_follow_event_dependencies() ? "e" : "-",
                                           pool.reuse_allow_opportunistic() ? "o" : "-",
                                           pool.reuse_allow_internal_dependencies() ? "i" : "-");
    table.AddRow({pool.tenant(), ShortDevice(devices, pool.device_uuid()),
                  absl::StrCat(pool.segments()), Size(pool.reserved_bytes(), exact),
                  Size(pool.reserved_peak_bytes(), exact), Size(pool.used_bytes(), exact),
                  Size(pool.used_peak_bytes(), exact),
                  pool.max_bytes() == 0 ? "none" : Size(pool.max_bytes(), exact),
                  pool.release_threshold_bytes() == UINT64_MAX
                      ? std::string("all")  // the default of pools on GPUs
                      : Size(pool.release_threshold_bytes(), exact),
                  reuse, pool.device_uuid()});
  }
  if (!layout.headers) return table.ToString(layout);
  return absl::StrCat(table.ToString(layout),
                      "REUSE across streams: e follows events, o opportunistic, i internal "
                      "dependencies.\n");
}

}  // namespace gpumem::cli
