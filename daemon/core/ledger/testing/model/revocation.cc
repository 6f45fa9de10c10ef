// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/revocation.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/devices.h"
#include "daemon/core/ledger/testing/model/guarantees.h"
#include "daemon/core/ledger/testing/model/limits.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/queue.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {
namespace {

bool Counts(const LedgerModel& model, const LimitName& limit, const Segment& segment) {
  return IsUnder(model, segment.tenant, limit.whose) &&
         (limit.device == kUnpinned ? !Pinned(model, segment.device)
                                    : limit.device == segment.device);
}

// True if another segment would have to be revoked instead.
bool IsWaitedFor(LedgerModel& model, SegmentId id) {
  model.queue_changed |= std::any_of(model.waiters.begin(), model.waiters.end(),
                                     [](const auto& entry) { return entry.second.revokes; });
  model.segments.at(id).revoking = false;
  const bool wanted =
      std::any_of(model.waiters.begin(), model.waiters.end(), [&](const auto& entry) {
        const auto& [waiter_id, waiter] = entry;
        return waiter.revokes &&
               Decide(model, waiter.request, {}, ClaimsBefore(model, waiter_id), /*exactly=*/true)
                       .fit == Fit::kRevoked;
      });
  model.segments.at(id).revoking = true;
  return wanted;
}

}  // namespace

std::vector<SegmentId> SegmentsToRevoke(const LedgerModel& model, const Request& request,
                                        const std::vector<Limit>& limits, const Claims& claims) {
  std::map<LimitName, uint64_t> missing;
  for (const Limit& limit : limits) {
    const Claim claim = On(claims, limit.name);
    if (limit.FitOf(claim, true) != Fit::kRevoked) continue;
    missing[limit.name] = limit.not_taken + limit.asked + claim.asked - limit.limit;
  }
  const int32_t priority = model.tenants.at(request.tenant).quota.priority;
  std::map<std::pair<int32_t, uint64_t>, SegmentId> candidates;
  for (const auto& [id, segment] : model.segments) {
    const int32_t owners = model.tenants.at(segment.tenant).quota.priority;
    const SegmentState state = StateOf(model, id);
    if (segment.revocable && !segment.revoking && !segment.stuck &&
        (state == SegmentState::kLeased || state == SegmentState::kLingering) &&
        (Deficit(model, request) > 0 || owners < priority)) {
      candidates[{owners, UINT64_MAX - ToInt(id)}] = id;
    }
  }
  std::vector<SegmentId> to_revoke;
  for (const auto& [rank, id] : candidates) {
    const Segment& segment = model.segments.at(id);
    bool helps = false;
    for (auto& [limit, bytes] : missing) {
      if (bytes == 0 || !Counts(model, limit, segment)) continue;
      bytes = bytes > segment.bytes ? bytes - segment.bytes : 0;
      helps = true;
    }
    if (helps) to_revoke.push_back(id);
  }
  for (const auto& [limit, bytes] : missing) {
    if (bytes > 0) return {};
  }
  return to_revoke;
}

void BeginRevocation(LedgerModel& model, SegmentId id, absl::Time now) {
  Segment& segment = model.segments.at(id);
  segment.revoking = true;
  segment.until = now + model.times.grace;
  segment.asked_to_end = segment.ended = false;
  for (const Mapping& mapping : model.mappings) {
    if (mapping.segment == id) model.revoked.insert(mapping.session);
  }
}

absl::Status TakeRevoked(LedgerModel& model, const std::vector<SessionId>& answer) {
  const std::set<SessionId> expected = std::exchange(model.revoked, {});
  if (std::equal(answer.begin(), answer.end(), expected.begin(), expected.end())) {
    return absl::OkStatus();
  }
  return Wrong("expected ", expected.size(), " sessions to be told to give back, got ",
               answer.size());
}

absl::Time NextOverdue(const LedgerModel& model) {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, segment] : model.segments) {
    if (segment.revoking) next = std::min(next, segment.until);
  }
  return next;
}

absl::Status TakeOverdue(LedgerModel& model, absl::Time now,
                         const std::vector<Revocations::Overdue>& answer) {
  std::map<SessionId, bool> expected;
  for (auto& [id, segment] : model.segments) {
    if (!segment.revoking || now < segment.until) continue;
    if (segment.ended || !IsWaitedFor(model, id)) {
      segment.stuck = segment.ended;
      segment.revoking = false;
      model.queue_changed = true;
      continue;
    }
    const bool kill = std::exchange(segment.asked_to_end, true);
    segment.ended = kill;
    segment.until = now + model.times.kill_after;
    for (const Mapping& mapping : model.mappings) {
      if (mapping.segment != id || model.sessions.at(mapping.session).process_gone) continue;
      expected[mapping.session] |= kill;
    }
  }
  if (answer.size() != expected.size()) {
    return Wrong("expected ", expected.size(), " overdue sessions, got ", answer.size());
  }
  for (const Revocations::Overdue& overdue : answer) {
    if (!expected.contains(overdue.session) || expected[overdue.session] != overdue.kill) {
      return Wrong("session ", ToInt(overdue.session), " is wrongly told to end");
    }
    if (HoldsFirmMemory(model, overdue.session)) {
      return Wrong("session ", ToInt(overdue.session), " would lose what is not revocable");
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd::model
