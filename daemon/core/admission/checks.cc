// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/checks.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/core/admission/refusals.h"

namespace gpumemd {
namespace {

using Session = records::Session;
using Tenant = records::Tenant;

}  // namespace

absl::Status CheckSessionCount(const LedgerState& state, Tenant& tenant, uid_t uid,
                               std::optional<SessionId> predecessor) {
  const uint32_t replaced = predecessor ? 1 : 0;
  const bool of_same_user = predecessor && state.sessions.at(*predecessor)->details.peer.uid == uid;
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    const uint64_t limit = each->quota.max_sessions.value_or(UINT32_MAX);
    const uint64_t used = each->tree_sessions - replaced;
    if (used < limit) continue;
    return DenyCount(tenant, Denial::Cause::kMaxSessions, 1, used, limit,
                     "close sessions that are not needed (gpumemctl ps lists them)", each);
  }
  const auto own = state.sessions_of_uid.find(uid);
  const uint64_t of_user =
      own == state.sessions_of_uid.end() ? 0 : own->second - (of_same_user ? 1 : 0);
  if (of_user >= state.bounds.max_sessions_per_uid) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_user,
                     state.bounds.max_sessions_per_uid,
                     "the user is at the limit of sessions (daemon.max_sessions_per_uid); close "
                     "those that are not needed");
  }
  const uint64_t of_all = state.sessions.size() - replaced;
  if (of_all >= state.bounds.max_sessions) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_all, state.bounds.max_sessions,
                     "the daemon is at its limit of sessions (daemon.max_sessions)");
  }
  if (of_user > 0 && of_all + state.bounds.reserved_sessions >= state.bounds.max_sessions) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_all,
                     state.bounds.max_sessions - state.bounds.reserved_sessions,
                     "the last of the daemon's sessions (daemon.max_sessions) are reserved for "
                     "users without a session");
  }
  return absl::OkStatus();
}

absl::Status CheckInFlight(Tenant& tenant) {
  const uint64_t limit = tenant.quota.max_in_flight.value_or(UINT32_MAX);
  if (tenant.in_flight < limit) return absl::OkStatus();
  return DenyCount(tenant, Denial::Cause::kMaxInFlight, 1, tenant.in_flight, limit,
                   "wait for an answer before the next call, or put more segments into one call");
}

absl::Status CheckLeaseCount(const LedgerState& state, Session& session, size_t more) {
  struct Limit {
    absl::string_view of;
    uint64_t used;
    uint32_t limit;
  };
  const Limit limits[] = {
      {"the session", session.leases.size() + session.arriving,
       state.bounds.max_leases_per_session},
      {"the tenant", session.tenant->leases, state.bounds.max_leases_per_tenant},
      {"the daemon", state.lease_count, state.bounds.max_leases},
  };
  for (const Limit& limit : limits) {
    if (limit.used + more <= limit.limit) continue;
    return DenyCount(*session.tenant, Denial::Cause::kDaemonLimit, more, limit.used, limit.limit,
                     absl::StrCat(limit.of,
                                  " is at its limit of leases; release those that are not needed, "
                                  "and open a segment once in each process"));
  }
  return absl::OkStatus();
}

absl::Status CheckWaiting(const LedgerState& state, Tenant& tenant) {
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    const uint64_t limit = each->quota.max_waiting.value_or(UINT32_MAX);
    if (each->tree_waiting < limit) continue;
    return DenyCount(tenant, Denial::Cause::kMaxWaiting, 1, each->tree_waiting, limit,
                     "wait until one of them is served, or ask for more in one call", each);
  }
  const uint64_t of_all = state.waiters.size() + state.attach_waiters.size();
  if (of_all < state.bounds.max_waiting) return absl::OkStatus();
  return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_all, state.bounds.max_waiting,
                   "too many requests wait; try again later");
}

absl::Status CheckLeaseType(const LedgerState& state, const Session& session, bool revocable) {
  if (revocable && !session.details.certain) {
    return absl::FailedPreconditionError(
        "a process that has just started cannot hold revocable leases: on a kernel older than 6.5 "
        "the daemon cannot confirm which process to end; connect again after a second");
  }
  auto it = state.processes.find(state.ProcessOf(session));
  if (it == state.processes.end() || it->second.revocable == revocable) return absl::OkStatus();
  return absl::FailedPreconditionError(
      revocable ? "this process holds leases that are not revocable, and would lose them if the "
                  "daemon ended it to take back revocable leases: release them, or use another "
                  "process for revocable leases"
                : "this process holds revocable leases, and may be ended to take them back: "
                  "release them, request a revocable lease, or use another process");
}

// A use on any device counts: the tenant has memory that was never granted.
absl::Status CheckUnbrokered(const LedgerState& state, Tenant& tenant, uint64_t bytes) {
  for (const UnbrokeredBytes& use : state.unbrokered) {
    if (!use.denies) continue;
    auto session = state.sessions.find(use.session);
    if (session == state.sessions.end() || session->second->tenant != &tenant) continue;
    Denial denial;
    denial.cause = Denial::Cause::kUnbrokered;
    denial.tenant = tenant.name;
    denial.device_uuid = use.device_uuid;
    denial.asked = bytes;
    denial.used = state.UnbrokeredOf(tenant, use.device_uuid);
    return Deny(tenant, denial);
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
