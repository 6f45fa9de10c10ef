// SPDX-License-Identifier: Apache-2.0
#include "client/cli/effects/session_effects.h"

#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"

namespace gpumem::cli {
namespace {

// The words for what a session is asked.
struct Asked {
  absl::string_view verb, state;
  absl::string_view until;  // what it does until it is asked to come back; empty: it is asked that
};

Asked AskedBy(SessionMove move) {
  switch (move) {
    case SessionMove::kSuspend:
      return {"suspend", "suspended", "it stops its use of that memory until gpumemctl resume"};
    case SessionMove::kResume:
      return {"resume", "suspended", ""};
    case SessionMove::kDemote:
      return {"demote", "demoted", "it reads that memory over PCIe until gpumemctl promote"};
    case SessionMove::kPromote:
      break;
  }
  return {"promote", "demoted", ""};
}

std::string LineOf(const Asked& asked, absl::string_view tag, const v1::SessionInfo& session,
                   bool exact) {
  const std::string tagged = tag.empty() ? "" : absl::StrCat(" with tag ", tag);
  const std::string who = absl::StrCat("session ", session.session_id(), " (tenant ",
                                       session.tenant(), ", pid ", session.pid(), ") is asked to ");
  if (asked.until.empty()) {
    return absl::StrCat(who, "bring its ", asked.state, " memory", tagged, " back");
  }
  return absl::StrCat(who, asked.verb, " what can be ", asked.state, tagged, " of ",
                      Counted(session.leases(), "lease"), ", ",
                      Size(session.leased_bytes(), exact));
}

bool HasMemoryFor(SessionMove move, const v1::SessionInfo& session) {
  switch (move) {
    case SessionMove::kSuspend:
    case SessionMove::kDemote:
      return session.leased_bytes() > session.suspended_bytes() + session.demoted_bytes();
    case SessionMove::kResume:
      // Dropped scratch memory is in no tier, so a session that serves is asked.
      return session.suspended_bytes() > 0 || session.serves_suspension();
    case SessionMove::kPromote:
      break;
  }
  return session.demoted_bytes() > 0;
}

}  // namespace

absl::string_view NameOf(SessionMove move) { return AskedBy(move).verb; }

absl::StatusOr<Effects> SessionMoveEffects(SessionMove move, uint64_t session,
                                           absl::string_view tag,
                                           const v1::ListSessionsResponse& sessions, bool exact) {
  for (const v1::SessionInfo& each : sessions.sessions()) {
    if (each.session_id() == session && each.state() != v1::SessionInfo::STATE_LINGERING) {
      return SessionsMoveEffects(move, tag, {each}, exact);
    }
  }
  return absl::NotFoundError(
      absl::StrCat("there is no live session ", session, " (see gpumemctl ps)"));
}

absl::StatusOr<std::vector<v1::SessionInfo>> SessionsToMove(
    SessionMove move, absl::string_view tenant, const v1::ListTenantsResponse& tenants,
    const v1::ListSessionsResponse& sessions) {
  std::map<std::string, std::string> parents;
  for (const v1::TenantInfo& each : tenants.tenants()) {
    parents[each.usage().tenant()] = each.quota().parent();
  }
  if (!parents.contains(std::string(tenant))) {
    return absl::NotFoundError(
        absl::StrCat("there is no tenant ", tenant, " (see gpumemctl quota list)"));
  }
  const auto is_below = [&](std::string name) {
    std::set<std::string> seen;  // whatever the list says, this ends
    while (name != tenant) {
      const auto found = parents.find(name);
      if (found == parents.end() || !seen.insert(name).second) return false;
      name = found->second;
    }
    return true;
  };
  std::vector<v1::SessionInfo> all;
  for (const v1::SessionInfo& each : sessions.sessions()) {
    if (each.state() == v1::SessionInfo::STATE_LINGERING) continue;
    if (is_below(each.tenant()) && HasMemoryFor(move, each)) all.push_back(each);
  }
  return all;
}

Effects SessionsMoveEffects(SessionMove move, absl::string_view tag,
                            const std::vector<v1::SessionInfo>& sessions, bool exact) {
  const Asked asked = AskedBy(move);
  Effects effects;
  for (const v1::SessionInfo& each : sessions) {
    effects.lines.push_back(LineOf(asked, tag, each, exact));
  }
  if (sessions.empty() || asked.until.empty()) return effects;
  effects.takes = true;
  effects.lines.emplace_back(asked.until);
  if (sessions.size() > 1) {
    effects.lines.back().replace(0, 2, "each");
  }
  return effects;
}

}  // namespace gpumem::cli
