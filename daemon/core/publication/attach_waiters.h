// SPDX-License-Identifier: Apache-2.0
// Attaches that wait: for a version of a publication, or for contents that another session has
// claimed (claims.h). A waiter's call counts as waiting, not as in flight.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/sessions.h"

namespace gpumemd {

class AttachWaiters {
 public:
  // Must outlive this.
  explicit AttachWaiters(LedgerBase* base) : state_(base->state), effects_(base->effects) {}

  // Returns the new waiter of a call that was in flight.
  WaiterId Add(records::AttachWaiter waiter);
  // Ends the wait and reports it (Effects::attachable): its call is in flight again.
  void Wake(WaiterId id);
  // Wakes those that the publication, which is new, is for.
  void WakeFor(const records::Publication& publication);
  // Returns the first waiter for these contents, by arrival.
  std::optional<WaiterId> FirstFor(const records::Contents& contents) const;
  // Ends the wait; its call is in flight again. Returns DEADLINE_EXCEEDED if the wait has
  // `expired`, or CANCELLED if its client is gone.
  absl::Status EndWait(WaiterId waiter, bool expired);
  // Wake the waiters of the session, or all.
  void EndWaitsOf(const records::Session& session);
  void EndAllWaits();

 private:
  using Name = LedgerState::PublicationName;

  void Remove(WaiterId id);
  absl::Status Expired(const records::AttachWaiter& waiter) const;

  LedgerState& state_;
  Effects& effects_;
  std::set<std::pair<Name, WaiterId>> of_names_;  // the waiters for a version
  std::set<std::pair<records::Contents, WaiterId>> of_contents_;
};

}  // namespace gpumemd
