// SPDX-License-Identifier: Apache-2.0
// What changes of the ledger have led to, for its caller to act on outside.
#pragma once

#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "daemon/core/ids.h"

namespace gpumemd {

// Collected since the caller last took each list (Drain).
struct Effects {
  std::vector<SegmentId> doomed;        // to be destroyed, each exactly once (Segments::Destroyed)
  std::vector<SessionId> forgotten;     // sessions that no longer need to be watched
  absl::btree_set<SessionId> revoked;   // sessions with leases whose revocation has begun
  absl::btree_set<SessionId> asked;     // sessions that the policy asks to suspend (SwapPolicy)
  absl::btree_set<SessionId> orphaned;  // sessions with leases on segments that were lost
  // Attach waiters that stopped waiting: their version or contents exist, they have got the claim,
  // their session has ended, or the daemon drains. Their calls are in flight again.
  // Operations::BeginAttach gives the result.
  std::vector<WaiterId> attachable;
  // Publications that have ended, including those that were replaced, each exactly once. The caller
  // can delete what it kept for them.
  std::vector<PublicationId> ended_publications;
  // Segments whose copy to or from the host tier has ended, and that may be gone.
  std::vector<SegmentId> copied;
};

// Returns what one of these lists has, and empties it.
template <typename List>
std::vector<typename List::value_type> Drain(List& list) {
  const List drained = std::exchange(list, List());
  return {drained.begin(), drained.end()};
}

}  // namespace gpumemd
