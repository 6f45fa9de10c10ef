// SPDX-License-Identifier: Apache-2.0
// What the kubelet's request to prepare claims comes to: tenants of gpumemd, and CDI devices. Pure.
//
// The answer depends on claims and devices alone, so a repeated request has the same answer.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/kubernetes/api/claims.h"
#include "client/kubernetes/desired.h"

namespace gpumem::kubernetes {

inline constexpr char kDriverName[] = "gpumem.dev";

// A claim as the kubelet names it.
struct ClaimName {
  std::string name_space;
  std::string name;
  std::string uid;
};

struct PreparedDevice {
  DeviceName device;
  std::set<std::string> requests;  // of the claim; empty: all of them
  std::vector<std::string> cdi_devices;
};

struct Prepared {
  // Of the claim's pods. A pod's tenant has what all of its claims give it.
  std::map<std::string, TenantQuota> tenants;
  std::vector<PreparedDevice> devices;
};

// Returns what each of the named claims needs, by its uid. `claims` are all claims with devices of
// ours, `gpus` this node's devices. `gpu_kind` is the kind of the CDI devices that bring GPUs into
// containers, such as "nvidia.com/gpu"; empty: none.
//   INVALID_ARGUMENT     the uid is no UUID, or the claim makes no sense
//   NOT_FOUND            there is no such claim with devices of ours, or it was made anew
//   FAILED_PRECONDITION  it is reserved for no pod, or has no share of memory; a device is none of
//                        this node; another claim of its pod is not valid
std::map<std::string, absl::StatusOr<Prepared>> Prepare(absl::Span<const ClaimName> named,
                                                        absl::Span<const Claim> claims,
                                                        const std::map<DeviceName, Gpu>& gpus,
                                                        absl::string_view gpu_kind);

}  // namespace gpumem::kubernetes
