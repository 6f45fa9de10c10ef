// SPDX-License-Identifier: Apache-2.0
// Shares of GPUs in ResourceClaims and ResourceSlices (resource.k8s.io/v1, v1beta2 and v1beta1), as
// far as they matter here. objects.h reads them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumem::kubernetes {

inline constexpr size_t kMostResults = 128;   // of one claim; Kubernetes allows 32 devices
inline constexpr size_t kMostReserved = 256;  // of one claim, as in Kubernetes
inline constexpr size_t kMostName = 253;

// A device of a driver, by its name in a pool.
using DeviceName = std::pair<std::string, std::string>;  // pool, device

// A pod for which a claim is reserved.
struct Consumer {
  std::string uid;
  std::string name;  // in the claim's namespace
  bool operator==(const Consumer&) const = default;
};

struct Claim {
  std::string name_space;
  std::string name;
  std::string uid;
  std::map<DeviceName, uint64_t> shares;  // bytes of memory, summed over the claim's requests
  std::vector<DeviceName> whole;          // devices that the claim has alone
  std::map<DeviceName, std::set<std::string>> requests;  // of the claim, by what they were given
  std::vector<Consumer> consumers;
  std::string problem;  // why shares and devices are unknown; empty: they are known
  bool operator==(const Claim&) const = default;
};

struct Gpu {
  std::string uuid;    // of its device, as the driver and gpumemd name it
  uint64_t bytes = 0;  // its memory; 0: not stated
  bool operator==(const Gpu&) const = default;
};

// A ResourceSlice: devices of a pool.
struct Slice {
  std::string pool;
  int64_t generation = 0;
  std::map<std::string, Gpu> gpus;    // those with a UUID, by name in the pool
  std::vector<std::string> problems;  // of other devices, 16 at most
  bool operator==(const Slice&) const = default;
};

// The devices of all slices.
struct SliceList {
  std::map<DeviceName, Gpu> gpus;
  std::vector<std::string> problems;
};

}  // namespace gpumem::kubernetes
