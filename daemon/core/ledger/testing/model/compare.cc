// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/compare.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/claims.h"
#include "daemon/core/ledger/testing/model/devices.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/publications.h"
#include "daemon/core/ledger/testing/model/queue.h"
#include "daemon/core/ledger/testing/model/revocation.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {
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

absl::Status CompareTenants(const LedgerModel& model, const Ledger& ledger) {
  const std::vector<TenantView> views = ledger.look().ListTenants();
  if (views.size() != model.tenants.size()) {
    const auto name = [](std::string* out, const TenantView& view) { out->append(view.name); };
    return Wrong("the ledger lists tenants ", absl::StrJoin(views, " ", name), ", expected ",
                 absl::StrJoin(TenantNames(model), " "));
  }
  // By tenant and device: bytes in each state, including tenants under it; and the revocable bytes
  // of those held.
  std::map<std::pair<std::string, size_t>, std::array<uint64_t, kSegmentStates>> bytes;
  std::map<std::pair<std::string, size_t>, uint64_t> revocable;
  std::map<std::string, uint64_t> segments;
  for (const auto& [id, segment] : model.segments) {
    const auto state = static_cast<size_t>(StateOf(model, id));
    for (const std::string& each : PathOf(model, segment.tenant)) {
      ++segments[each];
      bytes[{each, segment.device}][state] += segment.bytes;
      if (Held(model, id) && segment.revocable) revocable[{each, segment.device}] += segment.bytes;
    }
  }
  auto view = views.begin();
  for (const auto& [name, tenant] : model.tenants) {
    Differences differences;
    differences.Check<std::string>("name", view->name, name);
    differences.Check<uint64_t>("configured", view->configured, tenant.configured);
    differences.Check("quota", view->quota, tenant.quota);
    differences.Check<uint64_t>("made", view->made.has_value(), tenant.made.has_value());
    if (view->made && tenant.made) {
      differences.Check("owner", view->made->owner, tenant.made->owner);
      differences.Check<uint64_t>("ending", view->made->ending, tenant.made->ending);
    }
    differences.Check<uint64_t>("denials", view->denials, tenant.denials);
    const std::vector<std::string> path = PathOf(model, name);
    differences.Check("above", absl::StrJoin(view->above, " "),
                      absl::StrJoin(path.begin() + 1, path.end(), " "));
    uint64_t sessions = 0, calls = 0, in_all = 0, publications = 0;
    for (const auto& [id, session] : model.sessions) {
      sessions += IsUnder(model, session.tenant, name) ? 1 : 0;
      calls += BooksOf(model, session.tenant) == name ? session.calls : 0;
    }
    std::vector<uint64_t> waited_for(model.devices.size()), waiting_there(model.devices.size());
    for (const auto& [id, waiter] : model.waiters) {
      if (!waiter.asked_to || !IsUnder(model, waiter.request.tenant, name)) continue;
      ++waiting_there[waiter.request.device];
      waited_for[waiter.request.device] += waiter.request.in_all();
    }
    for (size_t d = 0; d < model.devices.size(); ++d) {
      const DeviceUsageView& usage = view->devices.at(d);
      const auto& by_state = bytes[{name, d}];
      const auto in = [&](SegmentState state) { return by_state[static_cast<size_t>(state)]; };
      uint64_t charged = 0;
      for (uint64_t state : by_state) charged += state;
      differences.Check("device", usage.device_uuid, model.devices[d].uuid);
      differences.Check("leased", usage.leased, in(SegmentState::kLeased));
      differences.Check("retained", usage.retained, in(SegmentState::kRetained));
      differences.Check("lingering", usage.lingering, in(SegmentState::kLingering));
      differences.Check("charged", usage.charged, charged);
      differences.Check("limit", usage.limit, LimitOn(model, name, d));
      differences.Check("peak", usage.peak, tenant.peaks[d]);
      differences.Check("byte-seconds", usage.byte_seconds,
                        ByteSeconds(tenant.metered.at(d).byte_ns));
      const uint64_t held =
          in(SegmentState::kLeased) + in(SegmentState::kPending) + in(SegmentState::kLingering);
      const uint64_t guarantee = GuaranteeOn(model, name, d);
      differences.Check("guarantee", usage.guarantee, guarantee);
      differences.Check("borrowed", usage.borrowed, held > guarantee ? held - guarantee : 0);
      differences.Check("revocable", usage.revocable, revocable[{name, d}]);
      differences.Check("unbrokered", usage.unbrokered, Unbrokered(model, name, d));
      differences.Check("obtainable", usage.obtainable, Obtainable(model, name, d));
      differences.Check("waited for", usage.waited_for, waited_for[d]);
      differences.Check<uint64_t>("waiting there", usage.waiting, waiting_there[d]);
      if (!Pinned(model, d)) in_all += charged;
    }
    differences.Check("charged in all", view->charged, in_all);
    differences.Check<uint64_t>("segments", view->segments, segments[name]);
    differences.Check<uint64_t>("sessions", view->sessions, sessions);
    differences.Check<uint64_t>("calls", view->in_flight, calls);
    for (const Publication& publication : model.publications) {
      publications += IsUnder(model, publication.tenant, name) ? 1 : 0;
    }
    differences.Check<uint64_t>("waiting", view->waiting, WaitingOf(model, name));
    differences.Check<uint64_t>("publications", view->publications, publications);
    if (absl::Status same = differences.Of(absl::StrCat("tenant ", name)); !same.ok()) return same;
    ++view;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CompareFiltered(const LedgerModel& model, const Ledger& ledger,
                             const std::string& tenant, const std::string& device, absl::Time now) {
  const bool tenant_known = tenant.empty() || model.tenants.contains(tenant);
  const bool device_known = device.empty() || DeviceIndex(model, device) < model.devices.size();
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
    const bool not_found =
        absl::IsNotFound(segments.status()) &&
        absl::IsNotFound(ledger.admission().ListWaiting(tenant, device).status());
    return not_found ? absl::OkStatus() : Wrong("tenant or device should not be found");
  }

  absl::Status waiters = CompareWaiters(model, ledger, tenant, device, now);
  if (!waiters.ok()) return waiters;
  absl::Status publications = ComparePublications(model, ledger, tenant, now);
  if (!publications.ok()) return publications;

  auto session_view = sessions->begin();
  for (const auto& [id, session] : model.sessions) {
    if (!tenant.empty() && session.tenant != tenant) continue;
    if (session_view == sessions->end() || session_view->id != id) {
      return Wrong("session ", ToInt(id), " is not listed");
    }
    std::set<SegmentId> leased;
    uint64_t leases = 0, bytes = 0;
    for (const auto& [lease_id, lease] : model.leases) {
      if (lease.session != id) continue;
      ++leases;
      if (leased.insert(lease.segment).second) bytes += model.segments.at(lease.segment).bytes;
    }
    Differences differences;
    differences.Check("tenant", session_view->tenant, session.tenant);
    differences.Check("client", session_view->details.client_name, session.client);
    differences.Check<uint64_t>("live", session_view->live, session.live);
    differences.Check<uint64_t>("here", session_view->presence == session.presence, true);
    differences.Check<uint64_t>("leases", session_view->leases, leases);
    uint64_t unbrokered = 0;
    for (const UnbrokeredBytes& use : model.unbrokered) {
      unbrokered += use.session == id ? use.bytes : 0;
    }
    differences.Check("unbrokered", session_view->unbrokered, unbrokered);
    differences.Check("leased bytes", session_view->leased_bytes, bytes);
    differences.Check("age", session_view->age, now - session.opened);
    const absl::StatusOr<SessionId> found = ledger.state().FindByToken(session.token);
    differences.Check<uint64_t>("found by token", found.ok() && *found == id, session.live);
    differences.Check("tenant of", ledger.look().TenantOf(id).value_or("?"), session.tenant);
    std::vector<LeaseId> lost;
    for (const auto& [lease_id, lease] : model.leases) {
      if (lease.session == id && model.segments.at(lease.segment).lost) lost.push_back(lease_id);
    }
    differences.Check<uint64_t>("told its lost leases", ledger.look().LostLeases(id) == lost, true);
    Inspector::Revoked revoked;
    for (const auto& [lease_id, lease] : model.leases) {
      if (lease.session != id || !model.segments.at(lease.segment).revoking) continue;
      revoked.leases.push_back(lease_id);
      revoked.until = std::min(revoked.until, model.segments.at(lease.segment).until);
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
  for (const auto& [id, segment] : model.segments) {
    if (!tenant.empty() && segment.tenant != tenant) continue;
    if (!device.empty() && model.devices[segment.device].uuid != device) continue;
    if (view == segments->end() || view->id != id) {
      return Wrong("segment ", ToInt(id), " is not listed");
    }
    std::vector<SessionId> holders;
    for (const Mapping& mapping : model.mappings) {
      if (mapping.segment == id) holders.push_back(mapping.session);
    }
    if (holders.empty()) {
      const std::set<SessionId> importers = Importers(model, id);
      holders.assign(importers.begin(), importers.end());
    }
    std::sort(holders.begin(), holders.end());
    holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
    uint64_t leases = 0;
    for (const auto& [lease_id, lease] : model.leases) leases += lease.segment == id ? 1 : 0;
    Differences differences;
    differences.Check("tenant", view->tenant, segment.tenant);
    differences.Check("device", view->device_uuid, model.devices[segment.device].uuid);
    differences.Check("kind", view->kind, segment.kind);
    differences.Check("bytes", view->bytes, segment.bytes);
    differences.Check("state", view->state, StateOf(model, id));
    differences.Check("sessions", view->sessions, holders);
    differences.Check<uint64_t>("leases", view->leases, leases);
    const auto published_in = std::count_if(
        model.publications.begin(), model.publications.end(), [id = id](const Publication& each) {
          return std::count(each.segments.begin(), each.segments.end(), id) > 0;
        });
    differences.Check<uint64_t>("publications", view->publications,
                                static_cast<uint64_t>(published_in));
    differences.Check<uint64_t>("lost", view->lost, segment.lost);
    differences.Check("home", view->home_uuid, segment.home);
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

absl::Status Compare(const LedgerModel& model, const Ledger& ledger, absl::Time now) {
  if (absl::Status tenants = CompareTenants(model, ledger); !tenants.ok()) return tenants;
  Differences counts;
  counts.Check<uint64_t>("session_count", ledger.state().sessions.size(), model.sessions.size());
  counts.Check<uint64_t>("segment_count", ledger.state().segments.size(), model.segments.size());
  counts.Check<uint64_t>("tenant_count", ledger.state().tenants.size(), model.tenants.size());
  for (size_t device = 0; device < model.devices.size(); ++device) {
    counts.Check<uint64_t>(model.devices[device].uuid, ledger.state().charged(device),
                           SumOf(model, "", device, Which::kAll).bytes);
  }
  if (absl::Status same = counts.Of("in all"); !same.ok()) return same;
  if (absl::Status same = CompareClaims(model, ledger); !same.ok()) return same;
  if (ledger.revocations().NextOverdue() != NextOverdue(model))
    return Wrong("the next deadline is wrong");
  return CompareFiltered(model, ledger, "", "", now);
}

}  // namespace gpumemd::model
