// SPDX-License-Identifier: Apache-2.0
#include "client/mapping/mapper.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mapping/kind.h"
#include "client/mapping/placement.h"
#include "client/mapping/visible_devices.h"
#include "client/session/convert.h"

namespace gpumem::internal {
namespace {

absl::StatusOr<Backend> BackendOf(const v1::Welcome& welcome, const std::string& device_uuid) {
  for (const v1::Device& device : welcome.devices()) {
    if (device.device_uuid() != device_uuid) continue;
    if (device.backend() == v1::BACKEND_CUDA) return Backend::kCuda;
    if (device.backend() == v1::BACKEND_HOST) return Backend::kHost;
  }
  return absl::InternalError(
      absl::StrCat("the daemon granted memory of device ", device_uuid,
                   ", which was not in its device list when this process connected"));
}

absl::StatusOr<ExportData> ExportDataOf(const v1::Lease& lease) {
  ExportData data;
  if (lease.export_data().size() != data.size()) {
    return absl::InternalError(absl::StrCat("the daemon sent ", lease.export_data().size(),
                                            " bytes as the handle of a segment, not ", data.size(),
                                            "; this is a defect of gpumem"));
  }
  std::copy(lease.export_data().begin(), lease.export_data().end(), data.begin());
  return data;
}

// Returns OK if this process sees the memory's device, so that the device can use the memory.
absl::Status CheckOwnDevice(const std::string& device_uuid) {
  absl::Status status = CheckVisible(device_uuid);
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError(absl::StrCat(
      status.message(), "; or name in map_devices the device of this process that uses it"));
}

// Converts a mapping's error to a request's error: the caller's request was valid.
absl::Status RequestError(const std::string& device_uuid, const absl::Status& status) {
  const std::string what =
      absl::StrCat("cannot map the segment of ", device_uuid, ": ", status.message());
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:  // no usable driver; the daemon itself runs
      return absl::UnimplementedError(what);
    case absl::StatusCode::kInvalidArgument:
      return absl::InternalError(what);
    default:
      return absl::Status(status.code(), what);
  }
}

// Asks over the grant's connection alone: if that has ended, the session must not be resumed here,
// since a statement waits for this mapping (LeaseBook::EarlyMapping). Returns no devices then.
v1::ListDevicesResponse ListDevices(const Grant& grant) {
  v1::ListDevicesResponse listed;
  const grpc::Status status =
      grant.connection().Call(&v1::Broker::Stub::ListDevices, v1::ListDevicesRequest(), &listed,
                              absl::Now() + absl::Seconds(1));
  return status.ok() ? listed : v1::ListDevicesResponse();
}

// For memory of a device that this process does not see: the driver does not report missing peer
// access, but the daemon knows. Returns UNIMPLEMENTED if it is missing, else `error`.
absl::Status ExplainByPeers(const Grant& grant, const std::string& home,
                            const std::vector<std::string>& users, const absl::Status& error) {
  if (users == std::vector<std::string>{home} || CheckVisible(home).ok()) return error;
  const v1::ListDevicesResponse listed = ListDevices(grant);
  for (const v1::Device& device : listed.devices()) {
    // The user chose these devices; all are the daemon's.
    if (std::find(users.begin(), users.end(), device.device_uuid()) == users.end()) continue;
    for (const v1::PeerAccess& peer : device.peers()) {
      if (peer.device_uuid() == home && !peer.access()) {
        return absl::UnimplementedError(absl::StrCat(
            "the device ", device.device_uuid(), " has no peer access to memory of ", home,
            "; acquire the memory on the device that uses it, or copy it there"));
      }
    }
  }
  return error;
}

// Returns the daemon process with the device's CUDA context; 0 if the daemon does not say.
int32_t ContextPid(const Grant& grant, const std::string& device_uuid) {
  const v1::ListDevicesResponse listed = ListDevices(grant);
  for (const v1::Device& device : listed.devices()) {
    if (device.device_uuid() == device_uuid) return device.context_pid();
  }
  return 0;
}

// Of memory that the process's driver made.
class NoMapping : public Mapping {
 public:
  explicit NoMapping(uint64_t size) : Mapping(nullptr, size) {}
};

// Leases of one kind on one device.
class Group {
 public:
  Group(const Grant& grant, Session& session, MapOptions options)
      : grant_(grant), session_(session), options_(std::move(options)) {}

  // Maps leases by their positions in the grant.
  absl::Status Map(absl::Span<const size_t> positions, std::vector<MappedLease>* mapped) {
    const MappedLease& first = (*mapped)[positions.front()];
    if (TraitsOf(first.kind).charge_only) {
      for (const size_t i : positions) {
        (*mapped)[i].mapping = std::make_unique<NoMapping>((*mapped)[i].lease.size_bytes());
      }
      return absl::OkStatus();
    }
    if (first.backend == Backend::kCuda && options_.device_uuids.empty()) {
      const absl::StatusOr<std::string> user = DefaultUser(first);
      if (!user.ok()) return user.status();
      options_.device_uuids = {*user};
    }
    absl::Status status = MapOrOpen(positions, mapped);
    if (!status.ok() && first.backend == Backend::kCuda) {
      status = ExplainByPeers(grant_, first.lease.device_uuid(), options_.device_uuids, status);
    }
    // The devices exist, so the memory does not: its owner died after the daemon had granted it.
    if (absl::IsNotFound(status)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the segment is lost (", status.message(), "); acquire another"));
    }
    return status;
  }

 private:
  // Returns the GPU that uses memory for which the caller names none: the memory's own; of host
  // memory, the first that this process sees.
  absl::StatusOr<std::string> DefaultUser(const MappedLease& lease) const {
    if (TraitsOf(lease.kind).host_memory) {
      absl::StatusOr<std::vector<std::string>> visible =
          VisibleMakers(session_.welcome(), Kind::kDefault);
      if (!visible.ok()) return visible.status();
      return visible->front();
    }
    const std::string& own = lease.lease.device_uuid();
    if (absl::Status status = CheckOwnDevice(own); !status.ok()) return status;
    return own;
  }

  absl::Status MapOrOpen(absl::Span<const size_t> positions, std::vector<MappedLease>* mapped) {
    const MappedLease& first = (*mapped)[positions.front()];
    switch (TraitsOf(first.kind).sharing) {
      case Sharing::kNone:
      case Sharing::kUnshared:
        break;
      case Sharing::kDescriptor:
        return MapRange(positions, mapped);
      case Sharing::kPool:
      case Sharing::kIpcHandle:
        for (const size_t i : positions) {
          if (absl::Status status = OpenOne(&(*mapped)[i]); !status.ok()) return status;
        }
        return absl::OkStatus();
    }
    return absl::UnimplementedError(
        absl::StrCat("this library cannot map segments of kind ", KindName(first.kind)));
  }

  absl::Status MapRange(absl::Span<const size_t> positions, std::vector<MappedLease>* mapped) {
    std::vector<MapRequest> requests;
    for (const size_t i : positions) {
      requests.push_back({.fd = grant_.fds()[i].get(), .bytes = (*mapped)[i].lease.size_bytes()});
    }
    const MappedLease& first = (*mapped)[positions.front()];
    absl::StatusOr<Mappings> mappings =
        TraitsOf(first.kind).registered   ? MapPinned(requests, options_)
        : first.backend == Backend::kCuda ? MapCuda(requests, options_)
                                          : MapHost(requests, options_);
    if (!mappings.ok()) return mappings.status();
    for (size_t i = 0; i < positions.size(); ++i) {
      (*mapped)[positions[i]].mapping = std::move((*mappings)[i]);
    }
    return absl::OkStatus();
  }

  absl::Status OpenOne(MappedLease* mapped) {
    absl::StatusOr<ExportData> data = ExportDataOf(mapped->lease);
    if (!data.ok()) return data.status();
    const uint64_t bytes = mapped->lease.size_bytes();
    const std::string& device = mapped->lease.device_uuid();
    const bool pooled = TraitsOf(mapped->kind).pooled;
    if (pooled) {
      absl::StatusOr<std::shared_ptr<const Pool>> pool = grant_.connection().pools().Get(
          mapped->lease.pool_id(), device, mapped->backend, session_.runtime_dir(),
          [&] { return ContextPid(grant_, device); });
      if (!pool.ok()) return pool.status();
      mapped->pool = *std::move(pool);
    }
    absl::StatusOr<std::unique_ptr<Mapping>> mapping =
        pooled ? mapped->pool->imported->Open(*data, bytes, options_)
        : mapped->backend == Backend::kCuda
            ? OpenCudaIpc(device, *data, bytes, options_)
            : OpenHostIpc(session_.runtime_dir(), *data, bytes, options_);
    if (!mapping.ok()) return mapping.status();
    mapped->mapping = *std::move(mapping);
    return absl::OkStatus();
  }

  const Grant& grant_;
  Session& session_;
  MapOptions options_;
};

}  // namespace

absl::StatusOr<std::vector<MappedLease>> MapGrant(const Grant& grant, Session& session,
                                                  const MapOptions& options) {
  std::vector<MappedLease> mapped(grant.leases().size());
  std::map<std::pair<std::string, Kind>, std::vector<size_t>> groups;  // positions in the grant
  for (size_t i = 0; i < mapped.size(); ++i) {
    const v1::Lease& lease = grant.leases()[i];
    absl::StatusOr<Kind> kind = FromProto(lease.kind());
    if (!kind.ok()) return kind.status();
    absl::StatusOr<Backend> backend = BackendOf(session.welcome(), lease.device_uuid());
    if (!backend.ok()) return backend.status();
    if (absl::Status status = CheckPlacement(*kind, options); !status.ok()) return status;
    mapped[i].lease = lease;
    mapped[i].kind = *kind;
    mapped[i].backend = MappingBackend(session.welcome(), *kind, *backend);
    groups[{lease.device_uuid(), *kind}].push_back(i);
  }
  if (groups.size() > 1 && options.address != nullptr) {
    return absl::InvalidArgumentError(
        "segments of several devices or kinds cannot share one address range: open them in "
        "separate calls, each with a separate address");
  }
  for (const auto& [key, positions] : groups) {
    if (absl::Status status = Group(grant, session, options).Map(positions, &mapped);
        !status.ok()) {
      return RequestError(key.first, status);
    }
  }
  return mapped;
}

}  // namespace gpumem::internal
