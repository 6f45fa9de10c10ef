// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/own_tenants.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/commands/caution.h"
#include "client/cli/commands/output.h"
#include "client/cli/commands/worker_session.h"
#include "client/cli/effects/effects.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/printable.h"
#include "client/cli/views/device_list.h"
#include "client/cli/views/views.h"
#include "client/session/session.h"
#include "client/session/tenants/own_tenants.h"

namespace gpumem::cli {
namespace {

using internal::OwnTenants;
using internal::Session;

// How often `tenant end --wait` looks whether it is gone.
constexpr absl::Duration kLookForEnd = absl::Milliseconds(100);

// Returns the tenant above one whose whole name is given; empty: the caller's, for a short name.
std::string ParentOf(absl::string_view name) {
  const size_t end = name.rfind(':');
  return end == absl::string_view::npos ? "" : std::string(name.substr(0, end));
}

absl::StatusOr<v1::ListTenantsResponse> ListOwn(Session& session) {
  auto response = OwnTenants(&session).List(session.Deadline({}));
  if (!response.ok()) return response.status();
  v1::ListTenantsResponse tenants;
  *tenants.mutable_tenants() = std::move(*response->mutable_tenants());
  return tenants;
}

// Finds a tenant by its whole name, or by the short one that it was made with. NOT_FOUND: none.
absl::StatusOr<v1::TenantInfo> FindOwn(Session& session, const std::string& name) {
  absl::StatusOr<v1::ListTenantsResponse> tenants = ListOwn(session);
  if (!tenants.ok()) return tenants.status();
  const std::string& own = session.welcome().tenant();
  for (v1::TenantInfo& tenant : *tenants->mutable_tenants()) {
    // Under a tenant that a session has made, names have no uid.
    const std::string uid =
        ParentOf(own).empty() ? absl::StrCat(tenant.made().uid(), ".") : std::string();
    const std::string& whole = tenant.usage().tenant();
    if (whole == name || whole == absl::StrCat(own, ":", uid, name)) return std::move(tenant);
  }
  return absl::NotFoundError(absl::StrCat("you have made no tenant ", Printable(name), " under ",
                                          Printable(own), " (see gpumemctl tenant list)"));
}

// Replaces the devices that the user named by their UUIDs.
absl::Status ResolveOwnDevices(const Session& session, v1::Quota* quota) {
  const auto& known = session.welcome().devices();
  const DeviceList devices(known.begin(), known.end());
  const auto resolve = [&](std::string* device) -> absl::Status {
    absl::StatusOr<std::string> uuid = ResolveDevice(devices, *device);
    if (!uuid.ok()) return uuid.status();
    *device = *std::move(uuid);
    return absl::OkStatus();
  };
  for (v1::DeviceLimit& limit : *quota->mutable_devices()) {
    if (auto status = resolve(limit.mutable_device_uuid()); !status.ok()) return status;
  }
  for (v1::DeviceGuarantee& guarantee : *quota->mutable_guarantees()) {
    if (auto status = resolve(guarantee.mutable_device_uuid()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void PrintOwn(const Session& session, const v1::TenantInfo& tenant, const GlobalOptions& options) {
  if (options.json) return Print(Document(ToJson(tenant)));
  v1::GetQuotaResponse quota;
  *quota.mutable_quota() = tenant.quota();
  *quota.mutable_usage() = tenant.usage();
  const auto& devices = session.welcome().devices();
  Print(QuotaView(quota, {devices.begin(), devices.end()}, options.exact, LayoutFor(options)));
}

absl::Status CheckNoOwner(bool has_owner) {
  if (!has_owner) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--owner is for operators: a tenant under your own is marked with your uid");
}

}  // namespace

absl::Status RunOwn(const TenantListCommand&, const GlobalOptions& options) {
  auto session = ConnectAsWorker(options, "");
  if (!session.ok()) return session.status();
  absl::StatusOr<v1::ListTenantsResponse> tenants = ListOwn(**session);
  if (!tenants.ok()) return tenants.status();
  if (options.json) {
    Print(Document(ToJson(*tenants)));
  } else if (tenants->tenants().empty()) {
    Print(absl::StrCat("You have made no tenants under ", Printable((*session)->welcome().tenant()),
                       ".\n"));
  } else {
    Print(MadeTenantsView(*tenants, options.exact, LayoutFor(options)));
  }
  return absl::OkStatus();
}

absl::Status RunOwn(const TenantCreateCommand& command, const GlobalOptions& options) {
  const v1::CreateTenantRequest& asked = command.request;
  if (auto status = CheckNoOwner(!asked.owner().empty()); !status.ok()) return status;
  auto session = ConnectAsWorker(options, asked.parent());
  if (!session.ok()) return session.status();
  v1::CreateChildTenantRequest request;
  request.set_name(asked.tenant());
  request.set_lasting(true);
  *request.mutable_quota() = asked.quota();
  if (auto status = ResolveOwnDevices(**session, request.mutable_quota()); !status.ok())
    return status;
  auto made = OwnTenants(session->get()).Create(request, (*session)->Deadline({}));
  if (!made.ok()) return made.status();
  absl::StatusOr<v1::TenantInfo> tenant = FindOwn(**session, made->tenant());
  if (!tenant.ok()) return tenant.status();
  PrintOwn(**session, *tenant, options);
  if (!options.json) {
    const std::string name = Printable(made->tenant());
    Print(absl::StrCat("\nPrograms begin in it with GPUMEM_TENANT=", name,
                       "\nIt lasts until: gpumemctl tenant end ", name, "\n"));
  }
  return absl::OkStatus();
}

absl::Status RunOwn(const TenantUpdateCommand& command, const GlobalOptions& options) {
  const v1::UpdateTenantRequest& asked = command.request;
  if (auto status = CheckNoOwner(asked.has_owner()); !status.ok()) return status;
  auto session = ConnectAsWorker(options, ParentOf(asked.tenant()));
  if (!session.ok()) return session.status();
  absl::StatusOr<v1::TenantInfo> tenant = FindOwn(**session, asked.tenant());
  if (!tenant.ok()) return tenant.status();
  v1::UpdateChildTenantRequest request;
  request.set_tenant(tenant->usage().tenant());
  *request.mutable_quota() = asked.quota();
  *request.mutable_clear() = asked.clear();
  if (auto status = ResolveOwnDevices(**session, request.mutable_quota()); !status.ok())
    return status;
  auto changed = OwnTenants(session->get()).Update(request, (*session)->Deadline({}));
  if (!changed.ok()) return changed.status();
  tenant = FindOwn(**session, changed->tenant());
  if (!tenant.ok()) return tenant.status();
  PrintOwn(**session, *tenant, options);
  return absl::OkStatus();
}

absl::Status RunOwn(const TenantEndCommand& command, const GlobalOptions& options) {
  const v1::EndTenantRequest& asked = command.request;
  if (auto status = CheckNoOwner(asked.has_owner()); !status.ok()) return status;
  auto session = ConnectAsWorker(options, ParentOf(asked.tenant()));
  if (!session.ok()) return session.status();
  absl::StatusOr<v1::TenantInfo> tenant = FindOwn(**session, asked.tenant());
  if (!tenant.ok()) return tenant.status();
  v1::EndTenantRequest whole;
  whole.set_tenant(tenant->usage().tenant());
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    v1::ListTenantsResponse tenants;
    *tenants.add_tenants() = *tenant;
    absl::StatusOr<Effects> ends = TenantEndEffects(whole, tenants, options.exact);
    if (ends.ok()) ends->takes = tenant->usage().sessions() > 0;
    return ends;
  };
  absl::StatusOr<bool> proceed = Proceed(command.caution, "tenant end", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  v1::EndChildTenantRequest request;
  request.set_tenant(whole.tenant());
  const absl::Time deadline = absl::Now() + absl::Milliseconds(asked.wait_ms());
  absl::StatusOr<v1::EndTenantResponse> held;
  while (true) {
    held = OwnTenants(session->get()).End(request, (*session)->Deadline({}));
    if (absl::IsNotFound(held.status())) {  // it is gone
      held = v1::EndTenantResponse();
      held->set_gone(true);
    }
    if (!held.ok()) return held.status();
    if (held->gone() || absl::Now() >= deadline) break;
    absl::SleepFor(kLookForEnd);
  }
  Print(options.json ? Document(ToJson(*held))
                     : EndedTenantView(whole.tenant(), *held, options.exact));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
