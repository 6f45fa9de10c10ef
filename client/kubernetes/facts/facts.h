// SPDX-License-Identifier: Apache-2.0
// What gpumemd is told of this node's pods (Admin.SetPods). Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/kubernetes/api/pods.h"
#include "common/kubernetes/pod_bounds.h"
#include "proto/gpumem/v1/pod.pb.h"

namespace gpumem::kubernetes {

struct Facts {
  v1::SetPodsRequest request;
  std::vector<std::string> problems;  // of pods that are left out, 16 at most
};

// Returns the request that tells gpumemd of the pods. Its revision is a hash of them. Pods that
// have ended are left out, and pods beyond the bounds: those with the most bytes of labels and
// claims first, so that a flood of labels hides the pods that have them.
Facts FactsOf(absl::Span<const Pod> pods, absl::string_view owner, const PodBounds& bounds = {});

}  // namespace gpumem::kubernetes
