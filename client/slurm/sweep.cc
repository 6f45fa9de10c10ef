// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/sweep.h"

#include <unistd.h>

#include <optional>

#include "absl/time/clock.h"
#include "client/slurm/state.h"
#include "client/slurm/tenant.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::slurm {
namespace {

constexpr int kMostAsked = 256;

}  // namespace

absl::StatusOr<std::vector<std::string>> Sweep(const Node& node, const std::string& state_dir,
                                               const IsHere& is_here) {
  Daemon daemon(node);
  auto tenants = daemon.Call(&v1::Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!tenants.ok()) return tenants.status();
  std::vector<std::string> ended;
  int asked = 0;
  for (const v1::TenantInfo& tenant : tenants->tenants()) {
    if (!tenant.has_made() || tenant.made().owner() != kOwner || tenant.made().ending()) continue;
    const std::string& name = tenant.usage().tenant();
    const std::optional<uint32_t> job = JobOf(name);
    if (!job.has_value()) continue;
    if (++asked > kMostAsked) break;
    // A prolog or epilog works on it: it is no leftover.
    const auto lock = JobLock::Take(state_dir, *job, absl::Now());
    if (!lock.ok()) continue;
    const absl::StatusOr<bool> here = is_here(*job);
    if (!here.ok()) return here.status();
    if (*here) continue;
    unlink(GpusFile(state_dir, *job).c_str());
    v1::EndTenantRequest request;
    request.set_tenant(name);
    request.set_owner(kOwner);
    if (!daemon.Call(&v1::Admin::Stub::EndTenant, request).ok()) continue;
    (void)UnsetGuarantees(daemon, name);
    ended.push_back(name);
  }
  return ended;
}

}  // namespace gpumem::slurm
