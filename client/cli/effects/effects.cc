// SPDX-License-Identifier: Apache-2.0
#include "client/cli/effects/effects.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/text/format.h"
#include "client/cli/views/holdings.h"

namespace gpumem::cli {
namespace {

using PoolList = std::vector<v1::PoolInfo>;

absl::StatusOr<v1::PoolInfo> PoolOf(const std::string& uuid, const PoolList& pools) {
  for (const v1::PoolInfo& pool : pools) {
    if (uuid.empty() || pool.device_uuid() == uuid) return pool;
  }
  return absl::NotFoundError("the tenant has no pool there (see gpumemctl pool list)");
}

std::string PoolName(const v1::PoolInfo& pool, const DeviceList& devices) {
  return absl::StrCat("pool of tenant ", pool.tenant(), " on device ",
                      ShortDevice(devices, pool.device_uuid()));
}

}  // namespace

Effects DrainEffects(const v1::GetStatusResponse& status, bool resume) {
  if (status.draining() != resume) return {};
  if (resume) return {.lines = {"new sessions and requests are admitted again"}};
  return {.lines = {"no new sessions or requests are admitted",
                    absl::StrCat("present sessions keep what they hold: ",
                                 Counted(status.sessions(), "session"), ", ",
                                 Counted(status.segments(), "segment"))},
          .takes = true};
}

Effects ReloadEffects(const v1::ReloadResponse& checked) {
  return {.lines = {checked.changes().begin(), checked.changes().end()},
          .notices = {checked.notices().begin(), checked.notices().end()}};
}

absl::StatusOr<Effects> TenantEndEffects(const v1::EndTenantRequest& request,
                                         const v1::ListTenantsResponse& tenants, bool exact) {
  for (const v1::TenantInfo& tenant : tenants.tenants()) {
    const v1::Usage& usage = tenant.usage();
    if (usage.tenant() != request.tenant() || !tenant.has_made()) continue;
    if (tenant.made().ending()) return Effects{};
    if (tenant.configured()) {
      return Effects{.lines = {absl::StrCat("tenant ", usage.tenant(),
                                            " goes on as the configuration has it")}};
    }
    return Effects{
        .lines = {absl::StrCat("tenant ", usage.tenant(),
                               ", and all under it, get no new session and no new memory"),
                  absl::StrCat("it keeps what it holds until that is released: ",
                               Counted(usage.sessions(), "session"), ", ",
                               Size(usage.charged_bytes(), exact), " in ",
                               Counted(usage.segments(), "segment"))},
        .takes = true};
  }
  return absl::NotFoundError(absl::StrCat("no tenant ", request.tenant(),
                                          " was made at run time (see gpumemctl tenant list)"));
}

absl::StatusOr<Effects> TrimEffects(const v1::TrimRequest& request,
                                    const v1::ListTenantsResponse& tenants,
                                    const DeviceList& devices, bool exact) {
  Effects effects;
  bool known = request.tenant().empty();
  for (const v1::TenantInfo& tenant : tenants.tenants()) {
    known |= tenant.usage().tenant() == request.tenant();
  }
  if (!known) {
    return absl::NotFoundError(
        absl::StrCat("there is no tenant ", request.tenant(), " (see gpumemctl quota list)"));
  }
  for (const v1::Device& device : devices) {
    if (!request.device_uuid().empty() && device.device_uuid() != request.device_uuid()) continue;
    // Of each tenant without those under it, as the daemon trims.
    for (const Holding& holding : HoldingsOn(device, tenants).tenants) {
      if (!request.tenant().empty() && holding.tenant != request.tenant()) continue;
      if (holding.retained <= request.keep_bytes()) continue;
      effects.lines.push_back(absl::StrCat("tenant ", holding.tenant, " on device ",
                                           ShortDevice(devices, device.device_uuid()),
                                           ": keeps at most ", Size(request.keep_bytes(), exact),
                                           " of ", Size(holding.retained, exact), " retained"));
    }
  }
  effects.takes = !effects.lines.empty();
  return effects;
}

absl::StatusOr<Effects> SuspendPublicationEffects(const std::string& name, bool resume,
                                                  const v1::ListPublicationsResponse& publications,
                                                  bool exact) {
  for (const v1::PublicationInfo& each : publications.publications()) {
    if (absl::StrCat(each.tenant(), "/", each.name()) != name) continue;
    const std::string what = absl::StrCat(name, ", version ", each.version(), ": ");
    if (resume) {
      if (each.suspended_segments() == 0) return Effects{};
      return Effects{.lines = {absl::StrCat(what, Counted(each.suspended_segments(), "segment"),
                                            " come back from the host tier")}};
    }
    return Effects{.lines = {absl::StrCat(what, Counted(each.segments(), "segment"), ", ",
                                          Size(each.bytes(), exact), ", move to the host tier"),
                             "the next session that attaches brings them back"},
                   .takes = true};
  }
  return absl::NotFoundError(
      absl::StrCat("there is no publication ", name, " (see gpumemctl publications)"));
}

absl::StatusOr<Effects> UnpublishEffects(const std::string& name, absl::string_view own_tenant,
                                         const v1::ListPublicationsResponse& publications,
                                         bool exact) {
  const std::string full =
      absl::StrContains(name, '/') ? name : absl::StrCat(own_tenant, "/", name);
  for (const v1::PublicationInfo& each : publications.publications()) {
    if (absl::StrCat(each.tenant(), "/", each.name()) != full) continue;
    return Effects{.lines = {absl::StrCat(full, ", version ", each.version(), ", ends (",
                                          Counted(each.segments(), "segment"), ", ",
                                          Size(each.bytes(), exact), ")"),
                             absl::StrCat("attached sessions keep it: ", each.attached_sessions(),
                                          "; no session can attach to it any more")},
                   .takes = true};
  }
  return absl::NotFoundError(
      absl::StrCat("there is no publication ", full, " (see gpumemctl publications)"));
}

absl::StatusOr<Effects> PoolSetEffects(const v1::SetPoolRequest& request, const PoolList& pools,
                                       const DeviceList& devices, bool exact) {
  absl::StatusOr<v1::PoolInfo> pool = PoolOf(request.device_uuid(), pools);
  if (!pool.ok()) return pool.status();
  std::vector<std::string> changes;
  if (request.has_release_threshold_bytes()) {
    changes.push_back(
        absl::StrCat("release threshold ", Size(request.release_threshold_bytes(), exact)));
  }
  const auto add_switch = [&](bool present, bool on, const char* what) {
    if (present) changes.push_back(absl::StrCat(what, on ? " on" : " off"));
  };
  add_switch(request.has_reuse_follow_event_dependencies(),
             request.reuse_follow_event_dependencies(), "reuse by events");
  add_switch(request.has_reuse_allow_opportunistic(), request.reuse_allow_opportunistic(),
             "opportunistic reuse");
  add_switch(request.has_reuse_allow_internal_dependencies(),
             request.reuse_allow_internal_dependencies(), "reuse by internal dependencies");
  if (request.reset_peaks()) changes.emplace_back("peaks reset");
  return Effects{
      .lines = {absl::StrCat(PoolName(*pool, devices), ": ", absl::StrJoin(changes, ", "))}};
}

absl::StatusOr<Effects> PoolTrimEffects(const v1::TrimPoolRequest& request, const PoolList& pools,
                                        const DeviceList& devices, bool exact) {
  absl::StatusOr<v1::PoolInfo> pool = PoolOf(request.device_uuid(), pools);
  if (!pool.ok()) return pool.status();
  const uint64_t kept = std::max(request.keep_bytes(), pool->used_bytes());
  if (kept >= pool->reserved_bytes()) return Effects{};
  return Effects{.lines = {absl::StrCat(PoolName(*pool, devices), ": returns up to ",
                                        Size(pool->reserved_bytes() - kept, exact), " of ",
                                        Size(pool->reserved_bytes(), exact), " reserved")}};
}

}  // namespace gpumem::cli
