// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/inspect/invariants.h"

namespace gpumemd {

absl::Status CheckMadeTenants(const LedgerState& state) {
  const auto wrong = [](auto... what) { return absl::InternalError(absl::StrCat(what...)); };
  absl::flat_hash_map<uid_t, LedgerState::MadeOfUid> of_uid;
  std::map<const records::Tenant*, uint32_t> lasting_of;
  uint32_t all = 0, by_sessions = 0, lasting = 0;
  for (const auto& [name, tenant] : state.tenants) {
    if (!tenant->made) continue;
    const records::MadeTenant& made = *tenant->made;
    const auto by_id = state.made_by_id.find(made.id);
    if (by_id == state.made_by_id.end() || by_id->second != tenant.get()) {
      return wrong("made tenant ", name, " is not found by its number");
    }
    ++all;
    if (!made.by_session()) {
      if (made.lasting) return wrong("tenant ", name, " is lasting, and no session made it");
      continue;
    }
    ++by_sessions;
    if (!tenant->configured && (tenant->parent == nullptr || tenant->parent->name != made.parent ||
                                tenant->parent->books != tenant->books)) {
      return wrong("tenant ", name, " is not under the tenant that it was made under");
    }
    LedgerState::MadeOfUid& own = of_uid[made.uid.value_or(0)];
    own.ids.insert(made.id);
    const auto maker = state.sessions.find(made.session);
    const bool ends_with =
        maker != state.sessions.end() && maker->second->made_tenants.contains(name);
    if (made.lasting && ends_with) return wrong("lasting tenant ", name, " ends with its maker");
    if (!made.lasting) continue;
    ++lasting;
    ++own.lasting;
    ++lasting_of[tenant->books];
  }
  if (all != state.made_tenants || by_sessions != state.made_by_sessions ||
      lasting != state.lasting_tenants || state.made_by_id.size() != all) {
    return wrong("the daemon miscounts the tenants made at run time");
  }
  if (of_uid.size() != state.made_of_uid.size()) return wrong("a user without tenants is counted");
  for (const auto& [uid, own] : of_uid) {
    const auto counted = state.made_of_uid.find(uid);
    if (counted == state.made_of_uid.end() || counted->second.ids != own.ids ||
        counted->second.lasting != own.lasting) {
      return wrong("the tenants of uid ", uid, " are miscounted");
    }
  }
  for (const auto& [name, tenant] : state.tenants) {
    const auto found = lasting_of.find(tenant.get());
    if (tenant->lasting != (found == lasting_of.end() ? 0 : found->second)) {
      return wrong("tenant ", name, " miscounts the lasting tenants under it");
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
