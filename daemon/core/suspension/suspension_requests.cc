// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/suspension/suspension_requests.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

void SuspensionRequests::CountWatch(SessionId id, std::optional<bool> swappable, uint32_t change) {
  records::Session& session = *state_.sessions.at(id);
  session.suspension_watches += change;
  if (swappable) (*swappable ? session.swap_watches : session.no_swap_watches) += change;
  state_.swaps_changed.insert(id);
}

void SuspensionRequests::AddWatch(SessionId session, std::optional<bool> swappable) {
  CountWatch(session, swappable, 1);
}

void SuspensionRequests::RemoveWatch(SessionId session, std::optional<bool> swappable) {
  CountWatch(session, swappable, UINT32_MAX);  // one less
}

absl::Status SuspensionRequests::Check(SessionId id) const {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end() || !it->second->live) {
    return absl::NotFoundError(absl::StrCat("there is no live session ", ToInt(id)));
  }
  if (!suspensions_.HasTier()) return NoHostTier();
  if (it->second->suspension_watches == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the process of session ", ToInt(id),
                     " does not accept to be suspended: its program has to call "
                     "Client::ServeSuspensions"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SuspensionRequests::Begin(SessionId id, bool resume, absl::Time until,
                                                   absl::string_view tag, Cause cause) {
  if (absl::Status possible = Check(id); !possible.ok()) return possible;
  const uint64_t number = next_request_++;
  state_.sessions.at(id)->suspension_request = Request{
      .number = number, .resume = resume, .until = until, .tag = std::string(tag), .cause = cause};
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

std::optional<LeaseId> SuspensionRequests::Collect(SessionId id, bool resume, LeaseId next,
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
    if (!lease.suspended && !suspensions_.CheckLease(*session->second, *it).ok()) continue;
    if (lease.suspended == resume) {
      due.leases.push_back(*it);
    } else {
      ++due.done;
    }
  }
  if (it == leases.end()) return std::nullopt;
  return *it;
}

bool SuspensionRequests::IsDone(LeaseId id, bool resume) const {
  const records::Lease* const lease = state_.leases.Find(id);
  if (lease == nullptr) return true;
  const records::Segment& segment = *state_.segments.at(lease->segment);
  if (segment.lost) return true;
  return resume ? !lease->suspended : lease->suspended && !segment.copying;
}

void SuspensionRequests::Add(absl::Span<const LeaseId> leases, bool resume, Moved& moved) const {
  for (LeaseId id : leases) {
    const records::Lease* const lease = state_.leases.Find(id);
    if (lease == nullptr || lease->suspended == resume) continue;
    ++moved.leases;
    if (!moved.segments.insert(lease->segment).second) continue;
    const records::Segment& segment = *state_.segments.at(lease->segment);
    const bool in_place = (segment.kind == Kind::kTier) != resume;
    (in_place ? moved.bytes : moved.resident_bytes) += segment.charge.bytes();
    moved.dropped_bytes += segment.dropped_bytes;
  }
}

}  // namespace gpumemd
