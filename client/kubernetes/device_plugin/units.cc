// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/device_plugin/units.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/kubernetes/gpu.h"
#include "common/bytes.h"

namespace gpumem::kubernetes {
namespace {

constexpr char kPrefix[] = "gpumem.dev/memory-";
constexpr uint64_t kMostStep = 1024 * kGiB;
constexpr size_t kMostResource = 63;  // characters of the name, and of the domain's parts
constexpr size_t kMostDomain = 253;

bool IsAlnum(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); }

// True if it is letters, digits and `inner` ones, with a letter or digit at both ends.
bool IsName(absl::string_view text, absl::string_view inner) {
  return !text.empty() && text.size() <= kMostResource && IsAlnum(text.front()) &&
         IsAlnum(text.back()) && std::all_of(text.begin(), text.end(), [&](char c) {
           return IsAlnum(c) || absl::StrContains(inner, c);
         });
}

// The bytes of a device in a list: two fields, their tags and lengths, and those of the device.
constexpr size_t kAroundId = 2 + 2 + (sizeof("Unhealthy") - 1) + 2;

}  // namespace

absl::StatusOr<uint64_t> ParseStep(absl::string_view text) {
  auto bytes = ParseBytes(text);
  if (bytes.ok() && *bytes >= kMiB && *bytes <= kMostStep && *bytes % kMiB == 0) return bytes;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no whole number of MiB, such as 256MiB"));
}

std::string NameOfStep(uint64_t step) {
  return step % kGiB == 0 ? absl::StrCat(step / kGiB, "GiB") : absl::StrCat(step / kMiB, "MiB");
}

std::string ResourceOf(uint64_t step) { return absl::StrCat(kPrefix, NameOfStep(step)); }

bool IsResourceName(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  if (parts.size() != 2 || !IsName(parts[1], "-_.")) return false;
  const absl::string_view domain = parts[0];
  if (domain.size() > kMostDomain || domain != absl::AsciiStrToLower(domain)) return false;
  // Kubernetes keeps these for itself.
  if (domain == "kubernetes.io" || absl::EndsWith(domain, ".kubernetes.io")) return false;
  if (absl::StartsWith(domain, "requests.")) return false;
  const std::vector<absl::string_view> labels = absl::StrSplit(domain, '.');
  return std::all_of(labels.begin(), labels.end(),
                     [](absl::string_view label) { return IsName(label, "-"); });
}

bool HasUnits(absl::string_view resource, absl::string_view ours) {
  if (resource == ours) return true;
  if (!absl::ConsumePrefix(&resource, kPrefix)) return false;
  const auto step = ParseStep(resource);
  return step.ok() && NameOfStep(*step) == resource;
}

std::string IdOf(const Unit& unit) {
  return absl::StrFormat("%s/%s/%04d", unit.uuid, NameOfStep(unit.step), unit.number);
}

absl::StatusOr<Unit> ParseId(absl::string_view id) {
  // Others are not split: they may be very long.
  const std::vector<absl::string_view> parts = absl::StrSplit(id.substr(0, kMostId + 1), '/');
  Unit unit;
  if (id.size() <= kMostId && parts.size() == 3 && IsName(parts[0], "-") &&
      absl::SimpleAtoi(parts[2], &unit.number)) {
    unit.uuid = std::string(parts[0]);
    if (const auto step = ParseStep(parts[1]); step.ok()) unit.step = *step;
    if (unit.step != 0 && IdOf(unit) == id) return unit;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(id.substr(0, kMostId)), "\" is no unit of memory"));
}

absl::StatusOr<UnitList> UnitsOf(const google::protobuf::RepeatedPtrField<v1::Device>& devices,
                                 uint64_t step) {
  UnitList list{.step = step};
  for (const v1::Device& device : devices) {
    if (!IsGpu(device)) continue;
    const uint64_t count =
        std::min<uint64_t>(device.capacity_bytes() / step, std::numeric_limits<uint32_t>::max());
    const std::string& uuid = device.device_uuid();
    const size_t longest = IdOf({uuid, step, static_cast<uint32_t>(count)}).size();
    if (!IsName(uuid, "-") || longest > kMostId) {
      return absl::InvalidArgumentError("the UUID of a device is no part of an id");
    }
    const GpuUnits units = {.count = static_cast<uint32_t>(count)};
    if (!list.gpus.emplace(uuid, units).second) {
      return absl::InvalidArgumentError("two devices have the same UUID");
    }
  }
  if (const size_t bytes = BytesOf(list); bytes > kMostUnitList) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the list of units has ", bytes, " bytes, and the kubelet reads at most ",
                     kMostUnitList, ": a step of ", NameOfStep(step), " is too small"));
  }
  return list;
}

UnitList WithLost(UnitList now, const UnitList& earlier, const std::set<std::string>& held) {
  size_t bytes = BytesOf(now);
  for (const bool with_pods : {true, false}) {
    for (const auto& [uuid, units] : earlier.gpus) {
      if (held.contains(uuid) != with_pods || now.gpus.contains(uuid)) continue;
      const size_t more = BytesOf({now.step, {{uuid, units}}});
      // Without units there is nothing to remember.
      if (more == 0 || bytes + more > kMostUnitList) continue;
      now.gpus[uuid] = {.count = units.count, .healthy = false};
      bytes += more;
    }
  }
  return now;
}

UnitList Unhealthy(UnitList list) {
  for (auto& [uuid, units] : list.gpus) units.healthy = false;
  return list;
}

size_t BytesOf(const UnitList& list) {
  size_t bytes = 0;
  for (const auto& [uuid, units] : list.gpus) {
    // Ids with a number of more digits are longer.
    uint64_t begin = 0;
    for (uint64_t end = 10'000; begin < units.count; end *= 10) {
      const uint64_t last = std::min<uint64_t>(end, units.count);
      const size_t id = IdOf({uuid, list.step, static_cast<uint32_t>(last - 1)}).size();
      bytes += (last - begin) * (id + kAroundId);
      begin = last;
    }
  }
  return bytes;
}

}  // namespace gpumem::kubernetes
