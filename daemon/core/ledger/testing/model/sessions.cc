// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/sessions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/attachments.h"
#include "daemon/core/ledger/testing/model/claims.h"
#include "daemon/core/ledger/testing/model/leases.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/publications.h"
#include "daemon/core/ledger/testing/model/queue.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {
namespace {

// True if nothing of the session is left except that its process has pools open.
bool OnlyImports(const LedgerModel& model, SessionId id) {
  const Session& session = model.sessions.at(id);
  return !session.live && !session.ending && session.calls == 0 &&
         std::none_of(model.mappings.begin(), model.mappings.end(),
                      [&](const Mapping& mapping) { return mapping.session == id; }) &&
         std::none_of(model.operations.begin(), model.operations.end(),
                      [&](const auto& entry) { return entry.second.session == id; }) &&
         std::none_of(model.waiters.begin(), model.waiters.end(),
                      [&](const auto& entry) { return entry.second.session == id; }) &&
         std::none_of(model.attach_waiters.begin(), model.attach_waiters.end(),
                      [&](const auto& entry) { return entry.second.session == id; });
}

std::optional<SessionId> OtherOfItsProcess(const LedgerModel& model, SessionId id) {
  const Session& session = model.sessions.at(id);
  for (const auto& [other_id, other] : model.sessions) {
    if (other_id != id && other.tenant == session.tenant && other.peer.pid == session.peer.pid &&
        other.peer.start_time == session.peer.start_time && other.peer.start_time != 0 &&
        !other.process_gone) {
      return other_id;
    }
  }
  return std::nullopt;
}

void EndSession(LedgerModel& model, SessionId id) {
  Session& session = model.sessions.at(id);
  if (!session.live) return;
  session.live = false;
  session.ending = true;
  std::vector<WaiterId> waiting;
  for (const auto& [waiter_id, waiter] : model.waiters) {
    if (waiter.session == id) waiting.push_back(waiter_id);
  }
  for (WaiterId waiter : waiting) {
    LeaveQueue(model, waiter);
    model.refused.push_back(waiter);
  }
  EndAttachWaitsOf(model, id);
  ReleaseClaimsUnless(model, id, {});
  EndMadeOf(model, id);
}

// True if nothing is left of a session that has ended.
bool HasEnded(const LedgerModel& model, SessionId id) {
  const auto its = [id](const auto& each) { return each.session == id; };
  const bool tenant_lives =
      std::any_of(model.sessions.begin(), model.sessions.end(), [&](const auto& entry) {
        return entry.second.live && entry.second.tenant == model.sessions.at(id).tenant;
      });
  return std::none_of(model.events.begin(), model.events.end(), its) &&
         std::none_of(
             model.publications.begin(), model.publications.end(),
             [id](const Publication& each) { return each.ephemeral && each.publisher == id; }) &&
         std::none_of(model.leases.begin(), model.leases.end(),
                      [&](const auto& entry) { return its(entry.second); }) &&
         (tenant_lives || std::none_of(model.segments.begin(), model.segments.end(),
                                       [&](const auto& entry) {
                                         return entry.second.tenant ==
                                                    model.sessions.at(id).tenant &&
                                                entry.second.kept_since > 0;
                                       })) &&
         (!model.sessions.at(id).process_gone ||
          (std::none_of(model.imports.begin(), model.imports.end(), its) &&
           std::none_of(model.mappings.begin(), model.mappings.end(), its)));
}

}  // namespace

bool Live(const LedgerModel& model, SessionId session) {
  auto it = model.sessions.find(session);
  return it != model.sessions.end() && it->second.live;
}

bool HoldsOtherLeaseType(const LedgerModel& model, SessionId id, bool revocable) {
  const PeerIdentity& peer = model.sessions.at(id).peer;
  return std::any_of(model.mappings.begin(), model.mappings.end(), [&](const Mapping& mapping) {
    const PeerIdentity& other = model.sessions.at(mapping.session).peer;
    return other.pid == peer.pid && other.start_time == peer.start_time &&
           mapping.revocable != revocable;
  });
}

bool HoldsFirmMemory(const LedgerModel& model, SessionId id) {
  return HoldsOtherLeaseType(model, id, /*revocable=*/true);
}

absl::Status OpenSession(LedgerModel& model, const std::string& name, const std::string& client,
                         const PeerIdentity& peer, absl::Time now, const Secret& token,
                         const absl::StatusOr<SessionId>& answer) {
  if (model.draining) return ExpectCode(answer.status(), absl::StatusCode::kUnavailable);
  const auto there = model.tenants.find(name);
  const bool made = there != model.tenants.end() && there->second.made;
  if (made ? there->second.made->ending : name.find(':') != std::string::npos) {
    return ExpectCode(answer.status(), absl::StatusCode::kFailedPrecondition);
  }
  if (!model.tenants.contains(name)) {
    model.tenants[name] = {.quota = model.defaults,
                           .peaks = std::vector<uint64_t>(model.devices.size())};
    Link(model, name);
    for (size_t device = 0; device < model.devices.size(); ++device) {
      if (GuaranteeOn(model, name, device) > 0) model.queue_changed = true;  // less for others
    }
  }
  const auto replaced = static_cast<uint64_t>(
      std::count_if(model.sessions.begin(), model.sessions.end(), [&](const auto& entry) {
        return entry.second.tenant == name && entry.second.peer.pid == peer.pid &&
               entry.second.peer.start_time == peer.start_time && peer.start_time != 0 &&
               OnlyImports(model, entry.first);
      }));
  const uint64_t in_all = model.sessions.size() - replaced;
  std::optional<Expected> denial;
  for (const std::string& each : PathOf(model, name)) {
    const auto sessions = static_cast<uint64_t>(std::count_if(
        model.sessions.begin(), model.sessions.end(),
        [&](const auto& entry) { return IsUnder(model, entry.second.tenant, each); }));
    const uint64_t limit = QuotaOf(model, each).max_sessions.value_or(UINT32_MAX);
    if (denial || sessions - replaced < limit) continue;
    denial = {{Denial::Cause::kMaxSessions, each, kEverywhere}, 1, sessions - replaced, limit};
  }
  if (!denial && in_all >= model.bounds.max_sessions) {
    denial = {{Denial::Cause::kDaemonLimit, "", kEverywhere}, 1, in_all, model.bounds.max_sessions};
  }
  absl::Status result;
  if (denial) {
    result = ExpectDenial(model, answer.status(), name, *denial);
  } else if (!answer.ok() || ToInt(*answer) <= model.last_session) {
    return Wrong("expected a new session, got ", answer.status().ToString());
  } else {
    model.last_session = ToInt(*answer);
    model.sessions[*answer] = {
        .tenant = name, .client = client, .peer = peer, .token = token, .opened = now};
  }
  Sweep(model);
  return result;
}

void SocketClosed(LedgerModel& model, SessionId id) {
  if (model.sessions.contains(id)) EndSession(model, id);
}

void ProcessGone(LedgerModel& model, SessionId id) {
  if (!model.sessions.contains(id)) return;
  model.sessions.at(id).process_gone = true;
  EndSession(model, id);
  model.sessions.at(id).ending = true;
}

namespace {

// True if a tenant that has ended still has publications.
bool HasEndedPublications(const LedgerModel& model) {
  return std::any_of(model.publications.begin(), model.publications.end(),
                     [&](const Publication& each) { return HasEnded(model, each.tenant); });
}

}  // namespace

bool HasEnding(const LedgerModel& model) {
  return std::any_of(model.sessions.begin(), model.sessions.end(),
                     [](const auto& entry) { return entry.second.ending; });
}

absl::Status ContinueEnding(LedgerModel& model, const Ledger& ledger) {
  if (!HasEnding(model) && !HasEndedPublications(model)) return absl::OkStatus();
  const JournalImage image = ledger.Image();
  std::set<SegmentId> given_up;  // by the ledger
  const auto views = ledger.look().ListSegments("", "");
  for (const SegmentView& view : *views) {
    if (view.state == SegmentState::kReleasing) given_up.insert(view.id);
  }
  bool any_ended = false;  // of those that were ending after an earlier call
  for (auto& [id, session] : model.sessions) {
    if (!session.ending) continue;
    std::erase_if(model.events, [&, id = id](const Event& event) {
      return event.session == id && !image.ipc_events.contains(event.id);
    });
    for (const Publication& each : std::vector<Publication>(model.publications)) {
      if (each.ephemeral && each.publisher == id && !image.publications.contains(each.id)) {
        EndPublication(model, each.id);
      }
    }
    const std::string tenant = session.tenant;
    const bool tenant_lives =
        std::any_of(model.sessions.begin(), model.sessions.end(), [&tenant](const auto& entry) {
          return entry.second.live && entry.second.tenant == tenant;
        });
    for (auto& [segment_id, segment] : model.segments) {
      if (!tenant_lives && segment.tenant == tenant && segment.kept_since > 0 &&
          given_up.contains(segment_id)) {
        GiveUp(segment);
      }
    }
    for (const auto& [lease_id, lease] : std::map<LeaseId, Lease>(model.leases)) {
      if (lease.session != id || image.leases.contains(lease_id)) continue;
      EndLease(model, lease_id, /*unmapped=*/false);
    }
    if (session.process_gone) {
      for (auto& [segment_id, segment] : model.segments) {
        // Segments of a pool that no other process has open.
        if (segment.kind == Kind::kMempool && given_up.contains(segment_id) &&
            StateOf(model, segment_id) == SegmentState::kLingering && !MayMap(model, segment_id) &&
            Importers(model, segment_id) == std::set<SessionId>{id}) {
          GiveUp(segment);
        }
      }
      for (size_t device = 0; device < model.devices.size(); ++device) {
        const std::pair key(id, journal::DeviceUuid(model.devices[device].uuid));
        if (!image.pool_imports.contains(key)) Unimport(model, id, device, /*all=*/true);
      }
      std::set<SegmentId> unmapped;
      for (const Mapping& mapping : model.mappings) {
        if (mapping.session == id && !image.exposures.contains(std::pair(id, mapping.segment))) {
          unmapped.insert(mapping.segment);
        }
      }
      for (SegmentId segment : unmapped) {
        while (MayMap(model, id, segment)) Unmap(model, id, segment);
        SettleUnheld(model, segment);
      }
    }
    session.ending = ledger.state().ending.contains(id);
    if (!session.ending && !HasEnded(model, id)) {
      return Wrong("session ", ToInt(id), " has not ended");
    }
    if (std::exchange(session.goes_on, session.ending) && !session.ending) any_ended = true;
  }
  for (const Publication& each : std::vector<Publication>(model.publications)) {
    if (HasEnded(model, each.tenant) && !image.publications.contains(each.id)) {
      EndPublication(model, each.id);
    }
  }
  if (!ledger.endings().HasAny() && HasEndedPublications(model)) {
    return Wrong("a tenant that has ended keeps a publication");
  }
  if (any_ended && !HasEnding(model))
    model.queue_changed = true;  // others may have waited for that
  Sweep(model);
  return absl::OkStatus();
}

void Sweep(LedgerModel& model) {
  for (auto it = model.sessions.begin(); it != model.sessions.end();) {
    const SessionId id = it->first;
    bool needed = !OnlyImports(model, id);
    const auto imports = std::count_if(model.imports.begin(), model.imports.end(),
                                       [&](const Import& import) { return import.session == id; });
    if (!needed && imports > 0) {
      const std::optional<SessionId> other = OtherOfItsProcess(model, id);
      needed = !other.has_value();
      for (Import& import : model.imports) {
        if (other && import.session == id) import.session = *other;
      }
    }
    if (needed) {
      ++it;
      continue;
    }
    model.forgotten.push_back(id);
    it = model.sessions.erase(it);
  }
  const auto unused = [&](const std::string& name) {
    return std::none_of(model.tenants.begin(), model.tenants.end(),
                        [&](const auto& other) { return other.second.parent == name; }) &&
           std::none_of(model.sessions.begin(), model.sessions.end(),
                        [&](const auto& session) { return session.second.tenant == name; }) &&
           std::none_of(model.segments.begin(), model.segments.end(),
                        [&](const auto& segment) { return segment.second.tenant == name; });
  };
  const auto idle = [&](const auto& entry) {
    const Tenant& tenant = entry.second;
    return !tenant.configured && !tenant.overridden && !(tenant.made && !tenant.made->ending) &&
           unused(entry.first);
  };
  size_t forgotten = 0;
  while (const size_t more =
             std::erase_if(model.tenants, idle) + KeepOverridesAlone(model, unused)) {
    forgotten += more;
  }
  std::erase_if(model.last_versions, [&](const auto& entry) {
    if (model.tenants.contains(entry.first.first)) return false;
    uint64_t& version = model.gone_versions[entry.first.first];
    version = std::max(version, entry.second);
    return true;
  });
  if (forgotten > 0) model.queue_changed = true;  // their guarantees are free
}

absl::Status TakeForgotten(LedgerModel& model, std::vector<SessionId> answer) {
  std::vector<SessionId> expected = std::exchange(model.forgotten, {});
  std::sort(expected.begin(), expected.end());
  std::sort(answer.begin(), answer.end());
  if (answer == expected) return absl::OkStatus();
  return Wrong("expected ", expected.size(), " sessions to be forgotten, got ", answer.size());
}

absl::Status BeginCall(LedgerModel& model, SessionId id, const absl::Status& answer) {
  if (!Live(model, id)) return ExpectCode(answer, absl::StatusCode::kAborted);
  const std::string& tenant = model.sessions.at(id).tenant;
  const std::string books = BooksOf(model, tenant);
  uint64_t calls = 0;
  for (const auto& [other_id, other] : model.sessions) {
    if (BooksOf(model, other.tenant) == books) calls += other.calls;
  }
  const uint64_t limit = model.tenants.at(books).quota.max_in_flight.value_or(UINT32_MAX);
  if (calls >= limit) {
    return ExpectDenial(model, answer, tenant,
                        {{Denial::Cause::kMaxInFlight, books, kEverywhere}, 1, calls, limit});
  }
  ++model.sessions.at(id).calls;
  return ExpectCode(answer, absl::StatusCode::kOk);
}

void EndCall(LedgerModel& model, SessionId id) {
  --model.sessions.at(id).calls;
  Sweep(model);
}

}  // namespace gpumemd::model
