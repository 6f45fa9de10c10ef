// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/tenant.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/slurm/daemon.h"
#include "common/bytes.h"
#include "common/held_memory.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::slurm {
namespace {

using v1::Admin;

std::vector<std::string> DevicesOf(const v1::Quota& quota) {
  std::vector<std::string> devices;
  for (const v1::DeviceLimit& limit : quota.devices()) devices.push_back(limit.device_uuid());
  return devices;
}

// Returns what the tenant is now, if an earlier call has made it.
const v1::TenantInfo* Find(const v1::ListTenantsResponse& tenants, const std::string& tenant) {
  for (const v1::TenantInfo& info : tenants.tenants()) {
    if (info.usage().tenant() == tenant && info.has_made()) return &info;
  }
  return nullptr;
}

//   NOT_FOUND  there is no such tenant, or it is gone
absl::StatusOr<v1::EndTenantResponse> End(Daemon& daemon, const std::string& tenant) {
  v1::EndTenantRequest request;
  request.set_tenant(tenant);
  request.set_owner(kOwner);
  const absl::Duration left = std::max(daemon.deadline() - absl::Now(), absl::ZeroDuration());
  request.set_wait_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(left)));
  return daemon.Call(&Admin::Stub::EndTenant, request);
}

std::vector<Use> UsesIn(const v1::Usage& usage) {
  std::vector<Use> uses;
  for (const v1::DeviceUsage& device : usage.devices()) {
    if (device.peak_bytes() == 0) continue;
    uses.push_back({.device_uuid = device.device_uuid(), .peak_bytes = device.peak_bytes()});
    if (device.has_byte_seconds()) uses.back().byte_seconds = device.byte_seconds();
  }
  return uses;
}

// Returns the figures at the end of a tenant that is gone; nullopt: the daemon does not know them.
std::optional<std::vector<Use>> UsesAtTheEnd(Daemon& daemon, const std::string& tenant) {
  v1::GetTenantUsageRequest request;
  request.set_tenant(tenant);
  const auto known = daemon.Call(&Admin::Stub::GetTenantUsage, request);
  // Older than the call; or it has restarted, and forgotten.
  if (!known.ok() || known->usages().empty() || !known->usages(0).has_ended_ms()) {
    return std::nullopt;
  }
  std::vector<Use> uses;
  for (const v1::TenantDeviceUsage& device : known->usages(0).devices()) {
    if (device.peak_bytes() == 0) continue;
    uses.push_back({.device_uuid = device.device_uuid(),
                    .peak_bytes = device.peak_bytes(),
                    .byte_seconds = device.byte_seconds()});
  }
  return uses;
}

std::string Report(const v1::EndTenantResponse& held, const v1::ListSessionsResponse& sessions) {
  std::map<int32_t, std::string> commands;
  for (const v1::SessionInfo& session : sessions.sessions()) {
    commands[session.pid()] = session.command();
  }
  return HeldInWords(held, commands);
}

}  // namespace

absl::StatusOr<std::vector<v1::Device>> Devices(const Node& node) {
  Daemon daemon(node);
  auto status = daemon.Call(&Admin::Stub::GetStatus, v1::GetStatusRequest());
  if (!status.ok()) return status.status();
  return std::vector<v1::Device>(status->devices().begin(), status->devices().end());
}

absl::StatusOr<std::vector<std::string>> MakeTenant(const Node& node, const std::string& tenant,
                                                    const JobGres& gres, const Terms& terms,
                                                    std::optional<uid_t> user) {
  Daemon daemon(node);
  auto status = daemon.Call(&Admin::Stub::GetStatus, v1::GetStatusRequest());
  if (!status.ok()) return status.status();
  const std::vector<v1::Device> gpus =
      Gpus(std::vector<v1::Device>(status->devices().begin(), status->devices().end()));
  auto tenants = daemon.Call(&Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!tenants.ok()) return tenants.status();

  const v1::TenantInfo* const known = Find(*tenants, tenant);
  if (known != nullptr && known->made().owner() != kOwner) {
    return absl::AlreadyExistsError(absl::StrCat("tenant ", tenant, " is not Slurm's"));
  }
  const auto quotas = Quotas(gres, terms, gpus, *tenants);
  if (!quotas.ok()) return quotas.status();
  const auto create = [&](const v1::Quota& quota) {
    v1::CreateTenantRequest request;
    request.set_tenant(tenant);
    request.set_owner(kOwner);
    request.set_parent(node.parent);
    *request.mutable_quota() = quota;
    if (user) request.set_user(*user);
    return daemon.Call(&Admin::Stub::CreateTenant, request).status();
  };
  if (known != nullptr) {
    for (const v1::Quota& quota : *quotas) {
      // ALREADY_EXISTS: it has another quota than this.
      const bool is_there =
          !known->made().ending() && DevicesOf(quota) == DevicesOf(known->quota());
      if (is_there && create(quota).ok()) return DevicesOf(quota);
    }
    // The job was here before (requeue), perhaps with another size, and something of it has stayed.
    auto ended = End(daemon, tenant);
    if (!ended.ok() && !absl::IsNotFound(ended.status())) return ended.status();
    if (ended.ok() && !ended->gone()) {
      return absl::AlreadyExistsError(
          absl::StrCat("tenant ", tenant, " has not ended: ", HeldInWords(*ended)));
    }
  }

  // Slurm counts the node's memory, and may start a job that is in no one GPU's.
  const bool may_be_scattered = gres.gpus.empty() && gpus.size() > 1;
  absl::Status refused;
  for (const v1::Quota& quota : *quotas) {
    refused = create(quota);
    if (refused.ok()) return DevicesOf(quota);
    if (!absl::IsFailedPrecondition(refused)) break;  // not for want of room on that GPU
  }
  if (absl::IsFailedPrecondition(refused) && may_be_scattered) {
    return absl::AbortedError(
        absl::StrCat("no one GPU of this node has ", FormatBytes(gres.mib * kMiB), " free now"));
  }
  return refused;
}

absl::Status UnsetGuarantees(Daemon& daemon, const std::string& tenant) {
  v1::UnsetQuotaRequest request;
  request.set_tenant(tenant);
  request.add_fields("guarantees");
  return daemon.Call(&Admin::Stub::UnsetQuota, request).status();
}

absl::StatusOr<std::vector<Use>> UsesOf(const Node& node, const std::string& tenant) {
  Daemon daemon(node);
  v1::GetQuotaRequest request;
  request.set_tenant(tenant);
  const auto quota = daemon.Call(&Admin::Stub::GetQuota, request);
  if (!quota.ok()) return quota.status();
  return UsesIn(quota->usage());
}

absl::StatusOr<Ended> EndTenant(const Node& node, const std::string& tenant) {
  Daemon daemon(node);
  const auto tenants = daemon.Call(&Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!tenants.ok()) return tenants.status();
  const v1::TenantInfo* const known = Find(*tenants, tenant);
  if (known == nullptr || known->made().owner() != kOwner) return Ended();
  auto ended = End(daemon, tenant);
  if (absl::IsNotFound(ended.status())) return Ended();
  if (!ended.ok()) return ended.status();
  Ended result = {.existed = true, .uses = UsesIn(known->usage())};
  if (ended->gone()) {
    (void)UnsetGuarantees(daemon, tenant);
    if (auto uses = UsesAtTheEnd(daemon, tenant)) result.uses = *std::move(uses);
    return result;
  }
  v1::ListSessionsRequest request;
  request.set_tenant(tenant);
  auto sessions = daemon.Call(&Admin::Stub::ListSessions, request);
  result.left = Report(*ended, sessions.ok() ? *sessions : v1::ListSessionsResponse());
  return result;
}

}  // namespace gpumem::slurm
