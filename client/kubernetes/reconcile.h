// SPDX-License-Identifier: Apache-2.0
// The steps from the tenants that gpumemd has to those that pods should have. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/kubernetes/desired.h"
#include "proto/gpumem/v1/tenant.pb.h"

namespace gpumem::kubernetes {

// Returns the mark of tenants that are made for a driver's claims on the node: "DRIVER/NODE". Two
// programs for different drivers do not end each other's. A mark that is too long is cut, and ends
// in a hash of the whole.
std::string OwnerOf(absl::string_view driver, absl::string_view node);

// A tenant that was made with our mark.
struct PresentTenant {
  std::string name;
  bool ending = false;
  TenantQuota quota;
  // An operator has set another quota meanwhile: what we would change has no effect.
  bool overridden = false;
};

// Returns the tenants with this mark. Others are never touched.
std::vector<PresentTenant> PresentTenants(const v1::ListTenantsResponse& tenants,
                                          absl::string_view owner);

struct Step {
  enum class Kind { kEnd, kUpdate, kCreate };
  Kind kind = Kind::kEnd;
  std::string tenant;
  TenantQuota quota;  // not of kEnd
};

// Returns the steps, in an order in which guarantees fit: tenants that end, those that shrink,
// those that grow or are new. A tenant that both shrinks and grows has two steps. One that has
// ended and still holds memory is ended again: the answer says what it holds. `may_end`: false
// while it is not known which pods are there.
std::vector<Step> Plan(const Desired& desired, absl::Span<const PresentTenant> present,
                       bool may_end);

// Returns the tenants that Plan ends anew.
std::vector<std::string> EndsOf(const Desired& desired, absl::Span<const PresentTenant> present);

// Returns the quota for calls of the daemon. It replaces what the tenant has on any GPU.
v1::Quota ToQuota(const TenantQuota& quota);

// When a tenant's steps are tried again: 1 s after a failure, then after 2, 4, … up to 60 s.
class Backoff {
 public:
  bool IsDue(const std::string& tenant, absl::Time now) const;
  // Returns the pause.
  absl::Duration Failed(const std::string& tenant, absl::Time now);
  void Succeeded(const std::string& tenant) { failures_.erase(tenant); }
  // Forgets tenants without a step.
  void Retain(absl::Span<const Step> steps);

 private:
  struct Failure {
    absl::Time retry;
    absl::Duration pause;
  };
  std::map<std::string, Failure> failures_;
};

}  // namespace gpumem::kubernetes
