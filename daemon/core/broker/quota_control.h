// SPDX-License-Identifier: Apache-2.0
// Sets tenants' quotas: the configuration's, with operators' changes (overrides.h) on top, which
// survive restarts. All changes of quotas go through here, one at a time. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/ledger/made/made_tenants.h"
#include "daemon/core/quota/overrides.h"
#include "daemon/core/quota/quota.h"

namespace gpumemd {

class QuotaControl {
 public:
  // Saves all overrides. On an error the earlier ones are still saved.
  using Save = std::function<absl::Status(const Overrides&)>;

  // `overrides` are those saved before; they apply from the first Configure on. `broker` outlives
  // this.
  QuotaControl(Broker* broker, std::vector<DeviceInfo> devices, Overrides overrides, Save save);

  // Returns FAILED_PRECONDITION if, with this configuration,
  //   - the guarantees of tenants made at run time could not be kept. They are promises in force: a
  //     reload does not take them.
  //   - one of these tenants would be deeper than kMaxTenantLevels.
  absl::Status CheckMade(const std::map<std::string, Quota>& tenants, const Quota& defaults) const;

  // Takes the configuration's quotas: its tenants', and the default for tenants that rules make.
  // Applies the overrides on top. An override that conflicts with it (guarantees that cannot be
  // kept) is skipped, but stays saved. Returns one sentence for each skipped override.
  std::vector<std::string> Configure(std::map<std::string, Quota> tenants, const Quota& defaults)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns what Configure would, and changes nothing.
  std::vector<std::string> CheckConfigure(const std::map<std::string, Quota>& tenants,
                                          const Quota& defaults) const ABSL_LOCKS_EXCLUDED(mutex_);

  struct Outcome {
    TenantView tenant;
    Quota before;                         // the tenant's quota before the change
    std::vector<std::string> overridden;  // fields of its quota
  };
  // Returns the sentences of the overrides that are skipped now.
  std::vector<std::string> Skipped() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Statuses as gpumem.v1.Admin.SetQuota and UnsetQuota. If saving fails, returns its status and
  // changes nothing.
  absl::StatusOr<Outcome> Set(const std::string& tenant, const QuotaOverride& change)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Outcome> Unset(const std::string& tenant, absl::Span<const std::string> fields)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Make and change a tenant at run time (MadeTenants). Overrides of the same name stay on top.
  absl::StatusOr<TenantView> CreateTenant(const MadeTenantSpec& spec) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<TenantView> UpdateTenant(const std::string& tenant,
                                          const std::optional<std::string>& owner,
                                          const QuotaOverride& change,
                                          absl::Span<const AuditOperator> by = {})
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the fields of a tenant's quota that are overridden now.
  std::vector<std::string> Overridden(const std::string& tenant) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The overrides on top of a configuration.
  struct Layered {
    std::map<std::string, OverriddenQuota> overridden;
    std::map<std::string, std::string> skipped;  // by tenant: the reason
  };
  Layered Layer(const std::map<std::string, Quota>& tenants, const Quota& defaults) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns a sentence for each skipped override.
  std::vector<std::string> TellSkipped(const std::map<std::string, std::string>& skipped) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the quota under the tenant's override: that of the configuration in force, or of a
  // tenant made at run time, or the default.
  Quota BaseOf(const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the quotas of a configuration's tenants and of those made at run time.
  std::map<std::string, Quota> WithMade(std::map<std::string, Quota> tenants,
                                        const Quota& defaults) const;
  // Puts the tenant's override, if it has one, on top of its quota, which has changed.
  absl::StatusOr<TenantView> Reapply(const std::string& tenant, TenantView view)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the tenant's override; NOT_FOUND if there is no such tenant.
  absl::StatusOr<QuotaOverride> Known(const std::string& tenant) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Replaces the tenant's override with `changed`; an empty one ends it.
  absl::StatusOr<Outcome> Replace(const std::string& tenant, const QuotaOverride& changed,
                                  const Quota& asked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Broker* const broker_;
  const std::vector<DeviceInfo> devices_;
  const Save save_;

  mutable absl::Mutex mutex_;
  std::map<std::string, Quota> tenants_ ABSL_GUARDED_BY(mutex_);
  Quota defaults_ ABSL_GUARDED_BY(mutex_);
  Overrides overrides_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> skipped_ ABSL_GUARDED_BY(mutex_);  // by tenant: the reason
};

}  // namespace gpumemd
