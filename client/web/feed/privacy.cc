// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/privacy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace gpumem::web {
namespace {

// The daemon allows 8 levels. A loop is impossible there, but must not hang this program.
constexpr int kMostLevels = 64;

const std::string& ParentOf(const v1::TenantInfo& tenant) {
  return tenant.quota().parent().empty() ? tenant.made().parent() : tenant.quota().parent();
}

uint64_t Less(uint64_t from, uint64_t what) { return from - std::min(from, what); }

v1::DeviceUsage& OnDevice(v1::Usage& usage, const std::string& device) {
  for (v1::DeviceUsage& each : *usage.mutable_devices()) {
    if (each.device_uuid() == device) return each;
  }
  v1::DeviceUsage& added = *usage.add_devices();
  added.set_device_uuid(device);
  return added;
}

// Changes each sum of `usage` by that of `other`. A usage has sums of the tenants under it, too, in
// these fields alone: what else it has is no sum, or of other moments.
template <typename Change>
void ChangeSums(v1::Usage& usage, const v1::Usage& other, const Change& change) {
  for (const v1::DeviceUsage& theirs : other.devices()) {
    v1::DeviceUsage& ours = OnDevice(usage, theirs.device_uuid());
    ours.set_leased_bytes(change(ours.leased_bytes(), theirs.leased_bytes()));
    ours.set_retained_bytes(change(ours.retained_bytes(), theirs.retained_bytes()));
    ours.set_lingering_bytes(change(ours.lingering_bytes(), theirs.lingering_bytes()));
    ours.set_charged_bytes(change(ours.charged_bytes(), theirs.charged_bytes()));
  }
  const auto count = [&](uint32_t a, uint32_t b) { return static_cast<uint32_t>(change(a, b)); };
  usage.set_charged_bytes(change(usage.charged_bytes(), other.charged_bytes()));
  usage.set_segments(count(usage.segments(), other.segments()));
  usage.set_sessions(count(usage.sessions(), other.sessions()));
  usage.set_publications(count(usage.publications(), other.publications()));
}

constexpr auto kPlus = [](uint64_t a, uint64_t b) { return a + b; };

// True if the publication "TENANT/NAME" is of a visible tenant.
bool IsOfVisible(absl::string_view publication, const VisibleTenants& visible) {
  const size_t slash = publication.rfind('/');
  return slash != absl::string_view::npos && visible.contains(publication.substr(0, slash));
}

}  // namespace

absl::string_view WordOf(Sees sees) {
  switch (sees) {
    case Sees::kOperator:
    case Sees::kAll:
      return "all";
    case Sees::kOwn:
      return "own";
    case Sees::kNone:
      break;
  }
  return "none";
}

Privacy::Privacy(const cli::Snapshot& snapshot) : snapshot_(snapshot) {
  for (const v1::TenantInfo& tenant : snapshot.tenants.tenants()) {
    if (!ParentOf(tenant).empty()) parents_[tenant.usage().tenant()] = ParentOf(tenant);
  }
  for (const v1::TenantInfo& tenant : snapshot.tenants.tenants()) {
    ChangeSums(own_[tenant.usage().tenant()], tenant.usage(), kPlus);
  }
  for (const v1::TenantInfo& tenant : snapshot.tenants.tenants()) {
    const auto above = own_.find(ParentOf(tenant));
    if (above != own_.end()) ChangeSums(above->second, tenant.usage(), Less);
  }
  for (const v1::SessionInfo& session : snapshot.sessions.sessions()) {
    sessions_[session.session_id()] = session.tenant();
  }
}

const std::string& Privacy::TopOf(const std::string& tenant) const {
  const std::string* top = &tenant;
  for (int i = 0; i < kMostLevels; ++i) {
    const auto parent = parents_.find(*top);
    if (parent == parents_.end()) break;
    top = &parent->second;
  }
  return *top;
}

VisibleTenants Privacy::Visible(Sees sees, uid_t uid) const {
  VisibleTenants visible;
  visible.uid_ = uid;
  for (const v1::SessionInfo& session : snapshot_.sessions.sessions()) {
    if (session.uid() == uid) visible.tenants_.insert(session.tenant());
  }
  for (const v1::TenantInfo& tenant : snapshot_.tenants.tenants()) {
    const v1::MadeTenant& made = tenant.made();
    if ((made.has_uid() && made.uid() == uid) || (made.has_user() && made.user() == uid)) {
      visible.tenants_.insert(tenant.usage().tenant());
    }
  }
  if (visible.tenants_.empty()) return visible;
  if (sees == Sees::kNone) {
    FindHidden(&visible);
  } else {
    AddTeams(&visible);
  }
  for (const v1::TenantInfo& tenant : snapshot_.tenants.tenants()) {
    const std::string& name = tenant.usage().tenant();
    if (tenant.made().created_ms() > 0 && visible.contains(name)) {
      visible.since_ms_[name] = tenant.made().created_ms();
    }
  }
  return visible;
}

void Privacy::AddTeams(VisibleTenants* visible) const {
  absl::flat_hash_set<std::string> tops;
  for (const std::string& own : visible->tenants_) tops.insert(TopOf(own));
  for (const v1::TenantInfo& tenant : snapshot_.tenants.tenants()) {
    const std::string& name = tenant.usage().tenant();
    if (tops.contains(TopOf(name))) visible->tenants_.insert(name);
  }
}

void Privacy::FindHidden(VisibleTenants* visible) const {
  for (const v1::TenantInfo& tenant : snapshot_.tenants.tenants()) {
    if (visible->contains(tenant.usage().tenant())) continue;
    auto above = parents_.find(tenant.usage().tenant());
    for (int i = 0; i < kMostLevels && above != parents_.end(); ++i) {
      if (visible->contains(above->second)) visible->with_hidden_.insert(above->second);
      above = parents_.find(above->second);
    }
  }
}

cli::Snapshot Privacy::Filtered(const VisibleTenants& visible) const {
  cli::Snapshot result;
  result.status = Status();
  result.tenants = Tenants(visible);
  for (const v1::SessionInfo& session : snapshot_.sessions.sessions()) {
    if (visible.contains(session.tenant())) *result.sessions.add_sessions() = session;
  }
  result.segments = Segments(visible);
  result.holders = Holders(visible, result.segments);
  for (const v1::PublicationInfo& each : snapshot_.publications.publications()) {
    if (visible.contains(each.tenant())) *result.publications.add_publications() = each;
  }
  result.waiting = Waiting(visible);
  return result;
}

v1::GetStatusResponse Privacy::Status() const {
  const v1::GetStatusResponse& all = snapshot_.status;
  // An allow-list: a field that is added to the message later is not told until it is added here.
  v1::GetStatusResponse status;
  status.set_version(all.version());
  status.set_backend(all.backend());
  status.set_uptime_ms(all.uptime_ms());
  status.set_draining(all.draining());
  status.set_runtime_dir(all.runtime_dir());
  status.set_keeps_memory(all.keeps_memory());
  status.set_generation(all.generation());
  if (all.has_cuda_toolkit()) status.set_cuda_toolkit(all.cuda_toolkit());
  *status.mutable_devices() = all.devices();
  return status;
}

v1::TenantInfo Privacy::Others(const VisibleTenants& visible) const {
  v1::Usage sums;
  for (const auto& [tenant, own] : own_) {
    if (!visible.contains(tenant)) ChangeSums(sums, own, kPlus);
  }
  v1::TenantInfo others;
  others.mutable_usage()->set_tenant(kOthers);
  for (const v1::Device& device : snapshot_.status.devices()) {
    const v1::DeviceUsage& sum = OnDevice(sums, device.device_uuid());
    if (sum.charged_bytes() > 0) *others.mutable_usage()->add_devices() = sum;
  }
  return others;
}

// Returns the usage of each visible tenant that has a hidden one under it: of itself, and of
// tenants below to which a way of visible ones leads. So the topmost tenants shown sum up to all.
absl::flat_hash_map<std::string, v1::Usage> Privacy::UsageWithoutHidden(
    const VisibleTenants& visible) const {
  absl::flat_hash_map<std::string, v1::Usage> result;
  if (visible.with_hidden_.empty()) return result;
  for (const auto& [tenant, own] : own_) {
    const std::string* at = &tenant;
    for (int i = 0; i < kMostLevels && visible.contains(*at); ++i) {
      if (visible.has_hidden(*at)) ChangeSums(result[*at], own, kPlus);
      const auto parent = parents_.find(*at);
      if (parent == parents_.end()) break;
      at = &parent->second;
    }
  }
  for (const v1::TenantInfo& tenant : snapshot_.tenants.tenants()) {
    const auto shown = result.find(tenant.usage().tenant());
    if (shown == result.end()) continue;
    // Settings of the tenant itself.
    shown->second.set_tenant(tenant.usage().tenant());
    shown->second.set_preload(tenant.usage().preload());
    for (const v1::DeviceUsage& each : tenant.usage().devices()) {
      v1::DeviceUsage& usage = OnDevice(shown->second, each.device_uuid());
      usage.set_limit_bytes(each.limit_bytes());
      usage.set_guarantee_bytes(each.guarantee_bytes());
    }
  }
  return result;
}

v1::ListTenantsResponse Privacy::Tenants(const VisibleTenants& visible) const {
  v1::ListTenantsResponse tenants;
  auto usage = UsageWithoutHidden(visible);
  for (const v1::TenantInfo& each : snapshot_.tenants.tenants()) {
    if (!visible.contains(each.usage().tenant())) continue;
    v1::TenantInfo& tenant = *tenants.add_tenants();
    tenant = each;
    const auto shown = usage.find(each.usage().tenant());
    if (shown != usage.end()) *tenant.mutable_usage() = std::move(shown->second);
    if (!visible.contains(tenant.quota().parent())) tenant.mutable_quota()->clear_parent();
    if (!tenant.has_made()) continue;
    v1::MadeTenant& made = *tenant.mutable_made();
    if (!visible.contains(made.parent())) made.clear_parent();
    const auto maker = sessions_.find(made.session_id());
    if (maker == sessions_.end() || !visible.contains(maker->second)) made.clear_session_id();
  }
  v1::TenantInfo others = Others(visible);
  if (others.usage().devices_size() > 0) *tenants.add_tenants() = std::move(others);
  return tenants;
}

v1::ListSegmentsResponse Privacy::Segments(const VisibleTenants& visible) const {
  v1::ListSegmentsResponse segments;
  for (const v1::SegmentInfo& each : snapshot_.segments.segments()) {
    if (!visible.contains(each.tenant())) continue;
    v1::SegmentInfo& segment = *segments.add_segments();
    segment = each;
    segment.clear_session_ids();
    for (const uint64_t session : each.session_ids()) {
      const auto holder = sessions_.find(session);
      if (holder != sessions_.end() && visible.contains(holder->second)) {
        segment.add_session_ids(session);
      }
    }
  }
  return segments;
}

v1::ListHoldersResponse Privacy::Holders(const VisibleTenants& visible,
                                         const v1::ListSegmentsResponse& segments) const {
  absl::flat_hash_set<uint64_t> seen;
  for (const v1::SegmentInfo& each : segments.segments()) seen.insert(each.segment_id());
  v1::ListHoldersResponse holders;
  for (const v1::LeaseInfo& each : snapshot_.holders.leases()) {
    const bool own = visible.contains(each.tenant());
    const bool of_own = seen.contains(each.segment_id());
    if (!own && !of_own) continue;
    v1::LeaseInfo& lease = *holders.add_leases();
    if (own) {
      lease = each;
    } else {
      lease.set_lease_id(each.lease_id());
      lease.set_tenant(kOthers);
      lease.set_attached(each.attached());
      lease.set_publication(each.publication());
      lease.set_version(each.version());
    }
    if (of_own) {
      lease.set_segment_id(each.segment_id());
    } else {
      lease.clear_segment_id();
    }
    if (!IsOfVisible(lease.publication(), visible)) {
      lease.clear_publication();
      lease.clear_version();
    }
  }
  for (const v1::PublishedSegments& each : snapshot_.holders.publications()) {
    if (!visible.contains(each.tenant())) continue;
    v1::PublishedSegments& published = *holders.add_publications();
    published = each;
    published.clear_segment_ids();
    for (const uint64_t segment : each.segment_ids()) {
      if (seen.contains(segment)) published.add_segment_ids(segment);
    }
  }
  return holders;
}

v1::ListWaitingResponse Privacy::Waiting(const VisibleTenants& visible) const {
  v1::ListWaitingResponse result;
  for (const v1::WaitingInfo& each : snapshot_.waiting.waiting()) {
    v1::WaitingInfo& waiting = *result.add_waiting();
    if (visible.contains(each.tenant())) {
      waiting = each;
      if (each.has_blocked_by()) {
        *waiting.mutable_blocked_by() = Denied(each.blocked_by(), visible);
      }
    } else {
      waiting.set_tenant(kOthers);
      waiting.set_device_uuid(each.device_uuid());
      waiting.set_position(each.position());
    }
  }
  return result;
}

v1::Denial Privacy::Denied(const v1::Denial& all, const VisibleTenants& visible) const {
  v1::Denial denial = all;
  bool names_others = false;
  const auto is_foreign = [&](const std::string& tenant) {
    return !tenant.empty() && !visible.contains(tenant);
  };
  if (is_foreign(denial.limited_tenant())) {
    // What a tenant above the viewer's holds and may hold.
    denial.clear_limited_tenant();
    denial.clear_used();
    denial.clear_limit();
    names_others = true;
  }
  if (visible.has_hidden(all.limited_tenant().empty() ? all.tenant() : all.limited_tenant())) {
    denial.clear_used();
    names_others = true;
  }
  if (is_foreign(denial.tenant())) denial.clear_tenant();
  denial.clear_holders();
  for (const v1::Denial::Holder& holder : all.holders()) {
    const bool shown = !is_foreign(holder.tenant()) && !visible.has_hidden(holder.tenant());
    if (shown) *denial.add_holders() = holder;
  }
  // The sentence names the tenant whose limit is in the way, and amounts of it.
  for (const v1::TenantInfo& tenant : snapshot_.tenants.tenants()) {
    if (names_others) break;
    const std::string& name = tenant.usage().tenant();
    names_others = is_foreign(name) && absl::StrContains(denial.help(), name);
  }
  if (names_others) denial.clear_help();
  return denial;
}

cli::Snapshot WithoutOperatorsFacts(cli::Snapshot snapshot) {
  snapshot.status.clear_config_file();
  snapshot.status.clear_notices();
  for (v1::ForeignProcess& each : *snapshot.status.mutable_foreign_processes()) {
    each.clear_command();
  }
  return snapshot;
}

}  // namespace gpumem::web
