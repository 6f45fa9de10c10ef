// Checks whether a request is valid, and the bounds on counts. Whether there is room for it:
// room.cc.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd {
namespace {

std::string KindNames(const std::vector<Kind>& kinds) {
  return absl::StrJoin(kinds, ", ",
                       [](std::string* out, Kind kind) { absl::StrAppend(out, KindName(kind)); });
}

}  // namespace

absl::Status Ledger::Draining() {
  return absl::UnavailableError(
      "the daemon is draining: it admits nothing new; what is held stays held");
}

absl::Status Ledger::Deny(Tenant& tenant, const Denial& denial) {
  ++tenant.denials[denial.cause];
  return DenialError(denial);
}

void Ledger::HideHolders(SessionId session, HoldersShown shown, Denial& denial) const {
  if (shown == HoldersShown::kAll) return;
  auto asks = state_.sessions.find(session);
  const Tenant* tree = asks == state_.sessions.end() ? nullptr : TreeOf(*asks->second->tenant);
  const auto hidden = [&](const Denial::Holder& holder) {
    const Tenant* tenant = state_.FindTenant(holder.tenant);
    return shown == HoldersShown::kNone || tenant == nullptr || TreeOf(*tenant) != tree;
  };
  auto& holders = denial.holders;
  holders.erase(std::remove_if(holders.begin(), holders.end(), hidden), holders.end());
}

absl::Status Ledger::DenyCount(Tenant& tenant, Denial::Cause cause, uint64_t asked, uint64_t used,
                               uint64_t limit, absl::string_view help, const Tenant* limited) {
  Denial denial;
  if (limited != nullptr && limited != &tenant) denial.limited_tenant = limited->name;
  denial.cause = cause;
  denial.tenant = tenant.name;
  denial.asked = asked;
  denial.used = used;
  denial.limit = limit;
  denial.help = std::string(help);
  return Deny(tenant, denial);
}

bool Ledger::Makes(size_t device, Kind kind) const {
  const std::vector<Kind>& kinds = state_.devices[device].kinds;
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

absl::Status Ledger::DoesNotMake(size_t device, Kind kind) const {
  std::string help = absl::StrCat("it makes ", KindNames(state_.devices[device].kinds));
  for (size_t other = 0; other < state_.devices.size(); ++other) {
    if (!Makes(other, kind)) continue;
    absl::StrAppend(&help, "; ", state_.devices[other].uuid, " makes that kind");
    break;
  }
  return absl::UnimplementedError(absl::StrCat("device ", state_.devices[device].uuid,
                                               " does not make segments of kind ", KindName(kind),
                                               "; ", help));
}

// Returns the kind that a request names, or that the tenant prefers, or the device's default. A
// tenant's preference is meant for GPUs: host memory has one kind.
Kind Ledger::KindOf(const Tenant& tenant, const AcquireSpec& spec, size_t device) const {
  if (spec.kind) return *spec.kind;
  if (tenant.quota.kind && !IsPinnedMemory(state_.devices[device])) return *tenant.quota.kind;
  return state_.devices[device].kinds.front();
}

// Returns the device that a request names or implies.
absl::StatusOr<size_t> Ledger::ChooseDevice(const Tenant& tenant, const AcquireSpec& spec) const {
  if (state_.devices.empty()) return absl::NotFoundError("this node has no device");
  if (!spec.device_uuid.empty()) {
    if (spec.most_free) {
      return absl::InvalidArgumentError(
          "a request names a device or asks for the one with most free memory, not both");
    }
    absl::StatusOr<size_t> device = state_.FindDevice(spec.device_uuid);
    if (device.ok() && !Makes(*device, KindOf(tenant, spec, *device))) {
      return DoesNotMake(*device, KindOf(tenant, spec, *device));
    }
    return device;
  }
  for (const std::string& uuid : spec.among) {
    if (absl::StatusOr<size_t> device = state_.FindDevice(uuid); !device.ok()) return device;
  }
  const Kind kind = KindOf(tenant, spec, 0);
  std::optional<size_t> chosen;
  for (size_t device = 0; device < state_.devices.size(); ++device) {
    if (!Makes(device, kind)) continue;
    const bool among = std::find(spec.among.begin(), spec.among.end(),
                                 state_.devices[device].uuid) != spec.among.end();
    if (spec.most_free && !spec.among.empty() && !among) continue;
    if (!chosen ||
        (spec.most_free && room_.Obtainable(tenant, device) > room_.Obtainable(tenant, *chosen))) {
      chosen = device;
    }
  }
  if (!chosen)
    return DoesNotMake(
        *state_.FindDevice(spec.among.empty() ? state_.devices[0].uuid : spec.among[0]), kind);
  return *chosen;
}

absl::StatusOr<Ledger::AcquireTerms> Ledger::CheckSpec(const Tenant& tenant,
                                                       const AcquireSpec& spec) const {
  AcquireTerms terms;
  absl::StatusOr<size_t> device = ChooseDevice(tenant, spec);
  if (!device.ok()) return device.status();
  terms.device = *device;
  const DeviceInfo& info = state_.devices[terms.device];
  terms.kind = KindOf(tenant, spec, terms.device);
  if (!TraitsOf(terms.kind).revocable && (spec.revocable || tenant.quota.revocable)) {
    return absl::UnimplementedError(
        "segments of kind mempool cannot be revocable: CUDA keeps their memory until every process "
        "that has used the tenant's pool has ended; use kind vmm");
  }
  if (spec.count < 1 || spec.count > kMaxSegmentsPerCall) {
    return absl::InvalidArgumentError(absl::StrCat("one Acquire makes 1 to ", kMaxSegmentsPerCall,
                                                   " segments; this asks for ", spec.count));
  }
  if (spec.bytes == 0) {
    return absl::InvalidArgumentError(
        "a segment of 0 bytes cannot be acquired; ask for at least 1");
  }
  if (spec.bytes > info.capacity_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a segment of ", spec.bytes,
                                                   " bytes is more than device ", info.uuid,
                                                   " has (", info.capacity_bytes, " bytes)"));
  }
  absl::StatusOr<uint64_t> rounded = gpumem::RoundUp(spec.bytes, GranularityOf(info, terms.kind));
  if (!rounded.ok()) return rounded.status();
  terms.bytes = *rounded;
  return terms;
}

absl::Status Ledger::CheckSessionCount(Tenant& tenant, uid_t uid,
                                       std::optional<SessionId> predecessor) {
  const uint32_t replaced = predecessor ? 1 : 0;
  const bool of_same_user =
      predecessor && state_.sessions.at(*predecessor)->details.peer.uid == uid;
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    const uint64_t limit = each->quota.max_sessions.value_or(UINT32_MAX);
    const uint64_t used = each->tree_sessions - replaced;
    if (used < limit) continue;
    return DenyCount(tenant, Denial::Cause::kMaxSessions, 1, used, limit,
                     "close sessions that are not needed (gpumemctl ps lists them)", each);
  }
  const auto own = state_.sessions_of_uid.find(uid);
  const uint64_t of_user =
      own == state_.sessions_of_uid.end() ? 0 : own->second - (of_same_user ? 1 : 0);
  if (of_user >= state_.bounds.max_sessions_per_uid) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_user,
                     state_.bounds.max_sessions_per_uid,
                     "the processes of one user have only so many sessions "
                     "(daemon.max_sessions_per_uid); close those that are not needed");
  }
  const uint64_t of_all = state_.sessions.size() - replaced;
  if (of_all >= state_.bounds.max_sessions) {
    return DenyCount(
        tenant, Denial::Cause::kDaemonLimit, 1, of_all, state_.bounds.max_sessions,
        "the daemon has as many sessions as it is configured for (daemon.max_sessions)");
  }
  if (of_user > 0 && of_all + state_.bounds.reserved_sessions >= state_.bounds.max_sessions) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_all,
                     state_.bounds.max_sessions - state_.bounds.reserved_sessions,
                     "the last of the daemon's sessions (daemon.max_sessions) are for users who "
                     "have none");
  }
  return absl::OkStatus();
}

absl::Status Ledger::CheckRoomForSession(absl::string_view name, const SessionDetails& details) {
  if (state_.draining) return Draining();
  const ProcessKey process = {details.peer.pid, details.peer.start_time};
  // That session ends as the new one begins.
  if (begun_before_.contains({process, details.connect_id})) return absl::OkStatus();
  Tenant& tenant = EnsureTenant(name);
  absl::Status room =
      CheckSessionCount(tenant, details.peer.uid, Predecessor(tenant, details.peer));
  ForgetIfIdle(tenant);
  return room;
}

absl::Status Ledger::CheckInFlight(Tenant& tenant) {
  const uint64_t limit = tenant.quota.max_in_flight.value_or(UINT32_MAX);
  if (tenant.in_flight < limit) return absl::OkStatus();
  return DenyCount(tenant, Denial::Cause::kMaxInFlight, 1, tenant.in_flight, limit,
                   "wait for an answer before the next call, or put more segments into one call");
}

absl::Status Ledger::CheckLeaseCount(Session& session, size_t more) {
  struct Limit {
    absl::string_view of;
    uint64_t used;
    uint32_t limit;
  };
  const Limit limits[] = {
      {"a session holds", session.leases.size() + session.arriving,
       state_.bounds.max_leases_per_session},
      {"a tenant holds", session.tenant->leases, state_.bounds.max_leases_per_tenant},
      {"the daemon keeps", state_.lease_count, state_.bounds.max_leases},
  };
  for (const Limit& limit : limits) {
    if (limit.used + more <= limit.limit) continue;
    return DenyCount(*session.tenant, Denial::Cause::kDaemonLimit, more, limit.used, limit.limit,
                     absl::StrCat(limit.of,
                                  " only so many leases; release those that are not "
                                  "needed, and open a segment once in each process"));
  }
  return absl::OkStatus();
}

void Ledger::CountLeases(Tenant& tenant, int64_t change) {
  tenant.leases += static_cast<uint64_t>(change);
  state_.lease_count += static_cast<uint64_t>(change);
}

bool Ledger::MakeRoomOnDevice(SessionId session, size_t device, uint64_t bytes) {
  auto it = state_.sessions.find(session);
  Tenant& tenant = *it->second->tenant;  // exists: the caller's call is in flight
  const Account& account = state_.device_accounts[device];
  while (account.bytes(SegmentState::kReleasing) < bytes) {
    if (DoomOldest(tenant, device)) continue;
    Tenant* other = RichestRetainer(device);
    if (other == nullptr) break;
    DoomOldest(*other, device);
  }
  return account.bytes(SegmentState::kReleasing) > 0;
}

absl::Status Ledger::DriverDenial(SessionId session, size_t device, uint64_t bytes,
                                  absl::string_view driver_says) {
  Tenant& tenant = *state_.sessions.at(session)->tenant;
  Denial denial;
  denial.cause = Denial::Cause::kDriver;
  denial.tenant = tenant.name;
  denial.device_uuid = state_.devices[device].uuid;
  denial.asked = bytes;
  denial.used = state_.device_accounts[device].charged();
  denial.limit = state_.devices[device].capacity_bytes;
  denial.help = absl::StrCat("the driver has no memory left for it (", driver_says,
                             "): processes that allocate past the broker may hold it "
                             "(nvidia-smi shows them)");
  return Deny(tenant, denial);
}

}  // namespace gpumemd
