// SPDX-License-Identifier: Apache-2.0
// What suspended leases and publications need to come back.
#include <algorithm>
#include <optional>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/suspension/suspensions.h"

namespace gpumemd {

absl::Status Suspensions::CheckStill(SegmentId id, const Segment& segment) {
  if (segment.lost) return LostSegment(id);
  if (!segment.copying) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("segment ", ToInt(id), " is being copied to or from the host tier; ask again"));
}

absl::StatusOr<Suspensions::ResumeTerms> Suspensions::TermsOf(
    SessionId id, absl::Span<const LeaseId> leases) const {
  absl::StatusOr<Session*> live = state_.LiveSession(id);
  if (!live.ok()) return live.status();
  if (absl::Status list = CheckLeaseList(leases, kMaxSuspendedAtOnce); !list.ok()) return list;
  ResumeTerms terms;
  absl::btree_set<SegmentId> segments;
  for (LeaseId lease : leases) {
    if (!(*live)->leases.contains(lease)) return NoSuchLease(lease);
    const SegmentId segment_id = state_.leases.at(lease).segment;
    const Segment& segment = *state_.segments.at(segment_id);
    if (absl::Status still = CheckStill(segment_id, segment); !still.ok()) return still;
    const bool in_tier = segment.kind == Kind::kTier;
    if (!in_tier && !TraitsOf(segment.kind).suspendable) {
      return absl::UnimplementedError(absl::StrCat("lease ", ToInt(lease), " is of kind ",
                                                   KindName(segment.kind),
                                                   ", which cannot be suspended or resumed"));
    }
    const size_t device = in_tier ? segment.home : segment.device;
    if (!segments.empty() && device != terms.device) {
      return absl::InvalidArgumentError(
          "the leases are of several devices: resume those of each device in a separate call");
    }
    terms.device = device;
    if (segments.insert(segment_id).second && in_tier) terms.bytes += segment.size();
  }
  return terms;
}

absl::StatusOr<Suspensions::ResumeTerms> Suspensions::TermsOf(PublicationId id) const {
  auto found = state_.publications.find(id);
  if (found == state_.publications.end()) return absl::NotFoundError("the publication has ended");
  ResumeTerms terms;
  for (SegmentId segment_id : found->second.segments) {
    const Segment& segment = *state_.segments.at(segment_id);
    if (absl::Status still = CheckStill(segment_id, segment); !still.ok()) return still;
    if (segment.kind != Kind::kTier) continue;
    if (terms.bytes > 0 && segment.home != terms.device) continue;
    terms.device = segment.home;
    terms.bytes += segment.charge.bytes();
  }
  return terms;
}

std::optional<SegmentId> Suspensions::CopyingOf(const AcquireSpec& spec) const {
  const auto copying = [this](SegmentId id) { return state_.segments.at(id)->copying; };
  if (spec.publication) {
    auto found = state_.publications.find(*spec.publication);
    if (found == state_.publications.end()) return std::nullopt;
    const auto& segments = found->second.segments;
    auto it = std::find_if(segments.begin(), segments.end(), copying);
    return it != segments.end() ? std::optional(*it) : std::nullopt;
  }
  for (LeaseId id : spec.resumes) {
    const Lease* const lease = state_.leases.Find(id);
    if (lease != nullptr && copying(lease->segment)) return lease->segment;
  }
  return std::nullopt;
}

void Suspensions::EndResume(SegmentId id, bool resumed) {
  Segment& tier = *state_.segments.at(id);
  tier.copying = false;
  --tier.pins;
  --state_.tier_pins;
  effects_.copied.push_back(id);
  if (resumed) {
    segments_.Doom(id, tier);
  } else {
    segments_.Settle(id, tier);
  }
}

}  // namespace gpumemd
