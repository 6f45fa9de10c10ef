// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/suspension/suspension_requests.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

namespace {

using Action = SuspensionRequests::Action;

bool IsDemotion(Action action) { return action == Action::kDemote || action == Action::kPromote; }

bool HasHostKind(const std::vector<DeviceInfo>& devices) {
  return std::any_of(devices.begin(), devices.end(), [](const DeviceInfo& device) {
    return std::find(device.kinds.begin(), device.kinds.end(), Kind::kHost) != device.kinds.end();
  });
}

}  // namespace

void SuspensionRequests::CountWatch(SessionId id, std::optional<bool> swappable, bool demotes,
                                    uint32_t change) {
  records::Session& session = *state_.sessions.at(id);
  session.suspension_watches += change;
  if (demotes) session.demotion_watches += change;
  if (swappable) (*swappable ? session.swap_watches : session.no_swap_watches) += change;
  state_.swaps_changed.insert(id);
}

void SuspensionRequests::AddWatch(SessionId session, std::optional<bool> swappable, bool demotes) {
  CountWatch(session, swappable, demotes, 1);
}

void SuspensionRequests::RemoveWatch(SessionId session, std::optional<bool> swappable,
                                     bool demotes) {
  CountWatch(session, swappable, demotes, UINT32_MAX);  // one less
}

absl::Status SuspensionRequests::Check(SessionId id, Action action) const {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end() || !it->second->live) {
    return absl::NotFoundError(absl::StrCat("there is no live session ", ToInt(id)));
  }
  if (!IsDemotion(action) && !suspensions_.HasTier()) return NoHostTier();
  if (IsDemotion(action) && !HasHostKind(state_.devices)) {
    return absl::FailedPreconditionError(
        "this daemon has no host memory that GPUs can map (kind host); gpumemctl devices shows the "
        "kinds");
  }
  const records::Session& session = *it->second;
  if (session.suspension_watches == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the process of session ", ToInt(id), " does not accept to be ",
                     IsDemotion(action) ? "demoted" : "suspended",
                     ": its program has to call Client::ServeSuspensions"));
  }
  if (IsDemotion(action) && session.demotion_watches == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the process of session ", ToInt(id),
                     " does not accept to be demoted: its program has to call "
                     "Client::ServeSuspensions with the handlers pause and proceed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SuspensionRequests::Begin(SessionId id, Action action, absl::Time until,
                                                   absl::string_view tag, Cause cause) {
  if (absl::Status possible = Check(id, action); !possible.ok()) return possible;
  const uint64_t number = next_request_++;
  state_.sessions.at(id)->suspension_request = Request{
      .number = number, .action = action, .until = until, .tag = std::string(tag), .cause = cause};
  state_.swaps_changed.insert(id);  // it may replace one of the policy
  return number;
}

void SuspensionRequests::End(SessionId id, uint64_t request) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  std::optional<Request>& present = it->second->suspension_request;
  if (!present.has_value() || present->number != request) return;
  present.reset();
  state_.swaps_changed.insert(id);  // the policy may ask it again
}

const SuspensionRequests::Request* SuspensionRequests::Find(SessionId id) const {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end() || !it->second->live) return nullptr;
  const std::optional<Request>& request = it->second->suspension_request;
  return request.has_value() ? &*request : nullptr;
}

std::optional<bool> SuspensionRequests::IsReached(const records::Session& session, LeaseId id,
                                                  Action action) const {
  const records::Lease& lease = state_.leases.at(id);
  const records::Segment& segment = *state_.segments.at(lease.segment);
  if (IsDemotion(action)) {
    if (segment.demoted()) return action == Action::kDemote;
    const bool demotable = segment.kind == Kind::kVmm && !lease.suspended && !segment.scratch &&
                           segment.leases == 1 && segment.publications == 0 &&
                           segment.exposures.size() <= 1 &&
                           suspensions_.CheckLease(session, id).ok();
    return demotable ? std::optional(action == Action::kPromote) : std::nullopt;
  }
  if (!lease.suspended && !suspensions_.CheckLease(session, id).ok()) return std::nullopt;
  return lease.suspended == (action == Action::kSuspend);
}

std::optional<LeaseId> SuspensionRequests::Collect(SessionId id, Action action, LeaseId next,
                                                   size_t count, Due& due,
                                                   absl::string_view tag) const {
  auto session = state_.sessions.find(id);
  if (session == state_.sessions.end()) return std::nullopt;
  const auto& leases = session->second->leases;
  auto it = leases.lower_bound(next);
  for (; it != leases.end() && count > 0; ++it, --count) {
    const records::Lease& lease = state_.leases.at(*it);
    if (!tag.empty() && lease.tag != tag) continue;
    if (state_.segments.at(lease.segment)->lost) continue;
    const std::optional<bool> reached = IsReached(*session->second, *it, action);
    if (!reached) continue;
    if (*reached) {
      ++due.done;
    } else {
      due.leases.push_back(*it);
    }
  }
  if (it == leases.end()) return std::nullopt;
  return *it;
}

bool SuspensionRequests::IsDone(LeaseId id, Action action) const {
  const records::Lease* const lease = state_.leases.Find(id);
  if (lease == nullptr) return true;
  const records::Segment& segment = *state_.segments.at(lease->segment);
  if (segment.lost) return true;
  switch (action) {
    case Action::kSuspend:
      return lease->suspended && !segment.copying;
    case Action::kResume:
      return !lease->suspended;
    case Action::kDemote:
      return segment.demoted() || lease->suspended;
    case Action::kPromote:
      return !segment.demoted();
  }
  return true;
}

void SuspensionRequests::Add(absl::Span<const LeaseId> leases, Action action, Moved& moved) const {
  for (LeaseId id : leases) {
    const records::Lease* const lease = state_.leases.Find(id);
    if (lease == nullptr) continue;
    const records::Segment& segment = *state_.segments.at(lease->segment);
    const bool reached = IsDemotion(action) ? segment.demoted() == (action == Action::kDemote)
                                            : lease->suspended == (action == Action::kSuspend);
    if (!reached) continue;
    ++moved.leases;
    if (!moved.segments.insert(lease->segment).second) continue;
    const bool in_place =
        IsDemotion(action) || (segment.kind == Kind::kTier) == (action == Action::kSuspend);
    (in_place ? moved.bytes : moved.resident_bytes) += segment.charge.bytes();
    moved.dropped_bytes += segment.dropped_bytes;
  }
}

}  // namespace gpumemd
