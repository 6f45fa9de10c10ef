// SPDX-License-Identifier: Apache-2.0
// The user that a uid counts as. Has no I/O.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "client/web/server/calls.h"

namespace gpumem::web {

// All uids without an account count as one user: by /etc/subuid, one person has thousands of them.
// So does a uid until its look-up has ended. Not thread-safe.
class Accounts {
 public:
  static constexpr uid_t kNone = static_cast<uid_t>(-1);  // of no process
  // Uids of each sort that are remembered.
  static constexpr size_t kMost = 4096;
  // A uid that had no account is looked up again after this time.
  static constexpr absl::Duration kNoneLives = absl::Seconds(60);

  // Begins a look-up, which calls End() later. Returns its ticket; nullptr: there are too many.
  using Begin = std::function<Calls::Ticket(uid_t)>;

  // `known`: uids that count as users without a look-up.
  Accounts(std::set<uid_t> known, std::function<absl::Time()> now, Begin begin)
      : now_(std::move(now)), begin_(std::move(begin)), with_(std::move(known)) {}

  // Returns the uid if it has an account, else kNone. Looks it up if that is not known.
  uid_t UserOf(uid_t uid);
  // Ends a look-up.
  enum class Found { kAccount, kNone, kUnknown };
  void End(uid_t uid, Found found);

 private:
  const std::function<absl::Time()> now_;
  const Begin begin_;
  std::set<uid_t> with_;
  std::map<uid_t, absl::Time> without_;  // until when
  std::deque<uid_t> oldest_;             // of without_, the oldest first
  std::map<uid_t, Calls::Ticket> pending_;
};

}  // namespace gpumem::web
