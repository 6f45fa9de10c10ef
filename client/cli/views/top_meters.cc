// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/top_meters.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/holdings.h"

namespace gpumem::cli {
namespace {

constexpr size_t kWidestMeter = 48;
// With fewer columns a model says nothing.
constexpr size_t kLeastModel = 4;

// Returns the model of a GPU, without its vendor; empty for host memory.
std::string Model(const v1::Device& device) {
  if (device.backend() != v1::BACKEND_CUDA || IsHostMemory(device.device_uuid())) return "";
  return std::string(absl::StripPrefix(device.name(), "NVIDIA "));
}

// Returns the part of a meter's line behind the meter.
Line Amounts(const v1::Device& device, const TopData& data, bool exact) {
  Line line(absl::StrCat(" ", Size(device.charged_bytes(), exact), " of ",
                         Size(device.capacity_bytes(), exact)));
  const uint64_t outside = HoldingsOn(device, data.tenants).outside;
  if (outside > 0) line.Add(absl::StrCat(", ", Size(outside, exact), " past"), Style::kWarning);
  return line;
}

}  // namespace

void AddMeters(const TopData& data, size_t count, bool exact, size_t columns,
               std::vector<Line>* lines) {
  const DeviceList devices(data.status.devices().begin(), data.status.devices().end());
  const size_t meter = std::clamp<size_t>(columns / 4, 12, kWidestMeter);
  size_t name_width = 0, label_width = 0, amounts_width = 0;
  for (const v1::Device& device : devices) {
    const size_t width = WidthOf(ShortDevice(devices, device.device_uuid()));
    name_width = std::max(name_width, width);
    label_width = std::max(label_width, WidthOf(Model(device)));
    amounts_width = std::max(amounts_width, Amounts(device, data, exact).width());
  }
  name_width = std::min(name_width, columns / 4);
  // The models take the columns that are left.
  const size_t taken = name_width + 1 + meter + amounts_width + 1;
  label_width = std::min(label_width, columns > taken ? columns - taken : 0);
  if (label_width < kLeastModel) label_width = 0;
  const auto cell = [](const std::string& text, size_t width) {
    const std::string cut = Shortened(text, width);
    return absl::StrCat(cut, std::string(width - WidthOf(cut), ' '), " ");
  };
  for (size_t i = 0; i < count; ++i) {
    const v1::Device& device = devices[i];
    Line line(cell(ShortDevice(devices, device.device_uuid()), name_width));
    if (label_width > 0) line.Add(cell(Model(device), label_width), Style::kDim);
    line.Add(MeterOf(device.charged_bytes(), device.capacity_bytes(), meter));
    lines->push_back(std::move(line.Add(Amounts(device, data, exact))));
  }
}

}  // namespace gpumem::cli
