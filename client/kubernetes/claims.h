// SPDX-License-Identifier: Apache-2.0
// Shares of GPUs in ResourceClaims and ResourceSlices, as the API server returns lists of them in
// JSON (resource.k8s.io/v1, v1beta2 and v1beta1). Pure.
//
// The text is untrusted: its size, depth and counts are bounded. An object that makes no sense is
// reported and does not hide the others.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::kubernetes {

inline constexpr size_t kMostText = 32 << 20;  // bytes of one list
inline constexpr int kMostDepth = 64;
inline constexpr size_t kMostItems = 10'000;  // of one list
inline constexpr size_t kMostResults = 128;   // of one claim; Kubernetes allows 32 devices
inline constexpr size_t kMostReserved = 256;  // of one claim, as in Kubernetes
inline constexpr size_t kMostName = 253;

// True if the text is a UUID in lower case, as Kubernetes' uids are. It is then a safe name of a
// tenant, a file and a CDI device.
bool IsUid(absl::string_view text);

// A device of a driver, by its name in a pool.
using DeviceName = std::pair<std::string, std::string>;  // pool, device

// A pod for which a claim is reserved.
struct Consumer {
  std::string uid;
  std::string name;  // in the claim's namespace
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
};

struct ClaimList {
  std::vector<Claim> claims;  // those with devices of the driver
  std::string next;           // the token of the list's next part; empty: this is the last one
};

// Returns the claims that have devices of `driver` allocated. Allocations for administrators take
// no memory, and do not count.
//   INVALID_ARGUMENT    the text is no such list
//   RESOURCE_EXHAUSTED  it is too large, too deep or too long
absl::StatusOr<ClaimList> ParseClaims(absl::string_view text, absl::string_view driver);

struct Gpu {
  std::string uuid;    // of its device, as the driver and gpumemd name it
  uint64_t bytes = 0;  // its memory; 0: not stated
};

struct SliceList {
  std::map<DeviceName, Gpu> gpus;     // those with a UUID
  std::vector<std::string> problems;  // of other devices, 16 at most
  std::string next;
};

// Returns the devices of `driver` in a list of slices. Of slices of a pool, only those of the
// pool's newest generation count. Statuses as ParseClaims.
absl::StatusOr<SliceList> ParseSlices(absl::string_view text, absl::string_view driver);

}  // namespace gpumem::kubernetes
