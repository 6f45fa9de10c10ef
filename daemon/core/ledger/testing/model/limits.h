// SPDX-License-Identifier: Apache-2.0
// The model of limits: how a request stands to each, and what blocks it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// The part of a limit that waiters ahead will take.
struct Claim {
  uint64_t asked = 0;
  uint64_t need = 0;
};
using Claims = std::map<LimitName, Claim>;
enum class Fit { kNow, kSoon, kRevoked, kBlocked };

// A limit, and the state of a request against it.
struct Limit {
  LimitName name;
  uint64_t asked;      // in total, including reused segments
  uint64_t used;       // without segments that are reused now
  uint64_t held;       // of used: does not come back without its holders
  uint64_t not_taken;  // of held: is not being revoked
  uint64_t firm;       // of held: cannot be revoked
  uint64_t limit;
  uint64_t need = 0;    // with all guarantees
  uint64_t growth = 0;  // of the need, by the request
  uint64_t least = 0;   // the need with the request, if no other memory were held
  bool Fits(uint64_t taken, const Claim& claim) const;
  bool KeepsGuarantees(const Claim& claim) const;
  Fit FitOf(const Claim& claim, bool may_revoke) const;
};

// Returns the sum of small numbers, of which one may be UINT64_MAX: no limit.
uint64_t SumOfThree(uint64_t a, uint64_t b, uint64_t c);

// The decision about a request.
struct Decision {
  Fit fit = Fit::kNow;
  bool hopeless = false;
  bool awaits_end = false;       // of kSoon: a session that is ending may make room
  std::set<LimitName> blocking;  // and those before
  std::vector<Limit> limits;
  std::vector<SegmentId> to_revoke;
  Expected denial;
};

// Returns the limits in the order in which a denial names them as the reason.
std::vector<Limit> LimitsFor(const LedgerModel& model, const Request& request,
                             const std::set<SegmentId>& reused);
// Returns the claim on the limit; an empty one if there is none.
Claim On(const Claims& claims, const LimitName& name);
// Adds what a request will take of the limits in `which`.
void Add(const std::vector<Limit>& limits, const std::set<LimitName>& which, Claims& claims);

// `exactly`: also while sessions are ending.
Decision Decide(const LedgerModel& model, const Request& request, const std::set<SegmentId>& reused,
                const Claims& claims, bool exactly = false);

}  // namespace gpumemd::model
