// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/request_checks.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/admission/room.h"
#include "daemon/core/ledger/bounds.h"

namespace gpumemd {
namespace {

using Session = records::Session;
using Tenant = records::Tenant;

std::string KindNames(const std::vector<Kind>& kinds) {
  return absl::StrJoin(kinds, ", ",
                       [](std::string* out, Kind kind) { absl::StrAppend(out, KindName(kind)); });
}

bool Makes(const LedgerState& state, size_t device, Kind kind) {
  const std::vector<Kind>& kinds = state.devices[device].kinds;
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

absl::Status DoesNotMake(const LedgerState& state, size_t device, Kind kind) {
  std::string help = absl::StrCat("it makes ", KindNames(state.devices[device].kinds));
  for (size_t other = 0; other < state.devices.size(); ++other) {
    if (!Makes(state, other, kind)) continue;
    absl::StrAppend(&help, "; ", state.devices[other].uuid, " makes that kind");
    break;
  }
  return absl::UnimplementedError(absl::StrCat("device ", state.devices[device].uuid,
                                               " does not make segments of kind ", KindName(kind),
                                               "; ", help));
}

// Returns the kind that a request names, or that the tenant prefers, or the device's default. A
// tenant's preference is meant for GPUs: host memory has one kind.
Kind KindOf(const LedgerState& state, const Tenant& tenant, const AcquireSpec& spec,
            size_t device) {
  if (spec.kind) return *spec.kind;
  if (tenant.quota.kind && !IsHostMemory(state.devices[device])) return *tenant.quota.kind;
  return state.devices[device].kinds.front();
}

// Returns the device that a request names or implies.
absl::StatusOr<size_t> ChooseDevice(const LedgerState& state, const Tenant& tenant,
                                    const AcquireSpec& spec) {
  if (state.devices.empty()) return absl::NotFoundError("this node has no device");
  if (!spec.device_uuid.empty()) {
    if (spec.most_free) {
      return absl::InvalidArgumentError(
          "name a device, or ask for the one with most free memory, not both");
    }
    absl::StatusOr<size_t> device = state.FindDevice(spec.device_uuid);
    if (device.ok() && !Makes(state, *device, KindOf(state, tenant, spec, *device))) {
      return DoesNotMake(state, *device, KindOf(state, tenant, spec, *device));
    }
    return device;
  }
  for (const std::string& uuid : spec.among) {
    if (absl::StatusOr<size_t> device = state.FindDevice(uuid); !device.ok()) return device;
  }
  const Room room(&state);
  const Kind kind = KindOf(state, tenant, spec, 0);
  std::optional<size_t> chosen;
  for (size_t device = 0; device < state.devices.size(); ++device) {
    if (!Makes(state, device, kind)) continue;
    const bool among = std::find(spec.among.begin(), spec.among.end(),
                                 state.devices[device].uuid) != spec.among.end();
    if (spec.most_free && !spec.among.empty() && !among) continue;
    if (!chosen ||
        (spec.most_free && room.Obtainable(tenant, device) > room.Obtainable(tenant, *chosen))) {
      chosen = device;
    }
  }
  if (!chosen) {
    return DoesNotMake(
        state, *state.FindDevice(spec.among.empty() ? state.devices[0].uuid : spec.among[0]), kind);
  }
  return *chosen;
}

}  // namespace

absl::Status CheckTag(absl::string_view tag) {
  const bool right = tag.size() <= kMaxTag && std::all_of(tag.begin(), tag.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
                              c == '.' || c == '-';
                     });
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a tag has at most ", kMaxTag,
                   " characters, letters, digits, '_', '.' and '-'; this is not one: \"",
                   absl::CHexEscape(tag.substr(0, 2 * kMaxTag)), "\""));
}

absl::StatusOr<AcquireTerms> CheckSpec(const LedgerState& state, const Tenant& tenant,
                                       const AcquireSpec& spec) {
  AcquireTerms terms;
  if (spec.among.size() > state.devices.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the request names ", spec.among.size(),
                                                   " devices to choose from, and this node has ",
                                                   state.devices.size()));
  }
  if (absl::Status tag = CheckTag(spec.tag); !tag.ok()) return tag;
  absl::StatusOr<size_t> device = ChooseDevice(state, tenant, spec);
  if (!device.ok()) return device.status();
  terms.device = *device;
  const DeviceInfo& info = state.devices[terms.device];
  terms.kind = KindOf(state, tenant, spec, terms.device);
  if (!IsAcquirable(TraitsOf(terms.kind))) {
    return absl::UnimplementedError(
        absl::StrCat("device ", info.uuid, " holds the contents of suspended memory: segments of ",
                     "kind ", KindName(terms.kind), " cannot be acquired"));
  }
  if (!TraitsOf(terms.kind).revocable && (spec.revocable || tenant.quota.revocable)) {
    return absl::UnimplementedError(
        "segments of kind mempool cannot be revocable: CUDA keeps their memory until every process "
        "that has used the tenant's pool has ended; use kind vmm");
  }
  if (spec.scratch && !TraitsOf(terms.kind).suspendable) {
    return absl::InvalidArgumentError(absl::StrCat(
        "scratch memory is memory whose bytes are dropped when it is suspended, and kind ",
        KindName(terms.kind), " cannot be suspended; kind ",
        gpumem::ListKinds(", ", " or ", &gpumem::KindTraits::suspendable), " can"));
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

absl::Status CheckLeaseCount(const LedgerState& state, Session& session, size_t more) {
  struct Limit {
    absl::string_view of;
    uint64_t used;
    uint32_t limit;
  };
  const Limit limits[] = {
      {"the session", session.leases.size() + session.arriving,
       state.bounds.max_leases_per_session},
      {"the tenant", session.tenant->books->leases, state.bounds.max_leases_per_tenant},
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
