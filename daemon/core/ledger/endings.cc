// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/endings.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/mutant.h"

namespace gpumemd {

void Endings::EndSession(SessionId id, Session& session) {
  if (!session.live) return;
  session.live = false;
  auditor_.SessionChanged(AuditEvent::kSessionEnded, id);
  changes_.Touch(id);
  if (!Mutant(Fault::kEndKeepsToken)) state_.tokens.erase(session.token);
  for (const Session::Answer& answer : session.answers)
    changes_.Touch(RequestKey(id, answer.request));
  session.answers.clear();
  if (!Mutant(Fault::kEndKeepsWaiters)) admission_.RefuseWaitersOf(session);
  attach_waiters_.EndWaitsOf(session);
  claims_.ReleaseUnless(
      id, [](uint64_t) { return Mutant(Fault::kClaimOutlivesSession); }, "its session has ended");
  suspensions_.Cancel(id, /*reservation=*/0);
  made_tenants_.EndOf(id, session);
  if (session.suspension_watches > 0) state_.swaps_changed.insert(id);
  --session.tenant->live_sessions;
}

bool Endings::WindUp(SessionId id, Session& session, size_t& steps) {
  for (; steps > 0; --steps) {
    const std::optional<IpcEventId> event = state_.events.AnyOf(id);
    if (!event) break;
    state_.events.Remove(*event);
    changes_.Touch(*event);
  }
  // Ending one takes no longer than beginning it did.
  while (steps > 0 && !session.ephemeral.empty() && !Mutant(Fault::kEndKeepsEphemeral)) {
    const PublicationId publication = *session.ephemeral.begin();
    const size_t segments = state_.publications.at(publication).segments.size();
    publications_.End(publication);
    steps -= std::min(steps, segments);
  }
  // Retained memory serves the tenant's running processes. Without one it would only be kept from
  // other tenants.
  Tenant& tenant = *session.tenant;
  for (size_t device = 0; device < state_.devices.size() && tenant.live_sessions == 0; ++device) {
    for (; steps > 0 && segments_.DoomOldest(tenant, device); --steps) {
    }
  }
  for (; steps > 0 && !session.leases.empty(); --steps) {
    leases_.End(*session.leases.begin(), /*unmapped=*/false);
  }
  if (!session.process_gone || steps == 0) return steps > 0;
  while (steps > 0 && !session.imported.empty()) {
    segments_.EndImport(id, session, *session.imported.begin(), steps);
  }
  std::vector<SegmentId> mapped;
  for (; steps > 0 && !session.exposed.empty() && !Mutant(Fault::kEndKeepsMappings); --steps) {
    mapped.push_back(*session.exposed.begin());
    Segment& segment = *state_.segments.at(mapped.back());
    segments_.Unexpose(mapped.back(), segment, id, /*all=*/true);
    segments_.Settle(mapped.back(), segment);
    const SegmentState state = segment.charge.state();  // a doomed segment is still in the map
    if (state != SegmentState::kRetained && state != SegmentState::kReleasing) continue;
    state_.reclaimed[segment.device] += segment.charge.bytes();
  }
  auditor_.Reclaimed(id, mapped);
  return steps > 0;
}

void Endings::Continue(SessionId id, size_t& steps) {
  Session& session = *state_.sessions.at(id);
  session.ending = !WindUp(id, session, steps);
  if (session.ending) {
    state_.ending.insert(id);
    return;
  }
  if (state_.ending.erase(id) > 0 && state_.ending.empty() && !state_.waiters.empty()) {
    // Waiters that do not fit yet were not refused, and no memory was revoked for them.
    admission_.EndingsDone();
  }
  sessions_.ForgetIfDone(id, session);
}

void Endings::Continue(size_t steps) {
  while (steps > 0 && !state_.ending.empty()) Continue(*state_.ending.begin(), steps);
  EndPublications(steps);
}

void Endings::EndPublications(size_t& steps) {
  while (steps > 0 && !state_.ended_tenants.empty()) {
    const std::string tenant = *state_.ended_tenants.begin();
    const auto next = state_.by_name.lower_bound({tenant, ""});
    if (next == state_.by_name.end() || next->first.first != tenant) {
      state_.ended_tenants.erase(tenant);
      continue;
    }
    const size_t segments = state_.publications.at(next->second).segments.size();
    publications_.End(next->second);
    steps -= std::min(steps, segments);
  }
}

void Endings::SocketClosed(SessionId id, size_t steps) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  EndSession(id, *it->second);
  Continue(id, steps);
}

void Endings::ProcessGone(SessionId id, size_t steps) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  it->second->process_gone = true;
  EndSession(id, *it->second);
  Continue(id, steps);
}

void Endings::Complete(SessionId id) {
  Session& session = *state_.sessions.at(id);
  size_t steps = SIZE_MAX;
  WindUp(id, session, steps);
  sessions_.ForgetIfDone(id, session);
}

}  // namespace gpumemd
