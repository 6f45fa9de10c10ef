#include "client/mapper.h"

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/convert.h"

namespace gpumem::internal {
namespace {

absl::StatusOr<Backend> BackendOf(const v1::Welcome& welcome, const std::string& device_uuid) {
  for (const v1::Device& device : welcome.devices()) {
    if (device.device_uuid() != device_uuid) continue;
    if (device.backend() == v1::BACKEND_CUDA) return Backend::kCuda;
    if (device.backend() == v1::BACKEND_HOST) return Backend::kHost;
  }
  return absl::InternalError(absl::StrCat("the daemon granted memory of device ", device_uuid,
                                          ", which it did not name when this process connected"));
}

// A mapping's error as one of a request: what the caller asked for was right.
absl::Status RequestError(const absl::Status& status) {
  const std::string what = absl::StrCat("cannot map the segment: ", status.message());
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:  // no usable driver; the daemon itself is there
      return absl::UnimplementedError(what);
    case absl::StatusCode::kInvalidArgument:
      return absl::InternalError(what);
    default:
      return absl::Status(status.code(), what);
  }
}

}  // namespace

absl::StatusOr<std::vector<MappedLease>> MapGrant(const Grant& grant, const v1::Welcome& welcome,
                                                  bool read_only) {
  std::vector<MappedLease> mapped(grant.leases().size());
  std::map<std::string, std::vector<size_t>> by_device;  // positions in the grant
  for (size_t i = 0; i < mapped.size(); ++i) {
    const v1::Lease& lease = grant.leases()[i];
    absl::StatusOr<Kind> kind = FromProto(lease.kind());
    if (!kind.ok()) return kind.status();
    absl::StatusOr<Backend> backend = BackendOf(welcome, lease.device_uuid());
    if (!backend.ok()) return backend.status();
    mapped[i] = {.lease = lease, .kind = *kind, .backend = *backend, .mapping = nullptr};
    by_device[lease.device_uuid()].push_back(i);
  }
  for (const auto& [device_uuid, positions] : by_device) {
    std::vector<MapRequest> requests;
    for (size_t i : positions) {
      requests.push_back({.fd = grant.fds()[i].get(), .bytes = mapped[i].lease.size_bytes()});
    }
    absl::StatusOr<std::vector<std::unique_ptr<Mapping>>> mappings =
        mapped[positions.front()].backend == Backend::kCuda
            ? MapCuda(device_uuid, requests, read_only)
            : MapHost(requests, read_only);
    if (!mappings.ok()) return RequestError(mappings.status());
    for (size_t i = 0; i < positions.size(); ++i) {
      mapped[positions[i]].mapping = std::move((*mappings)[i]);
    }
  }
  return mapped;
}

}  // namespace gpumem::internal
