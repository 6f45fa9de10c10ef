// Who says what a tenant may have: the configuration, and on top of it what operators changed
// (overrides.h), which is remembered over restarts. All changes of quotas go through here, one
// at a time. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/quota/overrides.h"
#include "daemon/core/quota/quota.h"

namespace gpumemd {

class QuotaControl {
 public:
  // Writes all overrides down. An error means that those of before are still there.
  using Save = std::function<absl::Status(const Overrides&)>;

  // `overrides` is what was remembered; it is in force from the first Configure on. `broker`
  // outlives this.
  QuotaControl(Broker* broker, std::vector<DeviceInfo> devices, Overrides overrides, Save save);

  // What the configuration says: its tenants, and the quota of those that rules make. The
  // overrides go on top of it. One that makes no sense with it (guarantees that cannot be kept)
  // is skipped, and remembered all the same; a sentence for each of those.
  std::vector<std::string> Configure(std::map<std::string, Quota> tenants, const Quota& defaults)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Outcome {
    TenantView tenant;
    Quota before;                         // it had
    std::vector<std::string> overridden;  // fields of its quota
  };
  // The same sentences, as things stand now.
  std::vector<std::string> Skipped() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Statuses as gpumem.v1.Admin.SetQuota and UnsetQuota. Where saving fails, its status, and
  // nothing is changed.
  absl::StatusOr<Outcome> Set(const gpumem::v1::SetQuotaRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Outcome> Unset(const std::string& tenant, absl::Span<const std::string> fields)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The fields of a tenant's quota that are overridden now.
  std::vector<std::string> Overridden(const std::string& tenant) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::vector<std::string> TellSkipped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the configuration says of it.
  const Quota& BaseOf(const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its override; NOT_FOUND where there is no such tenant.
  absl::StatusOr<gpumem::v1::QuotaOverride> Known(const std::string& tenant) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts `changed` in the place of the tenant's override; an empty one ends it.
  absl::StatusOr<Outcome> Replace(const std::string& tenant,
                                  const gpumem::v1::QuotaOverride& changed, const Quota& asked)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Broker* const broker_;
  const std::vector<DeviceInfo> devices_;
  const Save save_;

  mutable absl::Mutex mutex_;
  std::map<std::string, Quota> tenants_ ABSL_GUARDED_BY(mutex_);
  Quota defaults_ ABSL_GUARDED_BY(mutex_);
  Overrides overrides_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> skipped_ ABSL_GUARDED_BY(mutex_);  // by tenant: why
};

}  // namespace gpumemd
