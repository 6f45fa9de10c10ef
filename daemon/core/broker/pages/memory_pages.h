// SPDX-License-Identifier: Apache-2.0
// The pages in which tenants' sessions read how much memory they can get (common/memory_page.h).
//
// There is one page for each tenant of which a session has opened it. Its figures are refreshed
//   - before the answer of each call of such a session, for that session's tenant (Touch), so that
//     a client sees what it has just acquired or released;
//   - soon after any other change, all pages in turn (RefreshSome).
// The broker's mutex guards it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/memory_page.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

class MemoryPages {
 public:
  using Page = std::shared_ptr<gpumem::MemoryPageWriter>;

  // Pages at one time: of tenants whose first session with one was this user's, and in all.
  static constexpr size_t kMostOfUid = 64;
  static constexpr size_t kMost = 1024;

  // Returns null if the tenant has none.
  Page Find(absl::string_view tenant) const;
  //   RESOURCE_EXHAUSTED  the user, or the daemon, has too many
  absl::Status CheckRoom(uid_t uid) const;
  // Adds the page of a tenant that has none.
  void Add(const std::string& tenant, uid_t uid, Page page);
  // Keeps the page of the session's tenant until Forget. Requires that there is one.
  void Use(SessionId session, const std::string& tenant);
  // The session is gone. The page of its tenant goes with the last that used it.
  void Forget(SessionId session);

  // Has the page of the session's tenant, if it uses one, refreshed at the end of this change.
  void Touch(SessionId session);
  // Ends a change of the state: refreshes the touched pages.
  void Settle(const LedgerState& state);
  // True if pages may be out of date.
  bool stale() const { return stale_ && !pages_.empty(); }
  // Refreshes up to `most` pages behind `after`. Returns the last one; empty: there are no more.
  // With an empty `after` all count as up to date from now on.
  std::string RefreshSome(const LedgerState& state, absl::string_view after, size_t most);

  // Returns pages that are no longer used, to be destroyed without the mutex.
  std::vector<Page> TakeUnused() { return std::exchange(unused_, {}); }
  bool has_unused() const { return !unused_.empty(); }

 private:
  struct Open {
    Page page;
    uid_t uid = 0;
    size_t sessions = 0;
  };

  void Refresh(const LedgerState& state, const std::string& tenant, const Open& open);

  absl::btree_map<std::string, Open> pages_;  // by tenant
  absl::flat_hash_map<SessionId, std::string> tenants_;
  absl::flat_hash_map<uid_t, size_t> of_uid_;
  std::vector<SessionId> touched_;
  std::vector<Page> unused_;
  std::vector<gpumem::MemoryFigures> figures_;  // of the page that is being refreshed
  uint64_t version_ = 0;  // of all accounts and quotas, when it was last looked at
  bool stale_ = false;
};

}  // namespace gpumemd
