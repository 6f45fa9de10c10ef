// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/top_view.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/holdings.h"
#include "client/cli/views/quota_values.h"
#include "client/cli/views/top_meters.h"

namespace gpumem::cli {
namespace {

// A row of the table, and its sort key.
struct Row {
  std::vector<std::string> cells;
  uint64_t size = 0;
  std::string name;
  uint64_t count = 0;
  uint64_t age_ms = 0;
  Style style = Style::kPlain;
};

struct Rows {
  std::vector<Column> columns;
  std::vector<Row> rows;
};

// Drops a column that is empty in all rows, to save width.
void LeaveOut(const std::string& header, Rows* rows) {
  const auto it = std::find_if(rows->columns.begin(), rows->columns.end(),
                               [&](const Column& column) { return column.header == header; });
  const auto place = it - rows->columns.begin();
  rows->columns.erase(it);
  for (Row& row : rows->rows) row.cells.erase(row.cells.begin() + place);
}

std::string SizeOrNone(uint64_t bytes, bool exact) {
  return bytes == 0 ? kNone : Size(bytes, exact);
}

Rows ByTenant(const TopData& data, bool exact) {
  Rows result{.columns = {{"TENANT", Align::kLeft, 20},
                          {"HELD", Align::kRight},
                          {"LEASED", Align::kRight, 0, 5},
                          {"SUSPENDED", Align::kRight},
                          {"DEMOTED", Align::kRight},
                          {"RETAINED", Align::kRight},
                          {"LINGERING", Align::kRight},
                          {"WAITS FOR", Align::kRight, 0, 1},
                          {"SEGMENTS", Align::kRight, 0, 2},
                          {"SESSIONS", Align::kRight, 0, 3},
                          {"DENIALS", Align::kRight, 0, 4}}};
  bool suspends = false, demotes = false;
  for (const v1::TenantInfo& tenant : data.tenants.tenants()) {
    const v1::Usage& usage = tenant.usage();
    const uint64_t suspended = TierBytes(usage);
    suspends = suspends || suspended > 0;
    demotes = demotes || usage.demoted_bytes() > 0;
    uint64_t held = 0, leased = 0, retained = 0, lingering = 0, waits = 0;
    for (const v1::DeviceUsage& device : usage.devices()) {
      held += device.charged_bytes();
      leased += device.leased_bytes();
      retained += device.retained_bytes();
      lingering += device.lingering_bytes();
      waits += device.waiting_bytes();
    }
    result.rows.push_back(
        {.cells = {usage.tenant(), Size(held, exact), SizeOrNone(leased, exact),
                   SizeOrNone(suspended, exact), SizeOrNone(usage.demoted_bytes(), exact),
                   SizeOrNone(retained, exact), SizeOrNone(lingering, exact),
                   SizeOrNone(waits, exact), absl::StrCat(usage.segments()),
                   absl::StrCat(usage.sessions()), absl::StrCat(usage.denials())},
         .size = held,
         .name = usage.tenant(),
         .count = usage.segments(),
         .style = waits > 0 ? Style::kWarning : Style::kPlain});
  }
  if (!suspends) LeaveOut("SUSPENDED", &result);
  if (!demotes) LeaveOut("DEMOTED", &result);
  return result;
}

// The sum of all sessions of one process.
struct ProcessSum {
  const v1::SessionInfo* first = nullptr;
  uint64_t held = 0, leases = 0, sessions = 0, unbrokered = 0, age_ms = 0;
  bool live = false, away = false;
};

Rows ByProcess(const TopData& data, bool exact) {
  Rows result{.columns = {{"PID", Align::kRight},
                          {"UID", Align::kRight, 0, 3},
                          {"TENANT", Align::kLeft, 16},
                          {"COMMAND", Align::kLeft, 8},
                          {"NAME", Align::kLeft, 6, 2},
                          {"STATE", Align::kLeft},
                          {"HELD", Align::kRight},
                          {"PAST BROKER", Align::kRight, 0, 4},
                          {"LEASES", Align::kRight, 0, 1},
                          {"SESSIONS", Align::kRight, 0, 5},
                          {"AGE", Align::kRight}}};
  std::map<std::pair<int32_t, std::string>, ProcessSum> processes;
  for (const v1::SessionInfo& session : data.sessions.sessions()) {
    ProcessSum& sum = processes[{session.pid(), session.tenant()}];
    if (sum.first == nullptr) sum.first = &session;
    sum.held += session.leased_bytes();
    sum.leases += session.leases();
    sum.unbrokered += session.unbrokered_bytes();
    sum.age_ms = std::max(sum.age_ms, session.age_ms());
    sum.live = sum.live || session.state() == v1::SessionInfo::STATE_LIVE;
    sum.away = sum.away || session.state() == v1::SessionInfo::STATE_AWAY;
    ++sum.sessions;
  }
  const bool past_broker = std::any_of(processes.begin(), processes.end(),
                                       [](const auto& each) { return each.second.unbrokered > 0; });
  for (const auto& [key, sum] : processes) {
    const v1::SessionInfo& session = *sum.first;
    result.rows.push_back(
        {.cells = {absl::StrCat(session.pid()), absl::StrCat(session.uid()), session.tenant(),
                   session.command(), session.client_name(),
                   sum.live ? "live" : (sum.away ? "away" : "lingering"), Size(sum.held, exact),
                   SizeOrNone(sum.unbrokered, exact), absl::StrCat(sum.leases),
                   absl::StrCat(sum.sessions), Age(sum.age_ms)},
         .size = sum.held,
         .name = session.command(),
         .count = sum.leases,
         .age_ms = sum.age_ms,
         .style = sum.unbrokered > 0 ? Style::kWarning
                  : sum.live         ? Style::kPlain
                                     : Style::kDim});
  }
  if (!past_broker) LeaveOut("PAST BROKER", &result);
  return result;
}

Rows ByDevice(const TopData& data, bool exact) {
  Rows result{.columns = {{"DEVICE", Align::kLeft},
                          {"NAME", Align::kLeft, 8, 3},
                          {"HELD", Align::kRight},
                          {"LEASED", Align::kRight, 0, 4},
                          {"RETAINED", Align::kRight},
                          {"LINGERING", Align::kRight},
                          {"PAST BROKER", Align::kRight, 0, 2},
                          {"FREE", Align::kRight},
                          {"TENANTS", Align::kRight, 0, 1}}};
  const DeviceList devices(data.status.devices().begin(), data.status.devices().end());
  bool past_broker = false;
  for (const v1::Device& device : devices) {
    const DeviceHoldings holdings = HoldingsOn(device, data.tenants);
    result.rows.push_back(
        {.cells = {ShortDevice(devices, device.device_uuid()), device.name(),
                   Size(holdings.all.held(), exact), SizeOrNone(holdings.all.leased, exact),
                   SizeOrNone(holdings.all.retained, exact),
                   SizeOrNone(holdings.all.lingering, exact), SizeOrNone(holdings.outside, exact),
                   Size(holdings.free, exact), absl::StrCat(holdings.tenants.size())},
         .size = holdings.all.held(),
         .name = ShortDevice(devices, device.device_uuid()),
         .count = holdings.tenants.size()});
    past_broker = past_broker || holdings.outside > 0;
  }
  if (!past_broker) LeaveOut("PAST BROKER", &result);
  return result;
}

Rows RowsOf(const TopData& data, const TopState& state) {
  Rows rows = state.by == TopBy::kTenant    ? ByTenant(data, state.exact)
              : state.by == TopBy::kProcess ? ByProcess(data, state.exact)
                                            : ByDevice(data, state.exact);
  std::stable_sort(rows.rows.begin(), rows.rows.end(), [&](const Row& a, const Row& b) {
    switch (state.sort) {
      case TopSort::kSize:
        return a.size > b.size;
      case TopSort::kName:
        return a.name < b.name;
      case TopSort::kCount:
        return a.count > b.count;
      case TopSort::kAge:
        return a.age_ms < b.age_ms;
    }
    return false;
  });
  return rows;
}

const char* SortWord(const TopState& state) {
  switch (state.sort) {
    case TopSort::kSize:
      return "held";
    case TopSort::kName:
      return "name";
    case TopSort::kCount:
      return state.by == TopBy::kTenant    ? "segments"
             : state.by == TopBy::kProcess ? "leases"
                                           : "tenants";
    case TopSort::kAge:
      return "youngest";
  }
  return "";
}

Line Header(const TopData& data, const TopState& state) {
  const v1::GetStatusResponse& status = data.status;
  Line line(absl::StrCat("gpumemd ", status.version()), Style::kBold);
  line.Add(absl::StrCat("  up ", Age(status.uptime_ms()), "  ",
                        Counted(static_cast<uint64_t>(data.tenants.tenants_size()), "tenant"), ", ",
                        Counted(status.sessions(), "session"), ", ",
                        Counted(status.segments(), "segment")));
  if (status.draining()) line.Add("  draining", Style::kWarning);
  if (!status.notices().empty()) {
    line.Add(absl::StrCat("  ", Counted(static_cast<uint64_t>(status.notices_size()), "notice"),
                          " (status)"),
             Style::kWarning);
  }
  if (!state.trouble.empty()) line.Add(absl::StrCat("  ", state.trouble), Style::kBad);
  return line;
}

// Returns the number of devices with a separate line above the table.
size_t Meters(const TopData& data, size_t rows) {
  const auto devices = static_cast<size_t>(data.status.devices_size());
  return rows == 0 ? devices : std::min(devices, rows / 3);
}

std::vector<Line> Help() {
  std::vector<Line> lines;
  const auto key = [&](const char* keys, const char* what) {
    Line line("  ");
    line.Add(absl::StrCat(keys, std::string(18 - WidthOf(keys), ' ')), Style::kBold).Add(what);
    lines.push_back(std::move(line));
  };
  lines.emplace_back("Keys", Style::kBold);
  key("t  p  d", "by tenant, process, device");
  key("s", "sort by the next column");
  key("up down, k j", "move by one row");
  key("page up, down", "move by one screen (also space)");
  key("home, end", "go to the first or the last row");
  key("b", "switch sizes in bytes on or off");
  key("?", "show or hide this help");
  key("q", "quit");
  lines.emplace_back();
  lines.emplace_back("HELD is charged to the tenant: leased, retained (released, kept for reuse),");
  lines.emplace_back(
      "lingering (the lease has ended, but a process may still map the memory), and");
  lines.emplace_back("segments in creation or release. For a process HELD is its leases.");
  lines.emplace_back(
      "SUSPENDED, which HELD has in it: put aside into the host tier. DEMOTED, also");
  lines.emplace_back("in it: in host memory, at the same addresses.");
  lines.emplace_back("PAST BROKER, past: memory that CUDA gave directly (cudaMalloc).");
  return lines;
}

// Returns the number of lines around the table's rows.
size_t Around(const TopData& data, size_t rows) { return 1 + Meters(data, rows) + 1 + 1 + 1; }

}  // namespace

size_t TopPage(const TopData& data, size_t rows) {
  return rows > Around(data, rows) ? rows - Around(data, rows) : 1;
}

bool Press(const KeyPress& key, size_t page, TopState* state) {
  const auto up = [&](size_t by) { state->first -= std::min(state->first, by); };
  switch (key.key) {
    case Key::kUp:
      up(1);
      return true;
    case Key::kDown:
      ++state->first;
      return true;
    case Key::kPageUp:
      up(page);
      return true;
    case Key::kPageDown:
      state->first += page;
      return true;
    case Key::kHome:
      state->first = 0;
      return true;
    case Key::kEnd:
      state->first = SIZE_MAX / 2;  // TopView clamps it
      return true;
    case Key::kEscape:
      state->help = false;
      return true;
    case Key::kOther:
      return true;
    case Key::kCharacter:
      break;
  }
  const auto show = [&](TopBy by) {
    if (by != TopBy::kProcess && state->sort == TopSort::kAge) state->sort = TopSort::kSize;
    if (by != state->by) state->first = 0;
    state->by = by;
    state->help = false;
  };
  switch (key.character) {
    case 'q':
    case 'Q':
      return false;
    case 't':
      show(TopBy::kTenant);
      break;
    case 'p':
      show(TopBy::kProcess);
      break;
    case 'd':
      show(TopBy::kDevice);
      break;
    case 's': {
      const TopSort last = state->by == TopBy::kProcess ? TopSort::kAge : TopSort::kCount;
      state->sort = state->sort == last ? TopSort::kSize
                                        : static_cast<TopSort>(static_cast<int>(state->sort) + 1);
      break;
    }
    case 'k':
      up(1);
      break;
    case 'j':
      ++state->first;
      break;
    case ' ':
      state->first += page;
      break;
    case 'b':
      state->exact = !state->exact;
      break;
    case '?':
    case 'h':
      state->help = !state->help;
      break;
    default:
      break;
  }
  return true;
}

std::vector<Line> TopView(const TopData& data, size_t rows, size_t columns, TopState* state) {
  std::vector<Line> lines = {Header(data, *state)};
  AddMeters(data, Meters(data, rows), state->exact, std::min<size_t>(columns, 160), &lines);
  lines.emplace_back();
  Rows sorted = RowsOf(data, *state);
  const size_t all = sorted.rows.size();
  const size_t page = rows == 0 ? all : TopPage(data, rows);
  state->first = std::min(state->first, all > page ? all - page : 0);
  if (state->help && rows > 0) {
    for (Line& line : Help()) lines.push_back(std::move(line));
  } else {
    Table table(sorted.columns);
    for (Row& row : sorted.rows) table.AddRow(std::move(row.cells));
    const bool headers = rows > 0 || state->headers;
    const std::vector<std::string> text = table.ToLines({columns, headers});
    if (headers) {
      // The reversed line extends to the right edge.
      std::string heading = text[0];
      if (rows > 0 && WidthOf(heading) < columns) heading.append(columns - WidthOf(heading), ' ');
      lines.emplace_back(heading, rows == 0 ? Style::kBold : Style::kReverse);
    }
    const size_t end = std::min(all, state->first + page);
    for (size_t i = state->first; i < end; ++i) {
      lines.emplace_back(text[i + (headers ? 1 : 0)], sorted.rows[i].style);
    }
    if (all == 0) lines.emplace_back("Nobody is here.", Style::kDim);
  }
  if (rows == 0) return lines;
  lines.resize(rows);
  if (rows > 1) {
    lines.pop_back();
    const size_t end = std::min(all, state->first + page);
    std::string keys = absl::StrCat("t tenants  p processes  d devices  s sort: ", SortWord(*state),
                                    "  ? help  q quit");
    if (all > page && !state->help) {
      absl::StrAppend(&keys, "  ", state->first + 1, "-", end, " of ", all);
    }
    lines.emplace_back(Shortened(keys, columns), Style::kDim);
  }
  return lines;
}

}  // namespace gpumem::cli
