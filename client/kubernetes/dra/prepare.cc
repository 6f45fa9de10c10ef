// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/prepare.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/kubernetes/dra/cdi.h"
#include "common/kubernetes/names.h"

namespace gpumem::kubernetes {
namespace {

absl::StatusOr<Prepared> PrepareOne(const Claim& claim, const Desired& desired,
                                    const std::map<DeviceName, Gpu>& gpus,
                                    absl::string_view gpu_kind) {
  if (!claim.problem.empty()) return absl::InvalidArgumentError(claim.problem);
  if (!claim.whole.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device ", claim.whole.front().second,
        " is allocated without a share of its memory: the cluster has no consumable capacity "
        "(feature gate DRAConsumableCapacity)"));
  }
  if (claim.shares.empty()) {
    return absl::FailedPreconditionError(
        "it has no share of memory; access for administrators is not supported");
  }
  if (claim.consumers.empty()) {
    return absl::FailedPreconditionError("it is reserved for no pod");
  }

  Prepared prepared;
  for (const auto& [device, bytes] : claim.shares) {
    const auto gpu = gpus.find(device);
    if (gpu == gpus.end()) {
      return absl::FailedPreconditionError(absl::StrCat("gpumemd of this node has no device ",
                                                        device.second, " of pool ", device.first));
    }
    PreparedDevice& made = prepared.devices.emplace_back();
    made.device = device;
    const auto requests = claim.requests.find(device);
    if (requests != claim.requests.end()) made.requests = requests->second;
    made.cdi_devices.push_back(CdiDeviceOf(claim.uid));
    if (!gpu_kind.empty()) {
      made.cdi_devices.push_back(absl::StrCat(gpu_kind, "=", gpu->second.uuid));
    }
  }
  for (const Consumer& pod : claim.consumers) {
    const std::string tenant = TenantOf(pod.uid);
    if (tenant.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the uid of its pod ", pod.name, " is no UUID"));
    }
    const auto quota = desired.tenants.find(tenant);
    if (quota == desired.tenants.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("another claim of its pod ", pod.name, " is not valid"));
    }
    prepared.tenants[tenant] = quota->second;
  }
  return prepared;
}

}  // namespace

std::map<std::string, absl::StatusOr<Prepared>> Prepare(absl::Span<const ClaimName> named,
                                                        absl::Span<const Claim> claims,
                                                        const std::map<DeviceName, Gpu>& gpus,
                                                        absl::string_view gpu_kind) {
  const Desired desired = DesiredTenants(claims, gpus);
  std::map<absl::string_view, const Claim*> by_uid;
  for (const ClaimName& name : named) by_uid.emplace(name.uid, nullptr);
  for (const Claim& claim : claims) {
    const auto wanted = by_uid.find(claim.uid);
    if (wanted != by_uid.end()) wanted->second = &claim;
  }
  std::map<std::string, absl::StatusOr<Prepared>> prepared;
  for (const ClaimName& name : named) {
    const Claim* const claim = by_uid[name.uid];
    absl::StatusOr<Prepared> one;
    if (!IsUid(name.uid)) {
      one = absl::InvalidArgumentError("its uid is no UUID");
    } else if (claim == nullptr || claim->name_space != name.name_space ||
               claim->name != name.name) {
      one = absl::NotFoundError(
          absl::StrCat("the API server has no such claim with devices of ", kDriverName));
    } else {
      one = PrepareOne(*claim, desired, gpus, gpu_kind);
    }
    if (!one.ok()) {
      one = absl::Status(
          one.status().code(),
          absl::StrCat("claim ", name.name_space, "/", name.name, ": ", one.status().message()));
    }
    prepared.insert_or_assign(name.uid, std::move(one));
  }
  return prepared;
}

}  // namespace gpumem::kubernetes
