// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/convert.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/denial_proto.h"
#include "daemon/transport/peer/peer_socket.h"

namespace gpumemd {
namespace v1 = gpumem::v1;

v1::Backend ToProto(Backend backend) {
  return backend == Backend::kCuda ? v1::BACKEND_CUDA : v1::BACKEND_HOST;
}

v1::Device ToProto(const BrokerViews::DeviceView& device) {
  v1::Device proto;
  proto.set_device_uuid(device.info.uuid);
  proto.set_name(device.info.name);
  proto.set_backend(ToProto(device.info.backend));
  proto.set_capacity_bytes(device.info.capacity_bytes);
  proto.set_charged_bytes(device.charged);
  proto.set_granularity_bytes(device.info.granularity_bytes);
  for (Kind kind : device.info.kinds) proto.add_kinds(ToProto(kind));
  proto.set_driver_free_bytes(device.driver_free);
  proto.set_pci_bus_id(device.info.pci_bus_id);
  proto.set_index(device.index);
  for (const PeerAccess& peer : device.info.peers) {
    v1::PeerAccess& access = *proto.add_peers();
    access.set_device_uuid(peer.uuid);
    access.set_access(peer.access);
    access.set_native_atomics(peer.native_atomics);
    access.set_performance_rank(peer.performance_rank);
  }
  proto.set_context_pid(device.context_pid);
  proto.set_pool_granularity_bytes(device.info.pool_granularity_bytes);
  return proto;
}

v1::Lease ToProto(const LeaseView& lease) {
  v1::Lease proto;
  proto.set_lease_id(ToInt(lease.lease));
  proto.set_segment_id(ToInt(lease.segment));
  proto.set_device_uuid(lease.device_uuid);
  proto.set_kind(ToProto(lease.kind));
  proto.set_size_bytes(lease.bytes);
  proto.set_tenant(lease.tenant);
  proto.set_reused(lease.reused);
  if (lease.export_data) {
    proto.set_export_data(lease.export_data->data(), lease.export_data->size());
  }
  proto.set_pool_id(lease.pool_id);
  proto.set_revocable(lease.revocable);
  proto.set_suspended(lease.suspended);
  proto.set_scratch(lease.scratch);
  return proto;
}

v1::MadeTenant ToProto(const MadeView& made) {
  v1::MadeTenant proto;
  proto.set_owner(made.owner);
  if (made.uid) proto.set_uid(*made.uid);
  proto.set_session_id(ToInt(made.session));
  proto.set_parent(made.parent);
  proto.set_created_ms(absl::ToUnixMillis(made.created));
  proto.set_ending(made.ending);
  proto.set_lasting(made.lasting);
  if (made.user) proto.set_user(*made.user);
  return proto;
}

v1::GetTenantUsageResponse ToProto(const BrokerTenants::Uses& uses) {
  v1::GetTenantUsageResponse proto;
  if (uses.present) {
    v1::TenantUsage& usage = *proto.add_usages();
    usage.set_tenant(uses.present->name);
    if (const std::optional<MadeView>& made = uses.present->made) {
      usage.set_owner(made->owner);
      if (made->user) usage.set_user(*made->user);
      usage.set_created_ms(absl::ToUnixMillis(made->created));
      usage.set_ending(made->ending);
    }
    for (const DeviceUsageView& on : uses.present->devices) {
      v1::TenantDeviceUsage& device = *usage.add_devices();
      device.set_device_uuid(on.device_uuid);
      device.set_charged_bytes(on.charged);
      device.set_limit_bytes(on.limit);
      device.set_guarantee_bytes(on.guarantee);
      device.set_peak_bytes(on.peak);
      device.set_byte_seconds(on.byte_seconds);
    }
  }
  for (const EndedTenantView& ended : uses.ended) {
    v1::TenantUsage& usage = *proto.add_usages();
    usage.set_tenant(ended.name);
    usage.set_owner(ended.owner);
    if (ended.user) usage.set_user(*ended.user);
    usage.set_created_ms(absl::ToUnixMillis(ended.created));
    usage.set_ended_ms(absl::ToUnixMillis(ended.ended));
    for (const EndedTenantView::OnDevice& on : ended.devices) {
      v1::TenantDeviceUsage& device = *usage.add_devices();
      device.set_device_uuid(on.device_uuid);
      device.set_limit_bytes(on.limit);
      device.set_guarantee_bytes(on.guarantee);
      device.set_peak_bytes(on.peak);
      device.set_byte_seconds(on.byte_seconds);
    }
  }
  return proto;
}

v1::EndTenantResponse ToProto(const BrokerTenants::Held& held) {
  v1::EndTenantResponse proto;
  proto.set_gone(held.gone);
  for (const auto& [uuid, bytes] : held.by_device) {
    v1::HeldBytes& device = *proto.add_devices();
    device.set_device_uuid(uuid);
    device.set_bytes(bytes);
  }
  for (const auto& [id, pid] : held.sessions) {
    v1::HeldBySession& session = *proto.add_sessions();
    session.set_session_id(ToInt(id));
    session.set_pid(pid);
  }
  proto.set_session_count(held.session_count);
  return proto;
}

v1::Usage ToProto(const TenantView& tenant) {
  v1::Usage proto;
  proto.set_tenant(tenant.name);
  for (const DeviceUsageView& device : tenant.devices) {
    v1::DeviceUsage& usage = *proto.add_devices();
    usage.set_device_uuid(device.device_uuid);
    usage.set_leased_bytes(device.leased);
    usage.set_retained_bytes(device.retained);
    usage.set_lingering_bytes(device.lingering);
    usage.set_charged_bytes(device.charged);
    usage.set_limit_bytes(device.limit);
    usage.set_peak_bytes(device.peak);
    usage.set_guarantee_bytes(device.guarantee);
    usage.set_borrowed_bytes(device.borrowed);
    usage.set_waiting_bytes(device.waited_for);
    usage.set_waiting(device.waiting);
    usage.set_revocable_bytes(device.revocable);
    usage.set_unbrokered_bytes(device.unbrokered);
    usage.set_obtainable_bytes(device.obtainable);
    usage.set_byte_seconds(device.byte_seconds);
  }
  proto.set_charged_bytes(tenant.charged);
  proto.set_segments(static_cast<uint32_t>(tenant.segments));
  proto.set_sessions(tenant.sessions);
  proto.set_in_flight(tenant.in_flight);
  proto.set_denials(tenant.denials);
  for (const auto& [cause, count] : tenant.denials_by_cause) {
    v1::DenialCount& denials = *proto.add_denials_by_cause();
    denials.set_cause(ToProto(cause));
    denials.set_count(count);
  }
  proto.set_waiting(tenant.waiting);
  proto.set_publications(tenant.publications);
  proto.set_demoted_bytes(tenant.demoted);
  proto.set_preload(ToProto(tenant.preload));
  return proto;
}

v1::SessionInfo ToProto(const SessionView& session) {
  v1::SessionInfo proto;
  const PeerIdentity& peer = session.details.peer;
  proto.set_session_id(ToInt(session.id));
  proto.set_tenant(session.tenant);
  proto.set_state(!session.live                         ? v1::SessionInfo::STATE_LINGERING
                  : session.presence == Presence::kAway ? v1::SessionInfo::STATE_AWAY
                                                        : v1::SessionInfo::STATE_LIVE);
  proto.set_pid(peer.pid);
  proto.set_uid(peer.uid);
  proto.set_gid(peer.gid);
  proto.set_client_name(session.details.client_name);
  proto.set_cgroup(Printable(peer.cgroup.Value(CgroupFact::kPath)));
  proto.set_rule(session.details.rule);
  proto.set_leases(session.leases);
  proto.set_leased_bytes(session.leased_bytes);
  proto.set_age_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(session.age)));
  proto.set_command(session.details.command);
  proto.set_unbrokered_bytes(session.unbrokered);
  proto.set_suspended_bytes(session.tier_bytes);
  proto.set_demoted_bytes(session.demoted_bytes);
  proto.set_serves_suspension(session.serves_suspension);
  proto.set_swappable(session.swappable);
  proto.set_suspension_asked(session.asked);
  proto.set_idle_ms(static_cast<uint64_t>(
      absl::ToInt64Milliseconds(std::max(session.idle, absl::ZeroDuration()))));
  return proto;
}

namespace {

v1::SegmentInfo::State ToProto(SegmentState state) {
  switch (state) {
    case SegmentState::kPending:
      return v1::SegmentInfo::STATE_PENDING;
    case SegmentState::kLeased:
      return v1::SegmentInfo::STATE_LEASED;
    case SegmentState::kRetained:
      return v1::SegmentInfo::STATE_RETAINED;
    case SegmentState::kLingering:
      return v1::SegmentInfo::STATE_LINGERING;
    case SegmentState::kReleasing:
      return v1::SegmentInfo::STATE_RELEASING;
  }
  return v1::SegmentInfo::STATE_UNSPECIFIED;
}

}  // namespace

v1::SegmentInfo ToProto(const SegmentView& segment) {
  v1::SegmentInfo proto;
  proto.set_segment_id(ToInt(segment.id));
  proto.set_tenant(segment.tenant);
  proto.set_device_uuid(segment.device_uuid);
  proto.set_kind(ToProto(segment.kind));
  proto.set_size_bytes(segment.bytes);
  proto.set_state(ToProto(segment.state));
  for (SessionId session : segment.sessions) proto.add_session_ids(ToInt(session));
  proto.set_leases(segment.leases);
  proto.set_age_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(segment.age)));
  proto.set_lost(segment.lost);
  proto.set_revocable(segment.revocable);
  proto.set_publications(segment.publications);
  proto.set_home_uuid(segment.home_uuid);
  proto.set_suspended(segment.suspended);
  proto.set_scratch(segment.scratch);
  proto.set_dropped_bytes(segment.dropped_bytes);
  return proto;
}

v1::ListHoldersResponse ToProto(const HoldersView& holders) {
  v1::ListHoldersResponse proto;
  for (const LeaseHolderView& lease : holders.leases) {
    v1::LeaseInfo& info = *proto.add_leases();
    info.set_lease_id(ToInt(lease.id));
    info.set_segment_id(ToInt(lease.segment));
    info.set_session_id(ToInt(lease.session));
    info.set_tenant(lease.tenant);
    info.set_attached(lease.attached);
    info.set_publication(lease.publication);
    info.set_version(lease.version);
    info.set_shared(lease.shared);
    info.set_shared_to_any(lease.shared_to_any);
    info.set_suspended(lease.suspended);
    info.set_demoted(lease.demoted);
    info.set_tag(lease.tag);
  }
  for (const PublicationHolderView& publication : holders.publications) {
    v1::PublishedSegments& segments = *proto.add_publications();
    segments.set_tenant(publication.tenant);
    segments.set_name(publication.name);
    segments.set_version(publication.version);
    for (SegmentId segment : publication.segments) segments.add_segment_ids(ToInt(segment));
  }
  return proto;
}

v1::WaitingInfo ToProto(const WaiterView& waiter) {
  v1::WaitingInfo proto;
  proto.set_session_id(ToInt(waiter.session));
  proto.set_tenant(waiter.tenant);
  proto.set_device_uuid(waiter.device_uuid);
  proto.set_kind(ToProto(waiter.kind));
  proto.set_bytes(waiter.bytes);
  proto.set_count(waiter.count);
  proto.set_revocable(waiter.revocable);
  proto.set_age_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(waiter.age)));
  proto.set_position(waiter.position);
  *proto.mutable_blocked_by() = ToProto(waiter.blocked_by);
  return proto;
}

v1::PublicationInfo ToProto(const PublicationView& publication, bool foreign) {
  const auto ms_of = [](absl::Duration duration) {
    return static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(duration)));
  };
  v1::PublicationInfo proto;
  proto.set_tenant(publication.tenant);
  proto.set_name(publication.name);
  proto.set_content_id(publication.content_id);
  proto.set_version(publication.version);
  proto.set_segments(publication.segments);
  proto.set_bytes(publication.bytes);
  proto.set_metadata_bytes(publication.metadata_bytes);
  proto.set_access(publication.to_any ? v1::PUBLICATION_ACCESS_ANY : v1::PUBLICATION_ACCESS_TENANT);
  proto.set_ephemeral(publication.ephemeral);
  proto.set_suspended_segments(publication.in_tier);
  proto.set_suspended_bytes(publication.tier_bytes);
  proto.set_attached_sessions(publication.attached);
  proto.set_age_ms(ms_of(publication.age));
  if (publication.expire_after != absl::InfiniteDuration()) {
    proto.set_expire_after_ms(ms_of(publication.expire_after));
  }
  if (publication.expires_in != absl::InfiniteDuration()) {
    proto.set_expires_in_ms(std::max<uint64_t>(1, ms_of(publication.expires_in)));
  }
  if (foreign) return proto;
  proto.set_publisher_session_id(ToInt(publication.publisher));
  proto.set_publisher_pid(publication.publisher_pid);
  proto.set_publisher_client_name(publication.publisher_name);
  proto.set_publisher_alive(publication.publisher_alive);
  return proto;
}

absl::Duration FromMilliseconds(uint64_t ms) {
  constexpr uint64_t kForEver = uint64_t{1} << 50;  // 35,000 years
  return ms < kForEver ? absl::Milliseconds(static_cast<int64_t>(ms)) : absl::InfiniteDuration();
}

absl::StatusOr<PublishSpec> FromProto(const v1::PublishRequest& request) {
  if (!v1::PublicationAccess_IsValid(request.access())) {
    return absl::InvalidArgumentError(absl::StrCat("there is no access ",
                                                   static_cast<int>(request.access()),
                                                   " to publications; use TENANT or ANY"));
  }
  PublishSpec spec{.name = request.name(),
                   .content_id = request.content_id(),
                   .to_any = request.access() == v1::PUBLICATION_ACCESS_ANY,
                   .ephemeral = request.ephemeral(),
                   .request = request.request_id()};
  for (uint64_t lease : request.lease_ids()) spec.leases.push_back(LeaseId{lease});
  if (request.expire_after_ms() > 0) {
    spec.expire_after = FromMilliseconds(request.expire_after_ms());
  }
  return spec;
}

v1::IpcEvent ToProto(const IpcEventView& event) {
  v1::IpcEvent proto;
  proto.set_event_id(ToInt(event.id));
  proto.set_device_uuid(event.device_uuid);
  proto.set_handle(event.handle.data(), event.handle.size());
  proto.set_session_id(ToInt(event.session));
  return proto;
}

v1::PoolInfo ToProto(const BrokerOperators::PoolView& pool) {
  v1::PoolInfo proto;
  const PoolStatus& status = pool.status;
  proto.set_tenant(status.tenant);
  proto.set_device_uuid(pool.device_uuid);
  proto.set_segments(status.segments);
  proto.set_max_bytes(status.max_bytes);
  proto.set_reserved_bytes(status.reserved_bytes);
  proto.set_reserved_peak_bytes(status.reserved_peak_bytes);
  proto.set_used_bytes(status.used_bytes);
  proto.set_used_peak_bytes(status.used_peak_bytes);
  proto.set_release_threshold_bytes(status.release_threshold_bytes);
  proto.set_reuse_follow_event_dependencies(status.reuse_follow_event_dependencies);
  proto.set_reuse_allow_opportunistic(status.reuse_allow_opportunistic);
  proto.set_reuse_allow_internal_dependencies(status.reuse_allow_internal_dependencies);
  return proto;
}

absl::StatusOr<PoolChange> FromProto(const v1::SetPoolRequest& request) {
  PoolChange change;
  if (request.has_release_threshold_bytes()) {
    change.release_threshold_bytes = request.release_threshold_bytes();
  }
  if (request.has_reuse_follow_event_dependencies()) {
    change.reuse_follow_event_dependencies = request.reuse_follow_event_dependencies();
  }
  if (request.has_reuse_allow_opportunistic()) {
    change.reuse_allow_opportunistic = request.reuse_allow_opportunistic();
  }
  if (request.has_reuse_allow_internal_dependencies()) {
    change.reuse_allow_internal_dependencies = request.reuse_allow_internal_dependencies();
  }
  change.reset_peaks = request.reset_peaks();
  if (change == PoolChange{}) {
    return absl::InvalidArgumentError("nothing to change: name at least one attribute");
  }
  return change;
}

}  // namespace gpumemd
