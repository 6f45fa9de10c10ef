// SPDX-License-Identifier: Apache-2.0
#include "client/session/convert.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/denial.h"
#include "common/kind.h"
#include "common/kind_proto.h"

namespace gpumem {
namespace internal {
namespace {

Denial::Cause FromProto(v1::Denial::Cause cause) {
  switch (cause) {
    case v1::Denial::CAUSE_DEVICE_LIMIT:
      return Denial::Cause::kDeviceLimit;
    case v1::Denial::CAUSE_TOTAL_LIMIT:
      return Denial::Cause::kTotalLimit;
    case v1::Denial::CAUSE_CAPACITY:
      return Denial::Cause::kCapacity;
    case v1::Denial::CAUSE_DRIVER:
      return Denial::Cause::kDriver;
    case v1::Denial::CAUSE_MAX_SEGMENTS:
      return Denial::Cause::kMaxSegments;
    case v1::Denial::CAUSE_MAX_SESSIONS:
      return Denial::Cause::kMaxSessions;
    case v1::Denial::CAUSE_MAX_IN_FLIGHT:
      return Denial::Cause::kMaxInFlight;
    case v1::Denial::CAUSE_DAEMON_LIMIT:
      return Denial::Cause::kDaemonLimit;
    case v1::Denial::CAUSE_MAX_WAITING:
      return Denial::Cause::kMaxWaiting;
    case v1::Denial::CAUSE_GUARANTEES:
      return Denial::Cause::kGuarantees;
    case v1::Denial::CAUSE_QUEUE:
      return Denial::Cause::kQueue;
    case v1::Denial::CAUSE_UNBROKERED:
      return Denial::Cause::kUnbrokered;
    case v1::Denial::CAUSE_MAX_PUBLICATIONS:
      return Denial::Cause::kMaxPublications;
    default:
      return Denial::Cause::kUnknown;
  }
}

// Returns the entry of that device, and creates it if there is none.
Quota::Device& OfDevice(Quota& quota, const std::string& uuid) {
  const auto found = std::find_if(quota.devices.begin(), quota.devices.end(),
                                  [&](const auto& device) { return device.device_uuid == uuid; });
  if (found != quota.devices.end()) return *found;
  quota.devices.push_back({.device_uuid = uuid, .limit_bytes = {}, .guarantee_bytes = {}});
  return quota.devices.back();
}

}  // namespace

uint64_t ToWaitMs(absl::Duration wait) {
  return static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))));
}

v1::Kind ToProto(Kind kind) {
  return gpumem::ToProto(static_cast<SegmentKind>(kind));  // kDefault: KIND_UNSPECIFIED
}

v1::TicketScope ToProto(TicketScope scope) {
  return scope == TicketScope::kAny ? v1::TICKET_SCOPE_ANY : v1::TICKET_SCOPE_TENANT;
}

absl::StatusOr<Kind> FromProto(v1::Kind kind) {
  if (std::optional<SegmentKind> known = gpumem::FromProto(kind)) {
    return static_cast<Kind>(*known);
  }
  return absl::UnimplementedError(absl::StrCat("this library cannot map segments of kind ", kind,
                                               "; use the daemon's release of it"));
}

DeviceInfo FromProto(const v1::Device& device) {
  DeviceInfo info;
  info.uuid = device.device_uuid();
  info.name = device.name();
  info.backend = device.backend() == v1::BACKEND_CUDA ? Backend::kCuda : Backend::kHost;
  info.pci_bus_id = device.pci_bus_id();
  info.capacity_bytes = device.capacity_bytes();
  info.charged_bytes = device.charged_bytes();
  info.granularity_bytes = device.granularity_bytes();
  info.pool_granularity_bytes = device.pool_granularity_bytes();
  info.driver_free_bytes = device.driver_free_bytes();
  for (int number : device.kinds()) {
    absl::StatusOr<Kind> kind = FromProto(static_cast<v1::Kind>(number));
    if (kind.ok()) info.kinds.push_back(*kind);
  }
  for (const v1::PeerAccess& peer : device.peers()) {
    info.peers.push_back({.uuid = peer.device_uuid(),
                          .access = peer.access(),
                          .native_atomics = peer.native_atomics(),
                          .performance_rank = peer.performance_rank()});
  }
  return info;
}

Usage FromProto(const v1::Usage& usage) {
  Usage result;
  result.tenant = usage.tenant();
  result.charged_bytes = usage.charged_bytes();
  result.segments = usage.segments();
  result.sessions = usage.sessions();
  result.waiting = usage.waiting();
  result.publications = usage.publications();
  result.preload =
      usage.preload() == v1::PRELOAD_MODE_BROKER ? PreloadMode::kBroker : PreloadMode::kAccount;
  for (const v1::DeviceUsage& device : usage.devices()) {
    result.devices.push_back({.device_uuid = device.device_uuid(),
                              .leased_bytes = device.leased_bytes(),
                              .retained_bytes = device.retained_bytes(),
                              .lingering_bytes = device.lingering_bytes(),
                              .charged_bytes = device.charged_bytes(),
                              .limit_bytes = device.limit_bytes(),
                              .peak_bytes = device.peak_bytes(),
                              .guarantee_bytes = device.guarantee_bytes(),
                              .borrowed_bytes = device.borrowed_bytes(),
                              .waiting_bytes = device.waiting_bytes(),
                              .waiting = device.waiting(),
                              .revocable_bytes = device.revocable_bytes()});
    if (device.has_obtainable_bytes()) {
      result.devices.back().obtainable_bytes = device.obtainable_bytes();
    }
    result.devices.back().byte_seconds = device.byte_seconds();
  }
  return result;
}

Quota FromProto(const v1::Quota& quota) {
  Quota result;
  if (quota.has_limit_bytes()) result.limit_bytes = quota.limit_bytes();
  if (quota.has_total_limit_bytes()) result.total_limit_bytes = quota.total_limit_bytes();
  if (quota.has_pinned_limit_bytes()) result.pinned_limit_bytes = quota.pinned_limit_bytes();
  if (quota.has_guarantee_bytes()) result.guarantee_bytes = quota.guarantee_bytes();
  if (quota.has_max_retained_bytes()) result.max_retained_bytes = quota.max_retained_bytes();
  if (quota.has_max_segments()) result.max_segments = quota.max_segments();
  if (quota.has_max_sessions()) result.max_sessions = quota.max_sessions();
  if (quota.has_max_in_flight()) result.max_in_flight = quota.max_in_flight();
  if (quota.has_max_waiting()) result.max_waiting = quota.max_waiting();
  if (quota.has_max_publications()) result.max_publications = quota.max_publications();
  result.priority = quota.priority();
  result.revocable = quota.revocable();
  result.parent = quota.parent();
  for (const v1::DeviceLimit& device : quota.devices()) {
    OfDevice(result, device.device_uuid()).limit_bytes = device.limit_bytes();
  }
  for (const v1::DeviceGuarantee& device : quota.guarantees()) {
    OfDevice(result, device.device_uuid()).guarantee_bytes = device.guarantee_bytes();
  }
  return result;
}

Denial FromProto(const v1::Denial& denial) {
  Denial result = {.cause = FromProto(denial.cause()),
                   .tenant = denial.tenant(),
                   .device_uuid = denial.device_uuid(),
                   .asked = denial.asked(),
                   .used = denial.used(),
                   .limit = denial.limit(),
                   .help = denial.help(),
                   .limited_tenant = denial.limited_tenant(),
                   .holders = {}};
  for (const v1::Denial::Holder& holder : denial.holders()) {
    result.holders.push_back({.tenant = holder.tenant(), .used = holder.used()});
  }
  return result;
}

}  // namespace internal

absl::string_view KindName(Kind kind) {
  return kind == Kind::kDefault ? "default" : TraitsOf(static_cast<SegmentKind>(kind)).name;
}

std::optional<Denial> GetDenial(const absl::Status& status) {
  std::optional<v1::Denial> denial = DenialOf(status);
  if (!denial.has_value()) return std::nullopt;
  return internal::FromProto(*denial);
}

}  // namespace gpumem
