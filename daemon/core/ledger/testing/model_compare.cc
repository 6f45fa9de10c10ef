// Compares the model's tenants, sessions and segments with those that the ledger shows.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/ledger/testing/model.h"

namespace gpumemd {
namespace {

// Collects every difference, for one message.
class Differences {
 public:
  template <typename T>
  void Check(absl::string_view what, const T& got, const T& expected) {
    if (got == expected) return;
    absl::StrAppend(&text_, text_.empty() ? "" : "; ", what, " is ", Show(got), ", expected ",
                    Show(expected));
  }
  absl::Status Of(absl::string_view what) const {
    return text_.empty() ? absl::OkStatus() : absl::InternalError(absl::StrCat(what, ": ", text_));
  }

 private:
  static std::string Show(const std::string& value) { return value; }
  static std::string Show(absl::Duration value) { return absl::FormatDuration(value); }
  static std::string Show(SegmentState value) { return Show(static_cast<uint64_t>(value)); }
  static std::string Show(Kind value) { return Show(static_cast<uint64_t>(value)); }
  static std::string Show(const Quota&) { return "another quota"; }
  static std::string Show(const std::vector<SessionId>& value) {
    return absl::StrCat(
        "[",
        absl::StrJoin(value, " ",
                      [](std::string* out, SessionId id) { absl::StrAppend(out, ToInt(id)); }),
        "]");
  }
  static std::string Show(uint64_t value) { return absl::StrCat(value); }

  std::string text_;
};

}  // namespace

absl::Status LedgerModel::Compare(const Ledger& ledger, absl::Time now) const {
  if (absl::Status tenants = CompareTenants(ledger); !tenants.ok()) return tenants;
  Differences counts;
  counts.Check<uint64_t>("session_count", ledger.state().sessions.size(), sessions_.size());
  counts.Check<uint64_t>("segment_count", ledger.state().segments.size(), segments_.size());
  counts.Check<uint64_t>("tenant_count", ledger.state().tenants.size(), tenants_.size());
  for (size_t device = 0; device < devices_.size(); ++device) {
    counts.Check<uint64_t>(devices_[device].uuid, ledger.state().charged(device),
                           Of("", device, Which::kAll).bytes);
  }
  if (absl::Status same = counts.Of("in all"); !same.ok()) return same;
  if (ledger.NextOverdue() != NextOverdue()) return Wrong("the next deadline is wrong");
  return CompareFiltered(ledger, "", "", now);
}

absl::Status LedgerModel::CompareTenants(const Ledger& ledger) const {
  const std::vector<TenantView> views = ledger.look().ListTenants();
  if (views.size() != tenants_.size()) {
    return Wrong("the ledger lists ", views.size(), " tenants, expected ", tenants_.size());
  }
  // By tenant and device: bytes in each state, including tenants under it; and the revocable bytes
  // of those held.
  std::map<std::pair<std::string, size_t>, std::array<uint64_t, kSegmentStates>> bytes;
  std::map<std::pair<std::string, size_t>, uint64_t> revocable;
  std::map<std::string, uint64_t> segments;
  for (const auto& [id, segment] : segments_) {
    const auto state = static_cast<size_t>(StateOf(id));
    for (const std::string& each : PathOf(segment.tenant)) {
      ++segments[each];
      bytes[{each, segment.device}][state] += segment.bytes;
      if (Held(id) && segment.revocable) revocable[{each, segment.device}] += segment.bytes;
    }
  }
  auto view = views.begin();
  for (const auto& [name, tenant] : tenants_) {
    Differences differences;
    differences.Check<std::string>("name", view->name, name);
    differences.Check<uint64_t>("configured", view->configured, tenant.configured);
    differences.Check("quota", view->quota, tenant.quota);
    differences.Check<uint64_t>("denials", view->denials, tenant.denials);
    const std::vector<std::string> path = PathOf(name);
    differences.Check("above", absl::StrJoin(view->above, " "),
                      absl::StrJoin(path.begin() + 1, path.end(), " "));
    uint64_t sessions = 0, calls = 0, in_all = 0, publications = 0;
    for (const auto& [id, session] : sessions_) {
      sessions += IsUnder(session.tenant, name) ? 1 : 0;
      calls += session.tenant == name ? session.calls : 0;
    }
    std::vector<uint64_t> waited_for(devices_.size()), waiting_there(devices_.size());
    for (const auto& [id, waiter] : waiters_) {
      if (!waiter.asked_to || !IsUnder(waiter.request.tenant, name)) continue;
      ++waiting_there[waiter.request.device];
      waited_for[waiter.request.device] += waiter.request.in_all();
    }
    for (size_t d = 0; d < devices_.size(); ++d) {
      const DeviceUsageView& usage = view->devices.at(d);
      const auto& by_state = bytes[{name, d}];
      const auto in = [&](SegmentState state) { return by_state[static_cast<size_t>(state)]; };
      uint64_t charged = 0;
      for (uint64_t state : by_state) charged += state;
      differences.Check("device", usage.device_uuid, devices_[d].uuid);
      differences.Check("leased", usage.leased, in(SegmentState::kLeased));
      differences.Check("retained", usage.retained, in(SegmentState::kRetained));
      differences.Check("lingering", usage.lingering, in(SegmentState::kLingering));
      differences.Check("charged", usage.charged, charged);
      differences.Check("limit", usage.limit, LimitOn(name, d));
      differences.Check("peak", usage.peak, tenant.peaks[d]);
      const uint64_t held =
          in(SegmentState::kLeased) + in(SegmentState::kPending) + in(SegmentState::kLingering);
      const uint64_t guarantee = GuaranteeOn(name, d);
      differences.Check("guarantee", usage.guarantee, guarantee);
      differences.Check("borrowed", usage.borrowed, held > guarantee ? held - guarantee : 0);
      differences.Check("revocable", usage.revocable, revocable[{name, d}]);
      differences.Check("unbrokered", usage.unbrokered, Unbrokered(name, d));
      differences.Check("waited for", usage.waited_for, waited_for[d]);
      differences.Check<uint64_t>("waiting there", usage.waiting, waiting_there[d]);
      if (!Pinned(d)) in_all += charged;
    }
    differences.Check("charged in all", view->charged, in_all);
    differences.Check<uint64_t>("segments", view->segments, segments[name]);
    differences.Check<uint64_t>("sessions", view->sessions, sessions);
    differences.Check<uint64_t>("calls", view->in_flight, calls);
    for (const Publication& publication : publications_) {
      publications += IsUnder(publication.tenant, name) ? 1 : 0;
    }
    differences.Check<uint64_t>("waiting", view->waiting, WaitingOf(name));
    differences.Check<uint64_t>("publications", view->publications, publications);
    if (absl::Status same = differences.Of(absl::StrCat("tenant ", name)); !same.ok()) return same;
    ++view;
  }
  return absl::OkStatus();
}

absl::Status LedgerModel::CompareFiltered(const Ledger& ledger, const std::string& tenant,
                                          const std::string& device, absl::Time now) const {
  const bool tenant_known = tenant.empty() || tenants_.contains(tenant);
  const bool device_known = device.empty() || DeviceIndex(device) < devices_.size();
  const auto sessions = ledger.look().ListSessions(tenant);
  if (sessions.ok() != tenant_known) return Wrong("tenant \"", tenant, "\" listed wrongly");
  const auto segments = ledger.look().ListSegments(tenant, device);
  if (segments.ok() != (tenant_known && device_known)) return Wrong("segments listed wrongly");
  if (!tenant_known && (!absl::IsNotFound(sessions.status()) ||
                        !absl::IsNotFound(ledger.look().GetTenant(tenant).status()) ||
                        !absl::IsNotFound(ledger.look().GetQuota(tenant).status()))) {
    return Wrong("tenant \"", tenant, "\" should not be found");
  }
  if (!segments.ok()) {
    const bool not_found = absl::IsNotFound(segments.status()) &&
                           absl::IsNotFound(ledger.ListWaiting(tenant, device).status());
    return not_found ? absl::OkStatus() : Wrong("tenant or device should not be found");
  }

  absl::Status waiters = CompareWaiters(ledger, tenant, device, now);
  if (!waiters.ok()) return waiters;
  absl::Status publications = ComparePublications(ledger, tenant, now);
  if (!publications.ok()) return publications;

  auto session_view = sessions->begin();
  for (const auto& [id, session] : sessions_) {
    if (!tenant.empty() && session.tenant != tenant) continue;
    if (session_view == sessions->end() || session_view->id != id) {
      return Wrong("session ", ToInt(id), " is not listed");
    }
    std::set<SegmentId> leased;
    uint64_t leases = 0, bytes = 0;
    for (const auto& [lease_id, lease] : leases_) {
      if (lease.session != id) continue;
      ++leases;
      if (leased.insert(lease.segment).second) bytes += segments_.at(lease.segment).bytes;
    }
    Differences differences;
    differences.Check("tenant", session_view->tenant, session.tenant);
    differences.Check("client", session_view->details.client_name, session.client);
    differences.Check<uint64_t>("live", session_view->live, session.live);
    differences.Check<uint64_t>("here", session_view->presence == session.presence, true);
    differences.Check<uint64_t>("leases", session_view->leases, leases);
    uint64_t unbrokered = 0;
    for (const UnbrokeredBytes& use : unbrokered_) unbrokered += use.session == id ? use.bytes : 0;
    differences.Check("unbrokered", session_view->unbrokered, unbrokered);
    differences.Check("leased bytes", session_view->leased_bytes, bytes);
    differences.Check("age", session_view->age, now - session.opened);
    const absl::StatusOr<SessionId> found = ledger.FindByToken(session.token);
    differences.Check<uint64_t>("found by token", found.ok() && *found == id, session.live);
    differences.Check("tenant of", ledger.look().TenantOf(id).value_or("?"), session.tenant);
    std::vector<LeaseId> lost;
    for (const auto& [lease_id, lease] : leases_) {
      if (lease.session == id && segments_.at(lease.segment).lost) lost.push_back(lease_id);
    }
    differences.Check<uint64_t>("told its lost leases", ledger.look().LostLeases(id) == lost, true);
    Inspector::Revoked revoked;
    for (const auto& [lease_id, lease] : leases_) {
      if (lease.session != id || !segments_.at(lease.segment).revoking) continue;
      revoked.leases.push_back(lease_id);
      revoked.until = std::min(revoked.until, segments_.at(lease.segment).until);
    }
    const Inspector::Revoked told = ledger.look().RevokedLeases(id);
    differences.Check<uint64_t>("told what is taken back",
                                told.leases == revoked.leases && told.until == revoked.until, true);
    if (absl::Status same = differences.Of(absl::StrCat("session ", ToInt(id))); !same.ok()) {
      return same;
    }
    ++session_view;
  }
  if (session_view != sessions->end()) return Wrong("too many sessions are listed");

  auto view = segments->begin();
  for (const auto& [id, segment] : segments_) {
    if (!tenant.empty() && segment.tenant != tenant) continue;
    if (!device.empty() && devices_[segment.device].uuid != device) continue;
    if (view == segments->end() || view->id != id) {
      return Wrong("segment ", ToInt(id), " is not listed");
    }
    std::vector<SessionId> holders;
    for (const Mapping& mapping : mappings_) {
      if (mapping.segment == id) holders.push_back(mapping.session);
    }
    if (holders.empty()) {
      const std::set<SessionId> importers = Importers(id);
      holders.assign(importers.begin(), importers.end());
    }
    std::sort(holders.begin(), holders.end());
    holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
    uint64_t leases = 0;
    for (const auto& [lease_id, lease] : leases_) leases += lease.segment == id ? 1 : 0;
    Differences differences;
    differences.Check("tenant", view->tenant, segment.tenant);
    differences.Check("device", view->device_uuid, devices_[segment.device].uuid);
    differences.Check("kind", view->kind, segment.kind);
    differences.Check("bytes", view->bytes, segment.bytes);
    differences.Check("state", view->state, StateOf(id));
    differences.Check("sessions", view->sessions, holders);
    differences.Check<uint64_t>("leases", view->leases, leases);
    const auto published_in = std::count_if(
        publications_.begin(), publications_.end(), [id = id](const Publication& each) {
          return std::count(each.segments.begin(), each.segments.end(), id) > 0;
        });
    differences.Check<uint64_t>("publications", view->publications,
                                static_cast<uint64_t>(published_in));
    differences.Check<uint64_t>("lost", view->lost, segment.lost);
    differences.Check<uint64_t>("revocable", view->revocable, segment.revocable);
    differences.Check("age", view->age, now - segment.created);
    if (absl::Status same = differences.Of(absl::StrCat("segment ", ToInt(id))); !same.ok()) {
      return same;
    }
    ++view;
  }
  if (view != segments->end()) return Wrong("too many segments are listed");
  return absl::OkStatus();
}

}  // namespace gpumemd
