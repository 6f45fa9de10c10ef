// SPDX-License-Identifier: Apache-2.0
// Tenants that sessions make: how many, whose they are, and their end with the session.
#include <algorithm>
#include <string>
#include <vector>

#include "daemon/core/admission/refusals.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/ledger/made/made_tenants.h"

namespace gpumemd {

absl::Status MadeTenants::CheckCounts(Tenant& parent, uid_t uid, bool lasting) const {
  const Bounds& most = state_.bounds;
  const auto found = state_.made_of_uid.find(uid);
  static const LedgerState::MadeOfUid kNone;
  const LedgerState::MadeOfUid& of_uid = found == state_.made_of_uid.end() ? kNone : found->second;
  const auto deny = [&](size_t used, uint32_t limit, absl::string_view why) {
    return DenyCount(parent, Denial::Cause::kDaemonLimit, 1, used, limit, why);
  };
  if (of_uid.ids.size() >= most.max_made_per_uid) {
    return deny(of_uid.ids.size(), most.max_made_per_uid,
                "the user is at the limit of tenants made by sessions; end those that are not "
                "needed");
  }
  if (state_.made_by_sessions >= most.max_made_by_sessions) {
    return deny(state_.made_by_sessions, most.max_made_by_sessions,
                "the daemon is at its limit of tenants made by sessions; try again later");
  }
  if (state_.made_tenants >= most.max_made_tenants) {
    return deny(state_.made_tenants, most.max_made_tenants,
                "the daemon is at its limit of tenants made at run time; try again later");
  }
  if (!lasting) return absl::OkStatus();
  if (of_uid.lasting >= most.max_lasting_per_uid) {
    return deny(
        of_uid.lasting, most.max_lasting_per_uid,
        "the user is at the limit of lasting tenants; end those that are not needed "
        "(gpumemctl tenant list), or ask an operator to end those of tenants that are gone");
  }
  if (parent.books->lasting >= most.max_lasting_per_tenant) {
    return deny(parent.books->lasting, most.max_lasting_per_tenant,
                "the tenant's users are at the limit of lasting tenants; end those that are not "
                "needed");
  }
  if (state_.lasting_tenants >= most.max_lasting) {
    return deny(state_.lasting_tenants, most.max_lasting,
                "the daemon is at its limit of lasting tenants; ask an operator to end some");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> MadeTenants::ListChildren(SessionId id) const {
  absl::StatusOr<Session*> session = state_.LiveSession(id);
  if (!session.ok()) return session.status();
  std::vector<std::string> names;
  const auto of_uid = state_.made_of_uid.find((*session)->details.peer.uid);
  if (of_uid == state_.made_of_uid.end()) return names;
  for (const MadeTenantId made : of_uid->second.ids) {
    const Tenant& tenant = *state_.made_by_id.at(made);
    if (&tenant != (*session)->tenant && state_.IsUnder(tenant, *(*session)->tenant)) {
      names.push_back(tenant.name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void MadeTenants::EndOf(SessionId id, Session& session) {
  while (!session.made_tenants.empty()) {
    const std::string name = *session.made_tenants.begin();
    session.made_tenants.erase(session.made_tenants.begin());
    // One under another one ends with it.
    Tenant* tenant = state_.FindTenant(name);
    if (tenant == nullptr || !tenant->made) continue;
    EndTree(*tenant, {.session = id, .why = "the session that made it has ended"});
  }
}

// --- Who may begin in a tenant ---------------------------------------------------------

std::optional<std::string> MadeTenants::RuledBy(absl::string_view name, uid_t uid) const {
  const Tenant* tenant = state_.FindTenant(name);
  if (tenant == nullptr || !tenant->made || !tenant->made->by_session()) return std::nullopt;
  while (tenant->made && tenant->made->by_session()) {
    if (tenant->made->uid != uid || tenant->parent == nullptr) return std::nullopt;
    tenant = tenant->parent;
  }
  return tenant->name;
}

bool MadeTenants::IsMadeByOperator(absl::string_view name) const {
  const Tenant* tenant = state_.FindTenant(name);
  return tenant != nullptr && tenant->made && !tenant->made->by_session();
}

}  // namespace gpumemd
