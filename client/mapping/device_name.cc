// SPDX-License-Identifier: Apache-2.0
#include "client/mapping/device_name.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/kind.h"

namespace gpumem::internal {
namespace {

using Devices = absl::Span<const v1::Device* const>;

std::string ListOf(Devices devices) {
  return absl::StrJoin(devices, ", ", [](std::string* out, const v1::Device* device) {
    absl::StrAppend(out, device->device_uuid());
    if (!device->pci_bus_id().empty()) absl::StrAppend(out, " (", device->pci_bus_id(), ")");
  });
}

// Reads a number of `digits` hexadecimal digits off the front of `text`.
std::optional<uint32_t> EatHex(size_t digits, absl::string_view* text) {
  uint32_t number = 0;
  if (text->size() < digits) return std::nullopt;
  const absl::string_view front = text->substr(0, digits);
  if (!std::all_of(front.begin(), front.end(),
                   [](unsigned char c) { return absl::ascii_isxdigit(c); }) ||
      !absl::SimpleHexAtoi(front, &number)) {
    return std::nullopt;
  }
  text->remove_prefix(digits);
  return number;
}

// "0000:1b:00.0" and "00000000:1B:00.0" are one place. CUDA may also omit a domain of 0, and the
// function.
struct PciPlace {
  uint32_t domain = 0, bus = 0, device = 0, function = 0;
  friend bool operator==(const PciPlace&, const PciPlace&) = default;
};

std::optional<PciPlace> ParsePci(absl::string_view text) {
  PciPlace place;
  if (const size_t colon = text.find(':'); colon == 4 || colon == 8) {
    const std::optional<uint32_t> domain = EatHex(colon, &text);
    if (!domain || !absl::ConsumePrefix(&text, ":")) return std::nullopt;
    place.domain = *domain;
  }
  const std::optional<uint32_t> bus = EatHex(2, &text);
  if (!bus || !absl::ConsumePrefix(&text, ":")) return std::nullopt;
  const std::optional<uint32_t> device = EatHex(2, &text);
  if (!device) return std::nullopt;
  if (absl::ConsumePrefix(&text, ".")) {
    const std::optional<uint32_t> function = EatHex(1, &text);
    if (!function) return std::nullopt;
    place.function = *function;
  }
  if (!text.empty()) return std::nullopt;
  place.bus = *bus;
  place.device = *device;
  return place;
}

// "1" or "cuda:1".
std::optional<size_t> ParseOrdinal(absl::string_view text) {
  absl::ConsumePrefix(&text, "cuda:");
  uint32_t ordinal = 0;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isdigit(c);
  });
  if (!digits || !absl::SimpleAtoi(text, &ordinal)) return std::nullopt;
  return ordinal;
}

bool IsCuda(const v1::Device* device) { return device->backend() == v1::BACKEND_CUDA; }

// True if the device has only page-locked host memory, which has no ordinal.
bool IsPinned(const v1::Device* device) {
  return device->kinds_size() > 0 &&
         TraitsOf(static_cast<SegmentKind>(device->kinds(0))).host_memory;
}

absl::StatusOr<std::string> ByOrdinal(size_t ordinal, Devices devices, ListVisible visible) {
  if (std::none_of(devices.begin(), devices.end(), IsCuda)) {
    size_t position = 0;
    for (const v1::Device* device : devices) {
      if (!IsPinned(device) && position++ == ordinal) return device->device_uuid();
    }
    return absl::NotFoundError(absl::StrCat("there is no device ", ordinal, "; the daemon has ",
                                            ListOf(devices), ", counted from 0"));
  }
  absl::StatusOr<std::vector<std::string>> uuids = visible();
  if (!uuids.ok()) {
    return absl::NotFoundError(absl::StrCat("this process has no CUDA device ", ordinal, " (",
                                            uuids.status().message(),
                                            "); name it by its UUID: ", ListOf(devices)));
  }
  if (ordinal >= uuids->size()) {
    return absl::NotFoundError(absl::StrCat(
        "this process has no CUDA device ", ordinal, "; it sees ", absl::StrJoin(*uuids, ", "),
        ", counted from 0 (CUDA_VISIBLE_DEVICES); the daemon has ", ListOf(devices)));
  }
  const std::string& uuid = (*uuids)[ordinal];
  for (const v1::Device* device : devices) {
    if (device->device_uuid() == uuid) return uuid;
  }
  return absl::NotFoundError(absl::StrCat("this process's CUDA device ", ordinal, " is ", uuid,
                                          ", which the daemon does not have; it has ",
                                          ListOf(devices)));
}

}  // namespace

absl::StatusOr<std::string> ResolveDevice(absl::string_view name, Devices devices,
                                          ListVisible visible) {
  if (name.empty() || name == kMostFree) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" names no device; the daemon has ", ListOf(devices)));
  }
  for (const v1::Device* device : devices) {
    if (device->device_uuid() == name) return device->device_uuid();
  }
  if (const std::optional<size_t> ordinal = ParseOrdinal(name)) {
    return ByOrdinal(*ordinal, devices, visible);
  }
  std::vector<const v1::Device*> found;
  const std::optional<PciPlace> place = ParsePci(name);
  for (const v1::Device* device : devices) {
    if (place ? ParsePci(device->pci_bus_id()) == place
              : absl::StartsWithIgnoreCase(device->device_uuid(), name)) {
      found.push_back(device);
    }
  }
  if (found.size() == 1) return found.front()->device_uuid();
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat("there is no device ", name, "; the daemon has ", ListOf(devices)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is a prefix of several device names: ", ListOf(found)));
}

}  // namespace gpumem::internal
