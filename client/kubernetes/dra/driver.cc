// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/driver.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/kubernetes/api/cache.h"
#include "client/kubernetes/api/json_reader.h"
#include "client/kubernetes/desired.h"
#include "client/kubernetes/dra/free.h"
#include "client/kubernetes/dra/slices.h"
#include "client/kubernetes/reconcile.h"
#include "common/kubernetes/names.h"

namespace gpumem::kubernetes {
namespace {

constexpr absl::Duration kAskAgain = absl::Minutes(10);
// A pod can have the memory of one that has just ended: the scheduler frees a claim as soon as the
// pod is gone. After a failure the kubelet tries again only after a minute and more.
constexpr absl::Duration kRoom = absl::Seconds(2);

constexpr char kSlices[] = "/apis/resource.k8s.io/v1/resourceslices";

absl::Status CheckCount(absl::Span<const ClaimName> named) {
  if (named.size() <= kMostNamed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the request names ", named.size(), " claims; at most ", kMostNamed));
}

absl::Status CheckTime(absl::Time deadline) {
  if (absl::Now() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError("earlier requests took the time of this one");
}

bool LacksRoom(const std::map<std::string, absl::Status>& failed) {
  return std::any_of(failed.begin(), failed.end(), [](const auto& failure) {
    return absl::IsFailedPrecondition(failure.second);
  });
}

}  // namespace

Driver::Driver(DriverOptions options, ClusterView* view, std::function<absl::Status()> round)
    : options_(std::move(options)),
      cdi_(options_.cdi_folder),
      view_(view),
      round_(std::move(round)),
      api_server_(options_.api_server),
      daemon_(options_.daemon),
      publisher_daemon_(options_.daemon),
      free_again_(absl::Now() + options_.free_pause) {}

absl::StatusOr<std::map<DeviceName, Gpu>> Driver::Gpus() {
  const auto status = daemon_.Status();
  if (!status.ok()) return status.status();
  const auto devices = DevicesOf(status->devices());
  if (!devices.ok()) return devices.status();
  return GpusOf(options_.node, *devices);
}

absl::StatusOr<std::map<std::string, absl::Status>> Driver::MakeTenants(
    const std::map<std::string, TenantQuota>& tenants) {
  const auto listed = daemon_.Tenants();
  if (!listed.ok()) return listed.status();
  auto present = PresentTenants(*listed, options_.daemon.owner);
  std::erase_if(present,
                [&](const PresentTenant& tenant) { return !tenants.contains(tenant.name); });
  Desired desired;
  desired.tenants = tenants;
  std::map<std::string, absl::Status> failed;
  for (const Step& step : Plan(desired, present, /*may_end=*/false)) {
    if (failed.contains(step.tenant)) continue;
    absl::Status carried = daemon_.Carry(step);
    if (carried.ok() && step.kind == Step::Kind::kEnd) {
      // The former tenant of the name is gone now.
      carried = daemon_.Carry({Step::Kind::kCreate, step.tenant, tenants.at(step.tenant)});
    }
    if (IsAway(carried)) return carried;
    if (!carried.ok()) failed[step.tenant] = carried;
  }
  return failed;
}

absl::StatusOr<std::vector<Claim>> Driver::ClaimsFor(absl::Span<const ClaimName> named,
                                                     absl::Time deadline,
                                                     std::map<std::string, absl::Status>* errors) {
  std::vector<Claim> claims;
  std::set<std::pair<std::string, std::string>> read;  // namespace, name
  std::set<std::string> pods;                          // uids
  for (const ClaimName& name : named) {
    if (absl::Status time = CheckTime(deadline); !time.ok()) return time;
    if (!IsUid(name.uid) || !read.emplace(name.name_space, name.name).second) continue;
    auto claim = api_server_.ClaimOf(name.name_space, name.name, kDriverName);
    if (claim.ok() && claim->uid != name.uid) {
      claim = absl::FailedPreconditionError(absl::StrCat(
          "it was deleted and made anew, with the uid ", claim->uid, " in place of ", name.uid));
    }
    if (claim.ok()) {
      for (const Consumer& pod : claim->consumers) pods.insert(pod.uid);
      claims.push_back(*std::move(claim));
      continue;
    }
    // These are answers about the claim. After others, no claim can be read.
    if (!absl::IsNotFound(claim.status()) && !absl::IsInvalidArgument(claim.status()) &&
        !absl::IsFailedPrecondition(claim.status()) && !absl::IsResourceExhausted(claim.status())) {
      return claim.status();
    }
    (*errors)[name.uid] = absl::Status(
        claim.status().code(),
        absl::StrCat("claim ", name.name_space, "/", name.name, ": ", claim.status().message()));
  }
  if (pods.empty()) return claims;
  if (absl::Status fresh = view_->WaitFresh(deadline); !fresh.ok()) return fresh;
  const absl::Status known = view_->Read([&](const ClusterView::State& state) {
    for (const Claim& claim : state.claims) {
      const bool theirs = std::any_of(claim.consumers.begin(), claim.consumers.end(),
                                      [&](const Consumer& pod) { return pods.contains(pod.uid); });
      if (theirs && !read.contains({claim.name_space, claim.name})) claims.push_back(claim);
    }
  });
  if (!known.ok()) return known;
  return claims;
}

absl::StatusOr<Driver::Attempt> Driver::Try(absl::Span<const ClaimName> named,
                                            absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status time = CheckTime(deadline); !time.ok()) return time;
  const auto gpus = Gpus();
  if (!gpus.ok()) return gpus.status();
  std::map<std::string, absl::Status> errors;
  const auto claims = ClaimsFor(named, deadline, &errors);
  if (!claims.ok()) return claims.status();
  Attempt attempt;
  attempt.prepared = Prepare(named, *claims, *gpus, options_.gpu_kind);
  for (auto& [uid, error] : errors) attempt.prepared.insert_or_assign(uid, std::move(error));

  std::map<std::string, TenantQuota> tenants;
  for (const auto& [uid, claim] : attempt.prepared) {
    if (claim.ok()) tenants.insert(claim->tenants.begin(), claim->tenants.end());
  }
  auto failed = MakeTenants(tenants);
  if (!failed.ok()) return failed.status();
  attempt.failed = *std::move(failed);
  return attempt;
}

absl::StatusOr<Driver::Devices> Driver::PrepareClaims(absl::Span<const ClaimName> named,
                                                      absl::Time deadline) {
  if (absl::Status count = CheckCount(named); !count.ok()) return count;
  const absl::Time until = std::min(deadline, absl::Now() + kRoom);
  auto attempt = Try(named, deadline);
  while (attempt.ok() && LacksRoom(attempt->failed)) {
    const uint64_t seen = view_->changes();
    // Its failures are said there. Other requests go on meanwhile.
    (void)round_();
    attempt = Try(named, deadline);
    if (!attempt.ok() || !LacksRoom(attempt->failed) || absl::Now() >= until) break;
    // The watch may lag behind the scheduler.
    if (!view_->WaitForChange(seen, until)) break;
  }
  if (!attempt.ok()) return attempt.status();

  const auto finish = [&](const std::string& uid, const Prepared& claim) -> absl::Status {
    for (const auto& [tenant, quota] : claim.tenants) {
      const auto failure = attempt->failed.find(tenant);
      if (failure == attempt->failed.end()) continue;
      return absl::Status(failure->second.code(),
                          absl::StrCat(tenant, ": ", failure->second.message()));
    }
    const auto spec = CdiSpecOf(uid, options_.daemon.runtime_dir);
    if (!spec.ok()) return spec.status();
    absl::MutexLock lock(&files_mutex_);
    return cdi_.Write(uid, *spec);
  };
  Devices devices;
  for (auto& [uid, claim] : attempt->prepared) {
    absl::Status finished = claim.ok() ? finish(uid, *claim) : claim.status();
    if (finished.ok()) devices.emplace(uid, std::move(claim->devices));
    if (!finished.ok()) devices.emplace(uid, std::move(finished));
  }
  return devices;
}

absl::StatusOr<std::map<std::string, absl::Status>> Driver::UnprepareClaims(
    absl::Span<const ClaimName> named) {
  if (absl::Status count = CheckCount(named); !count.ok()) return count;
  absl::MutexLock lock(&files_mutex_);
  std::map<std::string, absl::Status> removed;
  for (const ClaimName& name : named) removed[name.uid] = cdi_.Remove(name.uid);
  return removed;
}

absl::Status Driver::RemoveStaleFiles() {
  absl::MutexLock lock(&publish_mutex_);
  if (absl::Now() < look_again_) return absl::OkStatus();
  std::set<std::string> stale;
  {
    absl::MutexLock files(&files_mutex_);
    stale = cdi_.Claims();
  }
  if (!stale.empty()) {
    // Newer than these files. A claim that is gone does not come back with its uid.
    const auto claims = api_server_.Claims(kDriverName);
    if (!claims.ok()) return claims.status();
    for (const Claim& claim : *claims) stale.erase(claim.uid);
  }
  absl::MutexLock files(&files_mutex_);
  for (const std::string& uid : stale) {
    if (absl::Status removed = cdi_.Remove(uid); !removed.ok()) return removed;
  }
  look_again_ = absl::Now() + kAskAgain;
  return absl::OkStatus();
}

absl::Status Driver::Publish(absl::Time deadline) {
  absl::MutexLock lock(&publish_mutex_);
  if (absl::Status time = CheckTime(deadline); !time.ok()) return time;
  const auto name = NameOfSlice(options_.node);
  if (!name.ok()) return name.status();
  const auto status = publisher_daemon_.Status();
  auto devices = status.ok() ? DevicesOf(status->devices()) : status.status();
  health_.Update(devices);
  if (!devices.ok()) return devices.status();
  const auto tenants = publisher_daemon_.Tenants();
  if (!tenants.ok()) return tenants.status();
  SetFree(*tenants, &*devices);

  const absl::Time now = absl::Now();
  const uint64_t seen = view_->slice_changes();
  const bool may_change = now >= free_again_;
  if (now < ask_again_ && seen == seen_slices_) {
    std::map<std::string, uint64_t> free;
    for (const auto& [device, what] : published_) free[device] = what.free;
    NodeDevices wanted = *devices;
    KeepFree(free, may_change, &wanted);
    if (wanted == published_) return absl::OkStatus();
  }
  const auto node = api_server_.Read(absl::StrCat("/api/v1/nodes/", options_.node));
  if (!node.ok()) return node.status();
  const auto object = ParseJson(*node, kMostText, kMostDepth);
  if (!object.ok()) return object.status();
  const std::string path = absl::StrCat(kSlices, "/", *name);
  const auto published = api_server_.Read(path);
  if (!published.ok() && !absl::IsNotFound(published.status())) return published.status();
  KeepFree(FreeIn(published.value_or("")), may_change, &*devices);
  const NodeSlice slice = {.node = options_.node,
                           .node_uid = Text(Object(*object, "metadata"), "uid", kMostName),
                           .devices = *std::move(devices)};
  const auto step = PublishStep(slice, published.value_or(""));
  if (!step.ok()) return step.status();
  if (step->has_value()) {
    absl::Status written = (*step)->create ? api_server_.Create(kSlices, (*step)->body)
                                           : api_server_.Replace(path, (*step)->body);
    if (!written.ok()) return written;
    free_again_ = now + options_.free_pause;
  }
  published_ = slice.devices;
  seen_slices_ = seen;
  ask_again_ = now + kAskAgain;
  return absl::OkStatus();
}

}  // namespace gpumem::kubernetes
