// SPDX-License-Identifier: Apache-2.0
// Asks sessions to suspend when another request needs their memory, or after an idle time.
//
// A session is *swappable* while it has a watch that accepts requests to suspend, and its tenant's
// quota or the watch itself says so. For a request that waits, swappable sessions are asked before
// anything is revoked:
//
// 1. Their tenant's priority is not higher than the request's, or a guarantee covers the request.
//    Memory within a tenant's guarantee is not asked for, but by that tenant.
// 2. They have been on the device for `min_residence` since they last got or resumed memory there.
//    So equals take turns, and none is moved out as soon as it is back.
// 3. The lowest priority goes first, then the longest idle, then the most bytes (SwapIndex).
// 4. As many are asked as cover the shortfall, and none if all together do not. What was asked of
//    them counts as on its way until they have answered, or until the deadline.
//
// A session that has not suspended by its deadline is not asked again for a while. A waiter's own
// deadline counts from when the first session was asked for it, or would have been if fewer had
// been asked already: from then on its request may revoke leases, whatever sessions do. So sessions
// that ignore requests, however many, delay a waiter for one such time.
//
// Bounds: one look considers kLooks sessions, and a request that needs more than it finds there has
// none asked. kMostAsked sessions are asked for a device at one time. A request that needs more of
// them has them asked in parts, the next ones as others answer. An index orders the sessions, and
// each change of a session costs the logarithm of their number. Waiters are checked again for new
// candidates every kPause at most.
//
// Calls about leases count as activity, and clients report more of it (Reported). A report within
// kActivityGrain of the last activity changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/admission/room.h"
#include "daemon/core/admission/shortfall.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/inspect/measures.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/suspension/suspension_requests.h"
#include "daemon/core/suspension/suspensions.h"
#include "daemon/core/suspension/swap_index.h"

namespace gpumemd {

class SwapPolicy {
 public:
  static constexpr size_t kLooks = 512;
  static constexpr size_t kMostAsked = 64;
  static constexpr absl::Duration kActivityGrain = absl::Seconds(1);
  static constexpr absl::Duration kPause = absl::Milliseconds(250);

  struct Times {
    absl::Duration grace = absl::Seconds(30);     // until a session has to have suspended
    absl::Duration back_off = absl::Seconds(60);  // before one that has not is asked again
  };
  // All must outlive this.
  SwapPolicy(LedgerBase* base, const Room* room, const Suspensions* suspensions,
             SuspensionRequests* requests)
      : state_(base->state),
        auditor_(base->auditor),
        effects_(base->effects),
        room_(*room),
        suspensions_(*suspensions),
        requests_(*requests),
        index_(base->state.devices.size()),
        asked_on_(base->state.devices.size()) {}

  void SetTimes(const Times& times) { times_ = times; }
  // Brings the index up to date. Call it after each change of the ledger.
  void Refresh();

  // Records that the session has called for leases, or that its client says that it uses them.
  void Active(SessionId session);
  void Reported(SessionId session);
  // Says that a Suspend of the session has ended, or was refused for want of room in the tier.
  void Suspended(SessionId session);
  void Refused(SessionId session);

  // Asks sessions to suspend for the request, unless those that are asked already suffice. True if
  // the request fits once they have, or once others have that are to be asked after them, and its
  // deadline has not passed: nothing is to be revoked for it. While no more can be asked, a request
  // with a deadline waits without another look. `deadline` is the waiter's; infinite past: not set
  // yet.
  bool Ask(SessionId asker, const records::Request& request, const Decision& decision,
           const Claims& claims, absl::Time& deadline);

  // Ends requests whose time is up, and asks idle sessions. True if waiters may find others to ask,
  // or may revoke now.
  bool Tick();
  // Returns when Tick has something to do. `awaited`: requests wait for sessions to suspend.
  absl::Time NextDue(bool awaited) const;

  const SwapCounts& counts() const { return counts_; }
  absl::Status CheckInvariants() const;

 private:
  using Cause = records::SuspensionCause;
  using Request = records::Request;
  using Session = records::Session;
  using Tenant = records::Tenant;

  // A session that has been asked, and has not answered.
  struct Asked {
    uint64_t request = 0;  // its number
    absl::Time until;
    std::vector<std::pair<size_t, uint64_t>> bytes;  // expected, by device
    uint64_t tier_bytes = 0;                         // TierNeedOf then
  };
  enum class End { kSuspended, kIgnored, kRefused, kGone };

  void Index(SessionId id);
  void SetIdleDue(SessionId id, absl::Time due);  // infinite future: none
  // Returns the bytes to expect of the session on the device.
  static uint64_t BytesOn(const Session& session, size_t device);
  // Returns the room in the tier that the session needs to suspend, on all devices.
  static uint64_t TierNeedOf(const Session& session);
  // Adds bytes of a tenant to what will come into the tier.
  void AddComing(const Tenant& tenant, uint64_t bytes, Room::Coming& coming) const;
  // Returns the sessions to ask, in this order: those that cover `left`; none if none do. If there
  // are more than kLooks, those without room in the tier are passed over for a while, as if they
  // had been refused: so later calls come to the others.
  std::vector<SessionId> Select(SessionId asker, const Request& request, Shortfall& left);
  void Begin(SessionId id, Cause cause, absl::string_view why);
  void Finish(SessionId id, End end);
  void SetExpected(SessionId id, Asked& asked);

  LedgerState& state_;
  const Auditor& auditor_;
  Effects& effects_;
  const Room& room_;
  const Suspensions& suspensions_;
  SuspensionRequests& requests_;
  Times times_;
  SwapCounts counts_;

  SwapIndex index_;
  absl::flat_hash_map<SessionId, Asked> asked_;
  std::vector<absl::btree_set<SessionId>> asked_on_;  // by device
  absl::btree_set<std::pair<absl::Time, SessionId>> deadlines_;
  absl::flat_hash_map<SessionId, absl::Time> idle_;
  absl::btree_set<std::pair<absl::Time, SessionId>> idle_due_;
  // Deadlines of waiters, rounded up to kPause: as many as fit into the longest of them.
  absl::btree_set<absl::Time> waiters_due_;
  bool wake_ = false;  // waiters are to be checked, from woken_ + kPause on
  absl::Time woken_ = absl::InfinitePast();
};

}  // namespace gpumemd
