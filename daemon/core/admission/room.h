// SPDX-License-Identifier: Apache-2.0
// Checks whether there is room for a request. Adds up the usage at each limit, and says how a
// request stands to it, why it does not fit, and which segments would have to be taken back.
// Changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/admission/queue_line.h"
#include "daemon/core/admission/standing.h"
#include "daemon/core/denial.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

// Returns the order in which the request would be served as a waiter.
QueueRank RankOf(const records::Request& request);
// Returns all waiters in the order in which they are served.
std::vector<WaiterId> WaitersInOrder(const LedgerState& state);

// Compares one limit with a request. `may_revoke`: true if others may lose revocable memory for it.
Fit FitOf(const Standing& standing, const Claim& claim, bool may_revoke);

class Room {
 public:
  // `state` must outlive this.
  explicit Room(const LedgerState* state) : state_(*state) {}

  // Returns how the request stands to each limit: from those of its tenant, over those of the
  // tenants above it, to the device's. `reused`: how many of its segments are charged already.
  std::vector<Standing> StandingsOf(const records::Request& request, uint32_t reused) const;
  // Returns whether the request fits, given the claims of waiters before it. `exactly`: also while
  // sessions that are ending may make room for it.
  Decision Check(const records::Request& request, uint32_t reused, const Claims& claims,
                 bool exactly = false) const;
  // Returns the denial for the limit that Check() has just found in the way, with the sentence for
  // people. Takes longer than Check().
  Denial Explain(const records::Request& request, const Decision& decision) const;
  // Returns the bytes that the tenant can get on the device at most, once all releasing segments
  // are back. It can get more of a size that is idle in its pool there. `coming`: bytes that will
  // be charged to accounts by then.
  using Coming = absl::flat_hash_map<const Account*, uint64_t>;
  uint64_t Obtainable(const records::Tenant& tenant, size_t device,
                      const Coming& coming = {}) const;
  // Returns the bytes that are guaranteed to the tenant, or to those above it, and not held, if
  // they cover the request; else 0.
  static uint64_t Deficit(const records::Request& request);
  // Returns how often a charge was compared with others to be taken back: the cost of that.
  uint64_t looks() const { return looks_; }
  // Returns the bytes on the request's device that may be revoked for it at most, and are not being
  // revoked yet.
  uint64_t Revocable(const records::Request& request) const;

 private:
  using Request = records::Request;
  using Segment = records::Segment;
  using Tenant = records::Tenant;

  Denial DenialFor(const Request& request, const Standing& standing, const Claim& claim,
                   Fit fit) const;
  void AddHolders(const Standing& standing, Denial& denial) const;
  std::string HelpFor(const Tenant& tenant, const Denial& denial) const;
  // Returns the priority below which tenants' revocable leases may be taken back for the request.
  static int64_t RevokesBelow(const Request& request);
  // Returns segments to be taken back so that the shortages become 0; none if that is not possible.
  // Takes time in proportion to these, to the limits and to the devices, not to what else there is.
  std::vector<SegmentId> RevocationCandidates(const Request& request,
                                              const std::vector<Standing>& standings,
                                              const Claims& claims) const;

  const LedgerState& state_;
  mutable uint64_t looks_ = 0;
};

}  // namespace gpumemd
