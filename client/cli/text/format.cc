// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/format.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"

namespace gpumem::cli {
namespace {

constexpr char kPinned[] = "PINNED";
constexpr char kTier[] = "TIER";

// Returns a unique prefix of a UUID: up to its first group, as in "GPU-8f2b1a30", or longer.
std::string ShortUuid(const DeviceList& devices, absl::string_view uuid) {
  if (IsPinnedMemory(uuid)) return kPinned;  // there is only one
  if (IsHostTier(uuid)) return kTier;        // as here
  size_t length = std::min(uuid.find('-', uuid.find('-') + 1), uuid.size());
  for (const v1::Device& other : devices) {
    if (other.device_uuid() == uuid) continue;
    while (length < uuid.size() && absl::StartsWith(other.device_uuid(), uuid.substr(0, length))) {
      ++length;
    }
  }
  return std::string(uuid.substr(0, length));
}

}  // namespace

std::string Size(uint64_t bytes, bool exact) {
  return exact ? absl::StrCat(bytes) : FormatBytes(bytes);
}

std::string Age(uint64_t milliseconds) {
  const uint64_t seconds = milliseconds / 1000;
  if (seconds == 0) return absl::StrCat(milliseconds, "ms");
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (seconds < 3600) return absl::StrFormat("%dm%02ds", seconds / 60, seconds % 60);
  if (seconds < 86400) return absl::StrFormat("%dh%02dm", seconds / 3600, seconds / 60 % 60);
  return absl::StrFormat("%dd%02dh", seconds / 86400, seconds / 3600 % 24);
}

std::string Percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (part > 0 && percent < 1) return "<1%";
  if (part < whole && percent > 99) return "99%";
  return absl::StrFormat("%.0f%%", percent);
}

std::string ShortDevice(const DeviceList& devices, absl::string_view uuid) {
  for (const v1::Device& device : devices) {
    if (device.device_uuid() == uuid) {
      return absl::StrCat(device.index(), " ", ShortUuid(devices, uuid));
    }
  }
  return std::string(uuid);
}

bool IsPinnedMemory(absl::string_view uuid) {
  return absl::StartsWith(uuid, absl::StrCat(kPinned, "-"));
}

bool IsHostTier(absl::string_view uuid) { return absl::StartsWith(uuid, absl::StrCat(kTier, "-")); }

bool IsHostMemory(absl::string_view uuid) { return IsPinnedMemory(uuid) || IsHostTier(uuid); }

std::string Word(v1::Kind kind) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::Kind_Name(kind), "KIND_"));
}

std::string Word(v1::Backend backend) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::Backend_Name(backend), "BACKEND_"));
}

std::string Word(v1::PreloadMode mode) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::PreloadMode_Name(mode), "PRELOAD_MODE_"));
}

std::string CauseWords(v1::Denial::Cause cause) {
  const std::string name = v1::Denial::Cause_Name(cause);
  return absl::StrReplaceAll(absl::AsciiStrToLower(absl::StripPrefix(name, "CAUSE_")),
                             {{"_", " "}});
}

}  // namespace gpumem::cli
