// SPDX-License-Identifier: Apache-2.0
// Which units a container should get, and what it gets with them. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/kubernetes/device_plugin/units.h"

namespace gpumem::kubernetes {

// Returns `size` of the available units, `required` ones first among them.
// - All are of one GPU if a GPU has so many, else of as few GPUs as possible.
// - Of GPUs with enough units, the one with the fewest is chosen: others stay free for larger pods.
// - GPUs that `required` units have already go first.
// Deterministic: of equal GPUs the one with the lower UUID, of its units those with lower numbers.
//   INVALID_ARGUMENT  an id is no unit's, or occurs twice; or there are more required units or
//                     fewer available ones than `size`
absl::StatusOr<std::vector<std::string>> PreferredUnits(absl::Span<const std::string> available,
                                                        absl::Span<const std::string> required,
                                                        size_t size);

struct GrantOptions {
  std::string runtime_dir;                  // of gpumemd's sockets, on the node
  std::string gpu_kind = "nvidia.com/gpu";  // of the GPUs' CDI devices; empty: none
  // Name the GPUs in NVIDIA_VISIBLE_DEVICES, for NVIDIA's container runtime.
  bool visible_devices = false;
  // Refuse units of several GPUs where one GPU of the node has as many.
  bool one_gpu = false;
};

struct Grant {
  std::map<std::string, std::string> environment;
  std::string host_path;       // of the folder that is mounted read-only
  std::string container_path;  // of it
  std::vector<std::string> cdi_devices;
};

// Returns what a container with these units gets.
//   INVALID_ARGUMENT     there are none, an id is no unit's, or occurs twice
//   NOT_FOUND            the node has no such unit
//   FAILED_PRECONDITION  they are of several GPUs, and `one_gpu` refuses that
absl::StatusOr<Grant> GrantOf(absl::Span<const std::string> ids, const UnitList& units,
                              const GrantOptions& options);

}  // namespace gpumem::kubernetes
