// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/map_view.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/holdings.h"

namespace gpumem::cli {
namespace {

constexpr size_t kIndent = 2;
constexpr char kOthers = '*';

// By tenant: its rank among all, the largest first, and its letter.
struct Mark {
  size_t place = 0;
  char letter = kOthers;
};
using Marks = std::map<std::string, Mark>;

Marks MarksOf(const std::vector<DeviceHoldings>& devices) {
  std::map<std::string, uint64_t> held;
  for (const DeviceHoldings& device : devices) {
    for (const Holding& holding : device.tenants) held[holding.tenant] += holding.held();
  }
  std::vector<std::pair<std::string, uint64_t>> order(held.begin(), held.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  Marks marks;
  for (size_t i = 0; i < order.size(); ++i) {
    marks[order[i].first] = {i, i < 26 ? static_cast<char>('A' + i) : kOthers};
  }
  return marks;
}

struct Part {
  char character = ' ';
  Style style = Style::kPlain;
  uint64_t bytes = 0;
};

std::vector<Part> PartsOf(const DeviceHoldings& holdings, const Marks& marks) {
  std::vector<Part> parts;
  for (const Holding& holding : holdings.tenants) {
    const Mark& mark = marks.at(holding.tenant);
    const Style style = GroundOf(mark.place);
    const auto letter = static_cast<unsigned char>(mark.letter);
    parts.push_back({mark.letter, style, holding.leased});
    parts.push_back({static_cast<char>(absl::ascii_tolower(letter)), style, holding.retained});
    parts.push_back({'~', style, holding.lingering});
  }
  parts.push_back({'+', Style::kReverse, holdings.all.moving});
  parts.push_back({'x', Style::kBad, holdings.outside});
  parts.push_back({'.', Style::kDim, holdings.free});
  return parts;
}

void AddPicture(const std::vector<Part>& parts, const MapOptions& options,
                std::vector<Line>* lines) {
  const size_t width = std::max<size_t>(options.columns, kIndent + 1) - kIndent;
  std::vector<uint64_t> bytes;
  for (const Part& part : parts) bytes.push_back(part.bytes);
  const std::vector<size_t> cells = Apportion(bytes, width * options.rows);
  Line line(std::string(kIndent, ' '));
  size_t room = width;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t left = cells[i]; left > 0;) {
      const size_t here = std::min(left, room);
      line.Add(std::string(here, parts[i].character), parts[i].style);
      left -= here;
      room -= here;
      if (room > 0) continue;
      lines->push_back(std::exchange(line, Line(std::string(kIndent, ' '))));
      room = width;
    }
  }
  if (room < width) lines->push_back(std::move(line));
}

void AddLegend(const v1::Device& device, const DeviceHoldings& holdings, const Marks& marks,
               const MapOptions& options, std::vector<Line>* lines) {
  Table table({{""},
               {"TENANT", Align::kLeft, 8},
               {"LEASED", Align::kRight},
               {"RETAINED", Align::kRight},
               {"LINGERING", Align::kRight},
               {"ALL", Align::kRight},
               {"SHARE", Align::kRight}});
  std::vector<Style> styles;  // of each row of the table, its header included
  if (options.headers) styles.push_back(Style::kBold);
  const uint64_t capacity = device.capacity_bytes();
  for (const Holding& holding : holdings.tenants) {
    const Mark& mark = marks.at(holding.tenant);
    styles.push_back(OneOf(mark.place));
    table.AddRow({std::string(1, mark.letter), holding.tenant, Size(holding.leased, options.exact),
                  Size(holding.retained, options.exact), Size(holding.lingering, options.exact),
                  Size(holding.held(), options.exact), Percent(holding.held(), capacity)});
  }
  const auto add_rest = [&](const char* mark, const char* what, uint64_t bytes, Style style) {
    styles.push_back(style);
    table.AddRow({mark, what, "", "", "", Size(bytes, options.exact), Percent(bytes, capacity)});
  };
  if (holdings.all.moving > 0) {
    add_rest("+", "(on its way)", holdings.all.moving, Style::kPlain);
  }
  if (holdings.outside > 0) add_rest("x", "(past the broker)", holdings.outside, Style::kBad);
  add_rest(".", "(free)", holdings.free, Style::kDim);
  const std::vector<std::string> rows = table.ToLines({options.columns - kIndent, options.headers});
  for (size_t i = 0; i < rows.size(); ++i) {
    Line line(std::string(kIndent, ' '));
    if (i == 0 && options.headers) {
      line.Add(rows[i], styles[i]);
    } else {
      line.Add(rows[i].substr(0, 1), styles[i]).Add(rows[i].substr(1));
    }
    lines->push_back(std::move(line));
  }
}

}  // namespace

std::vector<size_t> Apportion(const std::vector<uint64_t>& parts, size_t cells) {
  double whole = 0;
  for (uint64_t part : parts) whole += static_cast<double>(part);
  std::vector<size_t> given(parts.size(), 0);
  if (whole == 0) return given;
  std::vector<double> wanted;
  size_t sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    wanted.push_back(static_cast<double>(parts[i]) / whole * static_cast<double>(cells));
    given[i] = std::max<size_t>(static_cast<size_t>(wanted[i]), parts[i] > 0 ? 1 : 0);
    sum += given[i];
  }
  // One by one to the part with the largest deficit, or from the part with the largest surplus.
  const auto missing = [&](size_t i) { return wanted[i] - static_cast<double>(given[i]); };
  while (sum != cells) {
    size_t chosen = parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i] == 0 || (sum > cells && given[i] == 1)) continue;
      const bool better = chosen == parts.size() || (sum < cells ? missing(i) > missing(chosen)
                                                                 : missing(i) < missing(chosen));
      if (better) chosen = i;
    }
    if (chosen == parts.size()) break;
    given[chosen] += sum < cells ? 1 : -1;
    sum += sum < cells ? 1 : -1;
  }
  return given;
}

std::vector<Line> MapView(const std::vector<v1::Device>& devices,
                          const v1::ListTenantsResponse& tenants, const MapOptions& options) {
  if (devices.empty()) return {Line("The daemon has no devices.")};
  std::vector<DeviceHoldings> holdings;
  for (const v1::Device& device : devices) holdings.push_back(HoldingsOn(device, tenants));
  const Marks marks = MarksOf(holdings);
  std::vector<Line> lines;
  for (size_t i = 0; i < devices.size(); ++i) {
    const v1::Device& device = devices[i];
    if (i > 0) lines.emplace_back();
    Line title(ShortDevice(devices, device.device_uuid()), Style::kBold);
    title.Add(absl::StrCat("  ", device.name(), "  ", Size(device.capacity_bytes(), options.exact),
                           ", ", Percent(holdings[i].all.held(), device.capacity_bytes()),
                           " held"));
    lines.push_back(std::move(title));
    AddPicture(PartsOf(holdings[i], marks), options, &lines);
    AddLegend(device, holdings[i], marks, options, &lines);
  }
  if (!options.headers) return lines;
  lines.emplace_back();
  lines.emplace_back("A leased, a retained, ~ lingering behind the letters of the tenant",
                     Style::kDim);
  return lines;
}

}  // namespace gpumem::cli
