// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/plugin.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/kubernetes/api/objects.h"
#include "client/kubernetes/podresources.h"

namespace gpumem::kubernetes {
namespace {

// Claims that are asked for one by one before tenants end. For more, one list is less work.
constexpr size_t kMostAsked = 32;

}  // namespace

Plugin::Plugin(const PluginOptions& options, ClusterView* view,
               std::function<void(absl::string_view)> say)
    : options_(options),
      log_(std::move(say)),
      view_(view),
      api_server_(options.api_server),
      daemon_(options.daemon) {}

absl::Status Plugin::Round() {
  absl::MutexLock lock(&mutex_);
  const auto tenants = daemon_.Tenants();
  log_.SayOnce("gpumemd", tenants.ok() ? "" : std::string(tenants.status().message()));
  if (!tenants.ok()) return tenants.status();

  // First: a pod that comes while the lists of the API server are read begins another round.
  absl::Status ending;
  bool new_pods = false;
  if (!options_.kubelet_socket.empty()) {
    auto pods = ListKubeletPods(options_.kubelet_socket, options_.driver, options_.timeout);
    ending = pods.status();
    new_pods = pods.ok() && *pods != running_;
    if (pods.ok()) running_ = *std::move(pods);
    log_.SayOnce(
        "kubelet",
        ending.ok() ? "" : absl::StrCat("no tenant ends before it answers: ", ending.message()));
  }

  // What a watch has told before it broke is still good to make tenants by. A pod that starts, and
  // the first round, do not wait for its next try.
  absl::Status fresh;
  if (new_pods || seen_ == 0) fresh = view_->WaitFresh(absl::Now() + options_.timeout);
  Desired desired;
  SliceList slices;
  absl::Status known =
      view_->Read([&](const ClusterView::State& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        seen_ = state.changes;
        if (fresh.ok()) fresh = state.stale;
        slices = MergeSlices(state.slices);
        desired = DesiredTenants(state.claims, slices.gpus);
      });
  const auto present = PresentTenants(*tenants, options_.daemon.owner);
  if (known.ok()) {
    KeepRunning(origins_, running_, &desired);
    if (fresh.ok() && ending.ok()) fresh = ConfirmEnds(present, slices, &desired);
  }
  log_.SayOnce("API server", fresh.ok() ? "" : std::string(fresh.message()));
  if (!known.ok()) return known;
  if (ending.ok()) ending = fresh;

  std::vector<std::string> problems = slices.problems;
  problems.insert(problems.end(), desired.problems.begin(), desired.problems.end());
  log_.SayOnce("claims", absl::StrJoin(problems, "; "));

  const std::vector<Step> steps = Plan(desired, present, ending.ok());
  const absl::Status carried = Carry(steps);

  // Pods are remembered as long as their tenants are there: those of other nodes never.
  std::map<std::string, Origin> origins;
  const auto remember = [&](const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto* const from : {&origins_, &desired.origins}) {
      const auto origin = from->find(tenant);
      if (origin != from->end()) origins[tenant] = origin->second;
    }
  };
  for (const PresentTenant& tenant : present) remember(tenant.name);
  for (const auto& [tenant, quota] : desired.tenants) remember(tenant);
  origins_ = std::move(origins);
  return ending.ok() ? carried : ending;
}

absl::Status Plugin::ConfirmEnds(const std::vector<PresentTenant>& present, const SliceList& slices,
                                 Desired* desired) {
  const std::vector<std::string> ends = EndsOf(*desired, present);
  if (ends.empty()) return absl::OkStatus();
  size_t claims = 0;
  const auto is_known = [&](const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto origin = origins_.find(tenant);
    if (origin == origins_.end()) return false;
    claims += origin->second.claims.size();
    return true;
  };
  const bool all_known = std::all_of(ends.begin(), ends.end(), is_known);
  if (!all_known || claims > kMostAsked) {
    const auto listed = api_server_.Claims(options_.driver);
    if (!listed.ok()) return listed.status();
    *desired = DesiredTenants(*listed, slices.gpus);
    KeepRunning(origins_, running_, desired);
    return absl::OkStatus();
  }
  for (const std::string& tenant : ends) {
    const Origin& origin = origins_[tenant];
    for (const std::string& name : origin.claims) {
      const auto claim = api_server_.ClaimOf(origin.name_space, name, options_.driver);
      if (absl::IsNotFound(claim.status())) continue;
      if (!claim.ok()) return claim.status();
      if (IsReservedFor(*claim, tenant)) desired->kept.insert(tenant);
    }
  }
  return absl::OkStatus();
}

bool Plugin::PodsHaveChanged() const {
  if (options_.kubelet_socket.empty()) return false;
  const auto pods = ListKubeletPods(options_.kubelet_socket, options_.driver, options_.timeout);
  absl::MutexLock lock(&mutex_);
  return pods.ok() && *pods != running_;
}

bool Plugin::WaitForChange(absl::Time until) const {
  uint64_t seen = 0;
  {
    absl::MutexLock lock(&mutex_);
    seen = seen_;
  }
  return view_->WaitForChange(seen, until);
}

absl::Status Plugin::Carry(const std::vector<Step>& steps) {
  const auto failed = steps_.Carry(steps);
  if (!failed.ok()) return failed.status();
  if (failed->empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("steps of ", failed->size(), " tenants have failed"));
}

}  // namespace gpumem::kubernetes
