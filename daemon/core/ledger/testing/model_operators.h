// Acts of operators and of the daemon itself on a ledger in the model test, with random arguments,
// and the same on the model beside it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model_course.h"
#include "daemon/core/quota/guarantees.h"

namespace gpumemd {

class ModelOperators : public ModelCourse {
 protected:
  using ModelCourse::ModelCourse;

  absl::Status Configure() {
    // In a sound episode, all guarantees can be kept at the same time.
    for (int tries = 0; tries == 0 || (sound_ && Unsound(configured_)); ++tries) {
      configured_.clear();
      for (const char* tenant : {"alpha", "beta", "gamma"}) {
        if (!chance_.In100(70)) continue;
        configured_[tenant] = chance_.TenantQuota(sound_);
        configured_[tenant].parent = chance_.Parent(tenant);
        if (tries > 20) configured_[tenant].limit_bytes.reset();
      }
    }
    defaults_ = chance_.TenantQuota(sound_);
    if (sound_) {  // tenants that come and go have no guarantee
      defaults_.guarantee_bytes.reset();
      defaults_.device_guarantees.clear();
    }
    defaults_.parent = chance_.Parent("uid");
    ledger_.Configure(configured_, defaults_);
    model_.Configure(configured_, defaults_);
    return After(absl::OkStatus(), "Configure ", configured_.size(), " tenants");
  }
  bool Unsound(const std::map<std::string, Quota>& tenants) const {
    for (const auto& [name, quota] : tenants) {
      if (!quota.parent.empty() && (!tenants.contains(quota.parent) || quota.parent <= name)) {
        return true;
      }
    }
    return FindGuaranteeProblem(tenants, devices_).has_value();
  }
  const Quota& ConfiguredOf(const std::string& tenant) const {
    auto it = configured_.find(tenant);
    return it == configured_.end() ? defaults_ : it->second;
  }

  absl::Status SetQuota() {
    const std::string tenant = chance_.Tenant();
    Quota quota = chance_.TenantQuota(sound_);
    quota.parent = (model_.Knows(tenant) ? model_.QuotaOf(tenant) : ConfiguredOf(tenant)).parent;
    if (chance_.In100(15)) {
      const Quota& configured = ConfiguredOf(tenant);
      const absl::Status answer = ledger_.UnsetQuota(tenant, configured).status();
      return After(model_.UnsetQuota(tenant, configured, answer), "UnsetQuota ", tenant, " -> ",
                   Tell(answer));
    }
    if (chance_.In100(sound_ ? 30 : 80)) {
      if (sound_) {
        quota.guarantee_bytes.reset();
        quota.device_guarantees.clear();
      }
      ledger_.OverrideQuota(tenant, quota);
      model_.OverrideQuota(tenant, quota);
      return After(absl::OkStatus(), "OverrideQuota ", tenant);
    }
    if (!sound_ || !model_.Knows(tenant)) return absl::OkStatus();
    if (chance_.In100(5)) quota.device_limits["elsewhere"] = 1;
    absl::Status answer = ledger_.CheckDevices(quota);
    answer.Update(ledger_.CheckQuota(tenant, quota));  // keeps the first error
    if (answer.ok()) ledger_.OverrideQuota(tenant, quota);
    if (answer.ok()) Met("a quota is set");
    return After(model_.SetQuota(tenant, quota, answer), "SetQuota ", tenant, " -> ", Tell(answer));
  }

  absl::Status SetDraining(bool draining) {
    ledger_.SetDraining(draining);
    model_.SetDraining(draining);
    return After(absl::OkStatus(), "SetDraining ", draining);
  }

  // Reports memory that some processes took past the broker, or none.
  absl::Status SetUnbrokered(bool any) {
    std::vector<UnbrokeredBytes> uses;
    for (const auto& [id, session] : model_.sessions()) {
      if (!any || chance_.In100(60)) continue;
      uses.push_back({.session = id,
                      .device_uuid = devices_[chance_.Below(2)].uuid,
                      .bytes = 1 + chance_.Below(20),
                      .denies = chance_.In100(30)});
    }
    ledger_.SetUnbrokered(uses);
    model_.SetUnbrokered(uses);
    return After(absl::OkStatus(), "SetUnbrokered ", uses.size());
  }

  absl::Status Trim() {
    const std::string tenant = chance_.In100(50) ? "" : chance_.Tenant();
    const std::string device = chance_.In100(50)  ? ""
                               : chance_.In100(5) ? "elsewhere"
                                                  : chance_.Device();
    const uint64_t keep = chance_.In100(50) ? 0 : chance_.Below(20);
    const auto answer = ledger_.Trim(tenant, device, keep);
    if (answer.ok() && !answer->empty()) Met("trimmed");
    return After(model_.Trim(tenant, device, keep, answer), "Trim \"", tenant, "\" \"", device,
                 "\" to ", keep, " -> ", Tell(answer.status()));
  }

  bool sound_ = true;  // all guarantees can be kept at the same time
  std::map<std::string, Quota> configured_;
  Quota defaults_;
};

}  // namespace gpumemd
