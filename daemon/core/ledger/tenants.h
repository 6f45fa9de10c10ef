// SPDX-License-Identifier: Apache-2.0
// Tenants: their quotas, and the hierarchy of tenants.
//
// A tenant may be under another one, as a member is under its team: its usage counts against both.
// A tenant above others is configured, so it exists before they do, and for as long.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/quota/quota.h"

namespace gpumemd {

class Tenants {
 public:
  // All must outlive this.
  Tenants(LedgerBase* base, Segments* segments) : state_(base->state), segments_(*segments) {}

  // Sets the configured tenants, and the quota of tenants that rules make at run time. Takes effect
  // at once and revokes no lease. `overridden`: an operator's quotas for tenants, configured or
  // not. They take precedence over the configuration, and these tenants exist once this returns.
  void Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                 const std::map<std::string, Quota>& overridden = {});

  // Check a quota that an operator wants to set (quotas.cc). The caller sets it afterwards.
  //   NOT_FOUND            no such device
  //   INVALID_ARGUMENT     a limit or guarantee for the pinned memory as if it were a device, or
  //                        the quota contradicts itself
  //   FAILED_PRECONDITION  with it, guarantees could not all be kept
  absl::Status CheckDevices(const Quota& quota) const;
  absl::Status CheckQuota(absl::string_view tenant, const Quota& quota) const;
  // Sets a checked quota. Makes the tenant if there is none.
  void OverrideQuota(absl::string_view tenant, const Quota& quota);
  // Ends the effect of OverrideQuota: sets `quota`, the configuration's. Returns the tenant, which
  // may already be forgotten.
  //   NOT_FOUND  no such tenant
  absl::StatusOr<TenantView> UnsetQuota(absl::string_view tenant, const Quota& quota);

  // Returns the tenant of this name. Makes it if there is none.
  records::Tenant& Ensure(absl::string_view name);
  // Removes a tenant that is not configured and has nothing. May delete `tenant`.
  void ForgetIfIdle(records::Tenant& tenant);

  // Counts a request that began (1) or ended (-1) to wait.
  static void CountWaiting(records::Tenant& tenant, int change);

 private:
  using Tenant = records::Tenant;

  void ApplyQuota(Tenant& tenant, const Quota& quota);
  // Gives the tenant's charges in RevocableCharges the rank of its present priority.
  void RankCharges(const Tenant& tenant);
  // Puts the tenant under the one that its quota names.
  void Link(Tenant& tenant);
  void PutUnder(Tenant& tenant, Tenant* parent);

  LedgerState& state_;
  Segments& segments_;
};

}  // namespace gpumemd
