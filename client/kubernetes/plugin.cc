// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/plugin.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/kubernetes/podresources.h"

namespace gpumem::kubernetes {

Plugin::Plugin(const PluginOptions& options, std::function<void(absl::string_view)> say)
    : options_(options),
      log_(std::move(say)),
      api_server_(options.api_server),
      daemon_(options.daemon) {}

absl::Status Plugin::Round() {
  const auto tenants = daemon_.Tenants();
  log_.SayOnce("gpumemd", tenants.ok() ? "" : std::string(tenants.status().message()));
  if (!tenants.ok()) return tenants.status();

  // First: a pod that comes while the lists of the API server are read begins another round.
  absl::Status ending;
  if (!options_.kubelet_socket.empty()) {
    auto pods = ListKubeletPods(options_.kubelet_socket, options_.driver, options_.timeout);
    ending = pods.status();
    if (pods.ok()) running_ = *std::move(pods);
    log_.SayOnce(
        "kubelet",
        ending.ok() ? "" : absl::StrCat("no tenant ends before it answers: ", ending.message()));
  }

  const auto slices = api_server_.Slices(options_.node, options_.driver);
  auto claims = slices.ok() ? api_server_.Claims(options_.driver)
                            : absl::StatusOr<std::vector<Claim>>(slices.status());
  log_.SayOnce("API server", claims.ok() ? "" : std::string(claims.status().message()));
  if (!claims.ok()) return claims.status();

  Desired desired = DesiredTenants(*claims, slices->gpus);
  KeepRunning(origins_, running_, &desired);
  std::vector<std::string> problems = slices->problems;
  problems.insert(problems.end(), desired.problems.begin(), desired.problems.end());
  log_.SayOnce("claims", absl::StrJoin(problems, "; "));

  const auto present = PresentTenants(*tenants, options_.daemon.owner);
  const std::vector<Step> steps = Plan(desired, present, ending.ok());
  const absl::Status carried = Carry(steps);

  // Pods are remembered as long as their tenants are there: those of other nodes never.
  std::map<std::string, Origin> origins;
  const auto remember = [&](const std::string& tenant) {
    for (auto* const known : {&origins_, &desired.origins}) {
      const auto origin = known->find(tenant);
      if (origin != known->end()) origins[tenant] = origin->second;
    }
  };
  for (const PresentTenant& tenant : present) remember(tenant.name);
  for (const auto& [tenant, quota] : desired.tenants) remember(tenant);
  origins_ = std::move(origins);
  return ending.ok() ? carried : ending;
}

bool Plugin::PodsHaveChanged() const {
  if (options_.kubelet_socket.empty()) return false;
  const auto pods = ListKubeletPods(options_.kubelet_socket, options_.driver, options_.timeout);
  return pods.ok() && *pods != running_;
}

absl::Status Plugin::Carry(const std::vector<Step>& steps) {
  const auto failed = steps_.Carry(steps);
  if (!failed.ok()) return failed.status();
  if (failed->empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("steps of ", failed->size(), " tenants have failed"));
}

}  // namespace gpumem::kubernetes
