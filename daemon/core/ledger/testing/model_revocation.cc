// The model of revoking revocable leases, and the questions by which the promises are checked.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/testing/model.h"

namespace gpumemd {

// Takes segments of the lowest priority first, and among these the newest first, as far as each
// helps against a shortage. Returns none unless all of them together suffice.
std::vector<SegmentId> LedgerModel::VictimsFor(const Request& request,
                                               const std::vector<Limit>& limits,
                                               const Claims& claims) const {
  std::map<LimitName, uint64_t> missing;
  for (const Limit& limit : limits) {
    const Claim claim = On(claims, limit.name);
    if (limit.FitOf(claim, true) != Fit::kRevoked) continue;
    missing[limit.name] = limit.not_taken + limit.asked + claim.asked - limit.limit;
  }
  const int32_t priority = tenants_.at(request.tenant).quota.priority;
  std::map<std::pair<int32_t, uint64_t>, SegmentId> candidates;
  for (const auto& [id, segment] : segments_) {
    const int32_t owners = tenants_.at(segment.tenant).quota.priority;
    const SegmentState state = StateOf(id);
    if (segment.revocable && !segment.revoking && !segment.stuck &&
        (state == SegmentState::kLeased || state == SegmentState::kLingering) &&
        (Deficit(request) > 0 || owners < priority)) {
      candidates[{owners, UINT64_MAX - ToInt(id)}] = id;
    }
  }
  std::vector<SegmentId> victims;
  for (const auto& [rank, id] : candidates) {
    const Segment& segment = segments_.at(id);
    bool helps = false;
    for (auto& [limit, bytes] : missing) {
      if (bytes == 0 || !Counts(limit, segment)) continue;
      bytes = bytes > segment.bytes ? bytes - segment.bytes : 0;
      helps = true;
    }
    if (helps) victims.push_back(id);
  }
  for (const auto& [limit, bytes] : missing) {
    if (bytes > 0) return {};
  }
  return victims;
}

bool LedgerModel::Counts(const LimitName& limit, const Segment& segment) const {
  return IsUnder(segment.tenant, limit.whose) &&
         (limit.device == kUnpinned ? !Pinned(segment.device) : limit.device == segment.device);
}

void LedgerModel::TakeBack(SegmentId id, absl::Time now) {
  Segment& segment = segments_.at(id);
  segment.revoking = true;
  segment.until = now + times_.grace;
  segment.asked_to_end = segment.ended = false;
  for (const Mapping& mapping : mappings_) {
    if (mapping.segment == id) revoked_.insert(mapping.session);
  }
}

absl::Status LedgerModel::TakeRevoked(const std::vector<SessionId>& answer) {
  const std::set<SessionId> expected = std::exchange(revoked_, {});
  if (std::equal(answer.begin(), answer.end(), expected.begin(), expected.end())) {
    return absl::OkStatus();
  }
  return Wrong("expected ", expected.size(), " sessions to be told to give back, got ",
               answer.size());
}

absl::Time LedgerModel::NextOverdue() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, segment] : segments_) {
    if (segment.revoking) next = std::min(next, segment.until);
  }
  return next;
}

// True if another segment would have to be revoked instead.
bool LedgerModel::IsWaitedFor(SegmentId id) {
  segments_.at(id).revoking = false;
  const bool wanted = std::any_of(waiters_.begin(), waiters_.end(), [&](const auto& entry) {
    const auto& [waiter_id, waiter] = entry;
    return waiter.revokes &&
           Judge(waiter.request, {}, ClaimsOfThoseBefore(waiter_id), /*exactly=*/true).fit ==
               Fit::kRevoked;
  });
  segments_.at(id).revoking = true;
  return wanted;
}

absl::Status LedgerModel::TakeOverdue(absl::Time now, const std::vector<Ledger::Overdue>& answer) {
  std::map<SessionId, bool> expected;
  for (auto& [id, segment] : segments_) {
    if (!segment.revoking || now < segment.until) continue;
    if (segment.ended || !IsWaitedFor(id)) {
      segment.stuck = segment.ended;
      segment.revoking = false;
      stirred_ = true;
      continue;
    }
    const bool kill = std::exchange(segment.asked_to_end, true);
    segment.ended = kill;
    segment.until = now + times_.kill_after;
    for (const Mapping& mapping : mappings_) {
      if (mapping.segment != id || sessions_.at(mapping.session).process_gone) continue;
      expected[mapping.session] |= kill;
    }
  }
  if (answer.size() != expected.size()) {
    return Wrong("expected ", expected.size(), " overdue sessions, got ", answer.size());
  }
  for (const Ledger::Overdue& overdue : answer) {
    if (!expected.contains(overdue.session) || expected[overdue.session] != overdue.kill) {
      return Wrong("session ", ToInt(overdue.session), " is wrongly told to end");
    }
    if (HoldsFirmly(overdue.session)) {
      return Wrong("session ", ToInt(overdue.session), " would lose what is not revocable");
    }
  }
  return absl::OkStatus();
}

// --- Questions ---------------------------------------------------------------------------

bool LedgerModel::HoldsFirmly(SessionId id) const { return OtherSort(id, /*revocable=*/true); }

std::vector<std::string> LedgerModel::TenantNames() const {
  std::vector<std::string> names;
  for (const auto& [name, tenant] : tenants_) names.push_back(name);
  return names;
}

bool LedgerModel::Allowed(const Request& request, bool emptied) const {
  uint64_t more = request.revocable ? 0 : request.in_all();
  std::vector<std::string> limited = PathOf(request.tenant);
  limited.emplace_back("");
  const auto held = [&](const std::string& whose, size_t device, Which which) {
    return emptied ? Sum{} : Of(whose, device, which);
  };
  for (const std::string& each : limited) {
    const uint64_t limit =
        each.empty() ? devices_[request.device].capacity_bytes : LimitOn(each, request.device);
    const uint64_t before = Need(each, request.device, 0, emptied);
    const uint64_t need = Need(each, request.device, more, emptied);
    more = need - before;
    if (need > limit || request.in_all() > limit) return false;
    const uint64_t segments = each.empty()
                                  ? bounds_.max_segments
                                  : tenants_.at(each).quota.max_segments.value_or(UINT32_MAX);
    if (held(each, kEverywhere, Which::kHeld).segments + request.count > segments) return false;
    if (each.empty() || Pinned(request.device)) continue;
    const uint64_t total = tenants_.at(each).quota.total_limit_bytes.value_or(UINT64_MAX);
    uint64_t needs = more;
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (!Pinned(d)) needs += Need(each, d, 0, emptied);
    }
    if (request.in_all() > total) return false;
    // Unused guarantees of the tenant on other devices do not count: the tenant chooses where to
    // use its total limit.
    if (each == request.tenant
            ? held(each, kUnpinned, Which::kHeld).bytes + request.in_all() > total
            : needs > total) {
      return false;
    }
  }
  return true;
}

}  // namespace gpumemd
