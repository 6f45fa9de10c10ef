// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/suspension/exchange.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/suspension/suspensions.h"

namespace gpumemd {
namespace {

absl::Status CannotExchange(LeaseId lease, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the segment of lease ", ToInt(lease), " cannot be exchanged: ", why));
}

}  // namespace

absl::Status Exchanges::Exchange(SessionId id, absl::Span<const Pair> pairs, bool check_only) {
  absl::StatusOr<Session*> session = state_.LiveSession(id);
  if (!session.ok()) return session.status();
  std::vector<LeaseId> named;
  for (const Pair& pair : pairs) named.insert(named.end(), {pair.lease, pair.other});
  if (absl::Status list = Suspensions::CheckLeaseList(named, 2 * kMaxSegmentsPerCall); !list.ok()) {
    return list;
  }
  std::vector<Pair> due;
  for (const Pair& pair : pairs) {
    for (LeaseId lease : {pair.lease, pair.other}) {
      if (!(*session)->leases.contains(lease)) return NoSuchLease(lease);
    }
    if (IsDone(pair)) continue;
    if (absl::Status possible = Check(id, pair); !possible.ok()) return possible;
    due.push_back(pair);
  }
  if (check_only) return absl::OkStatus();
  for (const Pair& pair : due) Swap(pair);
  std::vector<LeaseId> leases;
  for (const Pair& pair : due) leases.push_back(pair.lease);
  auditor_.Exchanged(id, leases);
  return absl::OkStatus();
}

bool Exchanges::IsDone(const Pair& pair) const {
  return state_.leases.at(pair.lease).segment == pair.other_segment &&
         state_.leases.at(pair.other).segment == pair.segment;
}

absl::Status Exchanges::Check(SessionId session, const Pair& pair) const {
  if (absl::Status one = CheckSegment(session, pair.lease, pair.segment); !one.ok()) return one;
  if (absl::Status one = CheckSegment(session, pair.other, pair.other_segment); !one.ok())
    return one;
  const Segment& segment = *state_.segments.at(pair.segment);
  const Segment& other = *state_.segments.at(pair.other_segment);
  if (segment.kind == other.kind) {
    return absl::UnimplementedError(
        absl::StrCat("leases ", ToInt(pair.lease), " and ", ToInt(pair.other), " are both of kind ",
                     KindName(segment.kind), "; one is of kind vmm, ", "the other of kind host"));
  }
  if (segment.size() == other.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("lease ", ToInt(pair.lease), " has ",
                                                 segment.size(), " bytes, and lease ",
                                                 ToInt(pair.other), " has ", other.size()));
}

absl::Status Exchanges::CheckSegment(SessionId session, LeaseId lease, SegmentId named) const {
  const Lease& record = state_.leases.at(lease);
  const SegmentId id = record.segment;
  const Segment& segment = *state_.segments.at(id);
  if (segment.copying) {
    return absl::UnavailableError(absl::StrCat(
        "segment ", ToInt(id), " is being copied to or from the host tier; ask again"));
  }
  if (record.suspended) return CannotExchange(lease, "the lease is suspended: resume it first");
  if (id != named) {
    return CannotExchange(lease, absl::StrCat("it is segment ", ToInt(id), ", not ", ToInt(named)));
  }
  if (segment.kind != Kind::kVmm && segment.kind != Kind::kHost) {
    return absl::UnimplementedError(
        absl::StrCat("lease ", ToInt(lease), " is of kind ", KindName(segment.kind),
                     ": only segments of kinds vmm and host can be exchanged"));
  }
  if (segment.lost) return LostSegment(id);
  if (segment.charge.revocable()) return CannotExchange(lease, "it is revocable");
  if (segment.scratch) return CannotExchange(lease, "it is scratch memory");
  if (segment.tenant != state_.sessions.at(session)->tenant) {
    return CannotExchange(lease, absl::StrCat("it belongs to tenant ", segment.tenant->name));
  }
  if (segment.publications > 0) return CannotExchange(lease, "a publication contains it");
  if (segment.leases > 1) return CannotExchange(lease, "another lease uses it");
  if (segment.pins > 0) return CannotExchange(lease, "a request in flight uses it");
  // The lease's own session is one of these, unless its process has ended.
  if (segment.exposures.size() > (segment.exposures.contains(session) ? 1 : 0)) {
    return CannotExchange(lease, "another process may map it");
  }
  return absl::OkStatus();
}

void Exchanges::Swap(const Pair& pair) {
  std::swap(state_.leases.at(pair.lease).segment, state_.leases.at(pair.other).segment);
  Segment& from = *state_.segments.at(pair.segment);
  Segment& to = *state_.segments.at(pair.other_segment);
  Session& session = *state_.sessions.at(state_.leases.at(pair.lease).session);
  for (Segment* each : {&from, &to}) LedgerState::CountDemoted(session, *each, /*leased=*/false);
  // The contents of pair.lease are in `to` now, and those of `from` are stale.
  if (to.kind == Kind::kHost) to.home = from.device;
  from.home = from.device;
  for (Segment* each : {&from, &to}) LedgerState::CountDemoted(session, *each, /*leased=*/true);
  state_.events.Swap(pair.segment, pair.other_segment);
  changes_.Touch(pair.lease);
  changes_.Touch(pair.other);
  changes_.Touch(pair.segment);
  changes_.Touch(pair.other_segment);
}

}  // namespace gpumemd
