// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/inspect/inspector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/admission/room.h"
#include "daemon/core/driver/overheads.h"

namespace gpumemd {
namespace {

template <typename Map>
auto KeysOf(const Map& map) {
  std::vector<typename Map::key_type> keys;
  keys.reserve(map.size());
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

template <typename T>
std::vector<T> Sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

LeaseView Inspector::Describe(const Operation::Item& item) const {
  const Segment& segment = *state_.segments.at(item.segment);
  return {.lease = item.lease,
          .segment = item.segment,
          .device_uuid = state_.devices[segment.device].uuid,
          .kind = segment.kind,
          .bytes = segment.charge.bytes(),
          .tenant = segment.tenant->name,
          .reused = item.reused,
          .scratch = segment.scratch};
}

TenantView Inspector::View(const Tenant& tenant) const {
  TenantView view{.name = tenant.name,
                  .configured = tenant.configured,
                  .quota = tenant.quota,
                  .charged = state_.TotalCharged(tenant),
                  .segments = state_.TotalSegments(tenant),
                  .sessions = tenant.tree_sessions,
                  .in_flight = tenant.in_flight,
                  .waiting = tenant.tree_waiting,
                  .publications = tenant.tree_publications,
                  .denials_by_cause = tenant.denials,
                  .demoted = tenant.demoted_bytes};
  if (tenant.made) {
    view.made = MadeView{.owner = tenant.made->owner,
                         .uid = tenant.made->uid,
                         .user = tenant.made->user,
                         .session = tenant.made->session,
                         .parent = tenant.parent == nullptr ? "" : tenant.parent->name,
                         .created = tenant.made->created,
                         .ending = tenant.made->ending,
                         .lasting = tenant.made->lasting};
  }
  for (const auto& [cause, count] : tenant.denials) view.denials += count;
  for (const Tenant* each = tenant.parent; each != nullptr; each = each->parent) {
    view.above.push_back(each->name);
  }
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    if (!each->quota.preload) continue;
    view.preload = *each->quota.preload;
    break;
  }
  const Room room(&state_);
  for (size_t i = 0; i < state_.devices.size(); ++i) {
    const Account& account = tenant.accounts[i];
    view.devices.push_back(
        {.device_uuid = state_.devices[i].uuid,
         .leased = account.bytes(SegmentState::kLeased),
         .retained = account.bytes(SegmentState::kRetained),
         .lingering = account.bytes(SegmentState::kLingering),
         .charged = account.charged(),
         .limit = state_.LimitOn(tenant, i),
         .peak = account.peak(),
         .byte_seconds = account.byte_seconds(),
         .guarantee = account.guarantee(),
         .borrowed = account.held() - std::min(account.held(), account.guarantee()),
         .revocable = account.revocable(),
         .unbrokered = state_.UnbrokeredOf(tenant, state_.devices[i].uuid),
         .obtainable = room.Obtainable(tenant, i)});
  }
  if (tenant.tree_waiting == 0) return view;
  for (const auto& [id, waiter] : state_.waiters) {
    if (!waiter.asked_to || !state_.IsUnder(*waiter.request.tenant, tenant)) continue;
    DeviceUsageView& device = view.devices[waiter.request.device];
    device.waited_for += waiter.request.bytes * waiter.request.count;
    ++device.waiting;
  }
  return view;
}

void Inspector::View(absl::Span<const SessionId> ids, absl::string_view tenant,
                     std::vector<SessionView>& views) const {
  for (SessionId id : ids) {
    auto it = state_.sessions.find(id);
    if (it == state_.sessions.end()) continue;
    const Session& session = *it->second;
    if (!tenant.empty() && session.tenant->name != tenant) continue;
    const std::optional<records::SuspensionRequest>& request = session.suspension_request;
    views.push_back({.id = id,
                     .tenant = session.tenant->name,
                     .live = session.live,
                     .presence = session.presence,
                     .details = session.details,
                     .leases = static_cast<uint32_t>(session.leases.size()),
                     .leased_bytes = session.leased_bytes,
                     .tier_bytes = session.tier_bytes,
                     .demoted_bytes = session.demoted_bytes,
                     .unbrokered = state_.UnbrokeredOf(id),
                     .age = state_.now() - session.opened,
                     .idle = state_.now() - std::max(session.active, session.opened),
                     .serves_suspension = session.live && session.suspension_watches > 0,
                     .swappable = session.IsSwappable(),
                     .asked = session.live && request.has_value() &&
                              request->action == records::SuspensionAction::kSuspend &&
                              state_.now() < request->until});
    AddDriverBytes(state_, session, views.back());
  }
}

void Inspector::AddSuspended(const Segment& segment, SegmentView& view) const {
  if (segment.kind == Kind::kTier || segment.demoted())
    view.home_uuid = state_.devices[segment.home].uuid;
  // Of a segment with more leases, some sessions may be left out: they take time.
  size_t left = kMaxLeasesMoved;
  for (LeaseId lease : segment.suspended) {
    if (left-- == 0) break;
    view.sessions.push_back(state_.leases.at(lease).session);
  }
  std::sort(view.sessions.begin(), view.sessions.end());
  view.sessions.erase(std::unique(view.sessions.begin(), view.sessions.end()), view.sessions.end());
}

void Inspector::View(absl::Span<const SegmentId> ids, absl::string_view tenant,
                     absl::string_view device, std::vector<SegmentView>& views) const {
  for (SegmentId id : ids) {
    auto it = state_.segments.find(id);
    if (it == state_.segments.end()) continue;
    const Segment& segment = *it->second;
    if (!tenant.empty() && segment.tenant->name != tenant) continue;
    if (!device.empty() && state_.devices[segment.device].uuid != device) continue;
    SegmentView view{.id = id,
                     .tenant = segment.tenant->name,
                     .device_uuid = state_.devices[segment.device].uuid,
                     .kind = segment.kind,
                     .bytes = segment.charge.bytes(),
                     .state = segment.charge.state(),
                     .leases = segment.leases,
                     .suspended = static_cast<uint32_t>(segment.suspended.size()),
                     .publications = segment.publications,
                     .lost = segment.lost,
                     .revocable = segment.charge.revocable(),
                     .scratch = segment.scratch,
                     .dropped_bytes = segment.dropped_bytes,
                     .age = state_.now() - segment.created};
    const auto& holders = segment.exposures.empty() && state_.HeldByPool(segment)
                              ? state_.PoolOf(segment).importers
                              : segment.exposures;
    for (const auto& [session, count] : holders) view.sessions.push_back(session);
    AddSuspended(segment, view);
    views.push_back(std::move(view));
  }
}

std::optional<LeaseId> Inspector::View(SessionId session_id, std::optional<SegmentId> only,
                                       LeaseId next, size_t count,
                                       std::vector<LeaseHolderView>& views) const {
  auto found = state_.sessions.find(session_id);
  if (found == state_.sessions.end()) return std::nullopt;
  const Session& session = *found->second;
  if (only && !session.leased.contains(*only)) return std::nullopt;
  auto it = session.leases.lower_bound(next);
  for (; it != session.leases.end() && count > 0; ++it, --count) {
    const Lease& lease = state_.leases.at(*it);
    if (only && lease.segment != *only) continue;
    LeaseHolderView view{.id = *it,
                         .segment = lease.segment,
                         .session = session_id,
                         .tenant = session.tenant->name,
                         .attached = lease.publication.has_value(),
                         .shared = lease.tickets[0].has_value(),
                         .shared_to_any = lease.tickets[1].has_value(),
                         .suspended = lease.suspended,
                         .demoted = state_.segments.at(lease.segment)->demoted(),
                         .tag = lease.tag};
    if (lease.publication) {
      auto through = state_.publications.find(*lease.publication);
      if (through != state_.publications.end()) {
        view.publication = absl::StrCat(through->second.tenant->name, "/", through->second.name);
        view.version = through->second.version;
      }
    }
    views.push_back(std::move(view));
  }
  return it == session.leases.end() ? std::nullopt : std::optional(*it);
}

PublicationView Inspector::View(PublicationId id, const Publication& publication) const {
  const absl::Time now = state_.now();
  auto publisher = state_.sessions.find(publication.publisher);
  return {.id = id,
          .tenant = publication.tenant->name,
          .name = publication.name,
          .content_id = publication.content_id,
          .version = publication.version,
          .segments = static_cast<uint32_t>(publication.segments.size()),
          .in_tier = publication.in_tier,
          .bytes = publication.bytes,
          .tier_bytes = publication.tier_bytes,
          .metadata_bytes = publication.metadata_bytes,
          .to_any = publication.to_any,
          .ephemeral = publication.ephemeral,
          .attached = static_cast<uint32_t>(publication.attached.size()),
          .age = now - publication.published,
          .expire_after = publication.expire_after,
          .expires_in = state_.ExpiryOf(publication) - now,
          .publisher = publication.publisher,
          .publisher_pid = publication.publisher_pid,
          .publisher_name = publication.publisher_name,
          .publisher_alive = publisher != state_.sessions.end() && publisher->second->live};
}

absl::StatusOr<TenantView> Inspector::GetTenant(absl::string_view name) const {
  const Tenant* tenant = state_.FindTenant(name);
  if (tenant == nullptr) return state_.NoSuchTenant(name);
  return View(*tenant);
}

absl::StatusOr<std::string> Inspector::TenantOf(SessionId id) const {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end())
    return absl::AbortedError("the session has ended; connect again");
  return it->second->tenant->name;
}

absl::StatusOr<Quota> Inspector::GetQuota(absl::string_view name) const {
  const Tenant* tenant = state_.FindTenant(name);
  if (tenant == nullptr) return state_.NoSuchTenant(name);
  return tenant->quota;
}

std::vector<TenantView> Inspector::ListTenants() const {
  std::vector<TenantView> views;
  for (const auto& [name, tenant] : state_.tenants) views.push_back(View(*tenant));
  return views;
}

size_t Inspector::LeaseCountOf(SessionId session) const {
  auto it = state_.sessions.find(session);
  return it == state_.sessions.end() ? 0 : it->second->leases.size();
}

std::vector<SessionId> Inspector::SessionIds() const { return KeysOf(state_.sessions); }

std::vector<SegmentId> Inspector::SegmentIds() const { return KeysOf(state_.segments); }

absl::Status Inspector::CheckListed(absl::string_view tenant, absl::string_view device) const {
  if (!tenant.empty() && state_.FindTenant(tenant) == nullptr) return state_.NoSuchTenant(tenant);
  return device.empty() ? absl::OkStatus() : state_.FindDevice(device).status();
}

absl::StatusOr<std::vector<SessionView>> Inspector::ListSessions(absl::string_view tenant) const {
  if (absl::Status known = CheckListed(tenant, ""); !known.ok()) return known;
  std::vector<SessionView> views;
  View(Sorted(SessionIds()), tenant, views);
  return views;
}

absl::StatusOr<std::vector<SegmentView>> Inspector::ListSegments(absl::string_view tenant,
                                                                 absl::string_view device) const {
  if (absl::Status known = CheckListed(tenant, device); !known.ok()) return known;
  std::vector<SegmentView> views;
  View(Sorted(SegmentIds()), tenant, device, views);
  return views;
}

std::vector<PublicationHolderView> Inspector::PublicationHolders(
    std::optional<SegmentId> only) const {
  std::vector<PublicationHolderView> holders;
  for (const auto& [name, id] : state_.by_name) {
    const Publication& publication = state_.publications.at(id);
    const std::vector<SegmentId>& segments = publication.segments;
    if (only && std::find(segments.begin(), segments.end(), *only) == segments.end()) continue;
    holders.push_back({.tenant = publication.tenant->name,
                       .name = publication.name,
                       .version = publication.version,
                       .segments = segments});
  }
  return holders;
}

HoldersView Inspector::ListHolders(std::optional<SegmentId> only) const {
  HoldersView holders{.publications = PublicationHolders(only)};
  for (SessionId session : SessionIds()) View(session, only, LeaseId{}, SIZE_MAX, holders.leases);
  std::sort(holders.leases.begin(), holders.leases.end(),
            [](const LeaseHolderView& a, const LeaseHolderView& b) { return a.id < b.id; });
  return holders;
}

absl::StatusOr<PublicationView> Inspector::GetPublication(PublicationId id) const {
  auto it = state_.publications.find(id);
  if (it == state_.publications.end()) return absl::NotFoundError("the publication has ended");
  return View(id, it->second);
}

absl::StatusOr<std::vector<PublicationView>> Inspector::ListPublications(
    absl::string_view tenant) const {
  if (!tenant.empty() && state_.FindTenant(tenant) == nullptr) return state_.NoSuchTenant(tenant);
  std::vector<PublicationView> views;
  for (const auto& [name, id] : state_.by_name) {
    if (tenant.empty() || name.first == tenant)
      views.push_back(View(id, state_.publications.at(id)));
  }
  return views;
}

absl::StatusOr<std::vector<PublicationView>> Inspector::ListAttachable(
    SessionId session, absl::string_view tenant) const {
  std::vector<PublicationView> views;
  absl::Status listed = ListAttachable(session, tenant, {}, SIZE_MAX, views).status();
  if (!listed.ok()) return listed;
  return views;
}

absl::StatusOr<std::optional<Inspector::PublicationName>> Inspector::ListAttachable(
    SessionId session_id, absl::string_view tenant, const PublicationName& next, size_t count,
    std::vector<PublicationView>& views) const {
  auto session = state_.sessions.find(session_id);
  if (session == state_.sessions.end()) {
    return absl::AbortedError("the session has ended; connect again");
  }
  auto it = state_.by_name.lower_bound(std::max(next, PublicationName(tenant, "")));
  for (; it != state_.by_name.end() && count > 0; ++it, --count) {
    if (!tenant.empty() && it->first.first != tenant) return std::nullopt;
    const Publication& publication = state_.publications.at(it->second);
    if (state_.MayAttach(publication, *session->second->tenant)) {
      views.push_back(View(it->second, publication));
    }
  }
  return it == state_.by_name.end() ? std::nullopt : std::optional(it->first);
}

Inspector::Revoked Inspector::RevokedLeases(SessionId id) const {
  Revoked revoked;
  RevokedLeases(id, LeaseId{}, SIZE_MAX, revoked);
  return revoked;
}

std::optional<LeaseId> Inspector::RevokedLeases(SessionId id, LeaseId next, size_t count,
                                                Revoked& revoked) const {
  auto session = state_.sessions.find(id);
  if (session == state_.sessions.end() || state_.revoking.empty()) return std::nullopt;
  auto it = session->second->leases.lower_bound(next);
  for (; it != session->second->leases.end() && count > 0; ++it, --count) {
    const Segment& segment = *state_.segments.at(state_.leases.at(*it).segment);
    if (!segment.charge.revoking()) continue;
    revoked.leases.push_back(*it);
    revoked.until = std::min(revoked.until, segment.due);
  }
  return it == session->second->leases.end() ? std::nullopt : std::optional(*it);
}

std::vector<LeaseId> Inspector::LostLeases(SessionId session) const {
  std::vector<LeaseId> lost;
  LostLeases(session, LeaseId{}, SIZE_MAX, lost);
  return lost;
}

std::optional<LeaseId> Inspector::LostLeases(SessionId id, LeaseId next, size_t count,
                                             std::vector<LeaseId>& lost) const {
  auto session = state_.sessions.find(id);
  if (session == state_.sessions.end()) return std::nullopt;
  auto it = session->second->leases.lower_bound(next);
  for (; it != session->second->leases.end() && count > 0; ++it, --count) {
    if (state_.segments.at(state_.leases.at(*it).segment)->lost) lost.push_back(*it);
  }
  return it == session->second->leases.end() ? std::nullopt : std::optional(*it);
}

AuditRecord Inspector::AuditOf(AuditEvent event, SessionId id) const {
  const Session& session = *state_.sessions.at(id);
  return {.event = event,
          .tenant = session.tenant->name,
          .session = id,
          .pid = session.details.peer.pid,
          .uid = session.details.peer.uid,
          .client = session.details.client_name,
          .command = session.details.command};
}

}  // namespace gpumemd
