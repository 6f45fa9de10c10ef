// SPDX-License-Identifier: Apache-2.0
// Tenants: their quotas, and the hierarchy of tenants.
//
// A tenant may be under another one, as a member is under its team: its usage counts against both.
// A tenant above others exists before they do, and for as long: it is configured, or was made at
// run time, or has a tenant under it that a session made (made/made_tenants.h).
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/quota/guarantees.h"
#include "daemon/core/quota/quota.h"

namespace gpumemd {

class Tenants {
 public:
  // All must outlive this.
  Tenants(LedgerBase* base, Segments* segments)
      : state_(base->state), changes_(base->changes), segments_(*segments) {}

  // Sets the configured tenants, and the quota of tenants that rules make at run time. Takes effect
  // at once and revokes no lease. `overridden`: an operator's quotas for tenants, configured or
  // not. They take precedence over the configuration, and these tenants exist once this returns.
  // Those that are made get theirs computed anew, on top of what they were made with.
  // Made tenants stay. One that is configured now follows the configuration; if it is ending, it is
  // the configuration's alone.
  void Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults,
                 const std::map<std::string, OverriddenQuota>& overridden = {});

  // Check a quota that an operator wants to set (quotas.cc). The caller sets it afterwards.
  //   NOT_FOUND            no such device
  //   INVALID_ARGUMENT     a limit or guarantee for the pinned memory as if it were a device, or
  //                        the quota contradicts itself
  //   FAILED_PRECONDITION  with it, guarantees could not all be kept
  absl::Status CheckDevices(const Quota& quota) const;
  static absl::Status CheckKind(const Quota& quota);  // INVALID_ARGUMENT: as below
  // `parent`: under which the tenant is to be; null: as now. Takes time in proportion to its levels
  // and the devices. The text of an error names other tenants, and takes time in proportion to all.
  absl::Status CheckQuota(absl::string_view tenant, const Quota& quota,
                          const records::Tenant* parent = nullptr) const;
  // The same, but the text has only the sum of other tenants' guarantees, and takes no more time.
  absl::Status CheckQuotaInBrief(absl::string_view tenant, const Quota& quota,
                                 const records::Tenant* parent = nullptr) const;
  // Sets a checked quota. Makes the tenant if there is none. The changes are kept: when a made
  // tenant's quota changes, or that of its parent, they go on top again.
  void OverrideQuota(absl::string_view tenant, const OverriddenQuota& quota);
  // Ends the effect of OverrideQuota: sets `quota`, the configuration's. Returns the tenant, which
  // may already be forgotten.
  //   NOT_FOUND  no such tenant
  absl::StatusOr<TenantView> UnsetQuota(absl::string_view tenant, const Quota& quota);

  // Returns the quota of a made tenant: the fields that it was made with, on top of its base. Its
  // base is
  //   - of one that an operator made with a parent, no limits,
  //   - of any other that an operator made, the default quota,
  //   - of one that a session made, what its parent requires of all memory.
  // One that has ended has no guarantee.
  Quota QuotaOf(const records::MadeTenant& made) const;
  // The same with the override of the made tenant on top.
  Quota MadeQuotaOf(const records::Tenant& tenant) const;
  // Sets the quota of a made tenant, with its override on top, puts it under its parent, and does
  // the same for those under it that follow it. Changes nothing if the tenant is configured.
  void ApplyMadeQuota(records::Tenant& tenant);
  // Returns the names and quotas of made tenants that the configuration does not name, as they
  // would be with these defaults.
  std::map<std::string, Quota> MadeQuotas(const Quota& defaults) const;

  // Returns OK if a session may begin in this tenant.
  //   FAILED_PRECONDITION  it has ended, or has the name of a tenant that a session made, and is
  //   not
  absl::Status CheckAdmits(absl::string_view name) const;

  // Remembers what an operator's tenant has used, at its end.
  void RememberEnded(const records::Tenant& tenant);
  // Makes an existing tenant one without a made part.
  void DropMade(records::Tenant& tenant);
  // Counts, and has the journal note the use of, a tenant that has got its made part and its books
  // (1), or is about to lose them (-1).
  void CountMade(records::Tenant& tenant, int change);

  // Returns the tenant of this name. Makes it if there is none.
  records::Tenant& Ensure(absl::string_view name);
  // Removes a tenant that is not configured and has nothing, and those above it that then have
  // nothing. May delete `tenant`.
  void ForgetIfIdle(records::Tenant& tenant);

  // Counts a request that began (1) or ended (-1) to wait.
  static void CountWaiting(records::Tenant& tenant, int change);

 private:
  using Tenant = records::Tenant;

  // Returns the first guarantee that could not be kept with this quota, of the tenant and those
  // above it. `in_parts`: with the parts of a sum, which takes a look at all tenants.
  std::optional<GuaranteeProblem> FindProblem(absl::string_view name, const Quota& quota,
                                              const Tenant* parent, bool in_parts) const;
  // Returns the quota of a tenant that an operator has made, with these defaults.
  static Quota QuotaOf(const records::MadeTenant& made, const Quota& defaults);
  void ApplyQuota(Tenant& tenant, const Quota& quota);
  // The same, and for tenants under it that sessions made.
  void ApplyWithMembers(Tenant& tenant, const Quota& quota);
  // Computes the quotas of made tenants anew, those of parents first.
  void ComputeMadeQuotas();
  // Puts the override on top of the defaults, for a tenant of which it alone is left.
  void KeepOverrideAlone(Tenant& tenant);
  // True if the tenant has sessions, memory, waiters or tenants under it.
  static bool IsInUse(const Tenant& tenant);
  // Gives the tenant's charges in RevocableCharges the rank of its present priority.
  void RankCharges(const Tenant& tenant);
  // Puts the tenant under the one that its quota names, or under which it was made.
  void Link(Tenant& tenant);
  void PutUnder(Tenant& tenant, Tenant* parent);

  LedgerState& state_;
  ChangeLog& changes_;
  Segments& segments_;
};

}  // namespace gpumemd
