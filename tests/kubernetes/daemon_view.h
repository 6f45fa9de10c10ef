// SPDX-License-Identifier: Apache-2.0
// What a gpumemd says to its operators, for tests of the programs that make tenants.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "client/kubernetes/desired.h"
#include "client/kubernetes/node.h"

namespace gpumem::testing {

// Returns what gpumemctl prints; "" if it fails.
std::string Gpumemctl(const std::string& runtime_dir, const std::string& arguments);

// Returns the bytes that the tenants of `options.owner` have as limit, by tenant and GPU. Those
// that end are left out.
//   INTERNAL  a guarantee differs from the limit, or all tenants' guarantees are more than a GPU
//   has
absl::StatusOr<std::map<std::string, kubernetes::BytesByUuid>> SharesOf(
    const kubernetes::NodeOptions& options, uint64_t bytes_of_gpu);

}  // namespace gpumem::testing
