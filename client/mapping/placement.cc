// SPDX-License-Identifier: Apache-2.0
#include "client/mapping/placement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/mapping/device_name.h"
#include "client/mapping/kind.h"
#include "client/mapping/visible_devices.h"
#include "client/session/convert.h"
#include "common/kind.h"
#include "common/mapping/address.h"

namespace gpumem::internal {

bool IsGpu(const v1::Welcome& welcome, absl::string_view uuid) {
  return std::any_of(welcome.devices().begin(), welcome.devices().end(),
                     [&](const v1::Device& device) {
                       return device.device_uuid() == uuid && device.backend() == v1::BACKEND_CUDA;
                     });
}

bool HasGpus(const v1::Welcome& welcome) {
  return std::any_of(welcome.devices().begin(), welcome.devices().end(),
                     [](const v1::Device& device) { return device.backend() == v1::BACKEND_CUDA; });
}

Backend MappingBackend(const v1::Welcome& welcome, Kind kind, Backend device) {
  return kind == Kind::kHost && HasGpus(welcome) ? Backend::kCuda : device;
}

absl::StatusOr<std::vector<std::string>> VisibleMakers(const v1::Welcome& welcome, Kind kind) {
  absl::StatusOr<std::vector<std::string>> visible = VisibleDevices();
  if (!visible.ok()) return absl::UnimplementedError(visible.status().message());
  std::vector<std::string> all;
  std::vector<std::string> makers;
  for (const std::string& uuid : *visible) {
    for (const v1::Device& device : welcome.devices()) {
      if (device.device_uuid() != uuid) continue;
      all.push_back(uuid);
      const bool makes = kind == Kind::kDefault ||
                         std::find(device.kinds().begin(), device.kinds().end(), ToProto(kind)) !=
                             device.kinds().end();
      if (makes) makers.push_back(uuid);
    }
  }
  if (all.empty()) {
    return absl::NotFoundError(
        "this process sees none of the daemon's GPUs (CUDA_VISIBLE_DEVICES)");
  }
  return makers.empty() ? all : makers;
}

absl::StatusOr<std::string> DeviceUuid(const v1::Welcome& welcome, const DeviceName& name) {
  return ResolveDevice(
      name, absl::MakeSpan(welcome.devices().data(), static_cast<size_t>(welcome.devices_size())),
      VisibleDevices);
}

absl::StatusOr<MapOptions> Placement(const v1::Welcome& welcome,
                                     absl::Span<const DeviceName> map_devices, void* address,
                                     bool read_only) {
  MapOptions options{.read_only = read_only, .address = address};
  if (absl::Status status = CheckAddress(address); !status.ok()) return status;
  for (const DeviceName& name : map_devices) {
    absl::StatusOr<std::string> uuid = DeviceUuid(welcome, name);
    if (!uuid.ok()) return uuid.status();
    if (!IsGpu(welcome, *uuid)) {
      return absl::InvalidArgumentError(absl::StrCat("map_devices may name only GPUs, not ", *uuid,
                                                     ": leave map_devices empty for host memory"));
    }
    const absl::Status visible = CheckVisible(*uuid);
    if (absl::IsUnavailable(visible)) return absl::UnimplementedError(visible.message());
    if (!visible.ok()) return visible;
    std::vector<std::string>& uuids = options.device_uuids;
    if (std::find(uuids.begin(), uuids.end(), *uuid) == uuids.end()) {
      uuids.push_back(*std::move(uuid));
    }
  }
  return options;
}

absl::Status CheckPlacement(Kind kind, const MapOptions& options) {
  if (kind == Kind::kDefault) return absl::OkStatus();  // the daemon chooses it
  const KindTraits& traits = TraitsOf(kind);
  if (!traits.many_devices && options.device_uuids.size() > 1) {
    return absl::UnimplementedError(absl::StrCat(
        "CUDA opens a segment of kind ", traits.name,
        " for one device: name one device in map_devices and open the segment once for each "
        "device; or acquire it with kind vmm, which has one address for all devices"));
  }
  if (traits.contiguous) return absl::OkStatus();
  const bool placed = options.address != nullptr;
  if (!placed && !options.read_only) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("CUDA cannot map a segment of kind ", KindName(kind),
                   placed ? " at a requested address" : " read-only", "; kinds ",
                   ListKinds(", ", " and ", &KindTraits::contiguous), " can be"));
}

}  // namespace gpumem::internal
