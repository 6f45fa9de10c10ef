// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/users/accounts.h"

namespace gpumem::web {

uid_t Accounts::UserOf(uid_t uid) {
  if (with_.count(uid) > 0) return uid;
  const auto without = without_.find(uid);
  if (without != without_.end() && without->second > now_()) return kNone;
  if (pending_.count(uid) == 0 && uid != kNone) {
    if (Calls::Ticket ticket = begin_(uid)) pending_[uid] = std::move(ticket);
  }
  return kNone;
}

void Accounts::End(uid_t uid, Found found) {
  pending_.erase(uid);
  if (found == Found::kAccount) {
    // The number of accounts is not up to a peer. Of more, each further one counts as none.
    if (with_.size() < kMost) with_.insert(uid);
    return;
  }
  if (found == Found::kUnknown) return;
  if (without_.insert_or_assign(uid, now_() + kNoneLives).second) oldest_.push_back(uid);
  if (oldest_.size() <= kMost) return;
  without_.erase(oldest_.front());
  oldest_.pop_front();
}

}  // namespace gpumem::web
