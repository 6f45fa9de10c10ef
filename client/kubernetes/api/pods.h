// SPDX-License-Identifier: Apache-2.0
// Facts of a node's pods, as the API server returns lists of pods in JSON (v1). Pure.
//
// The text is untrusted: its size, depth and counts are bounded. Users choose labels, so a pod with
// too many of them is left out and does not hide the others.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::kubernetes {

inline constexpr size_t kMostPods = 10'000;      // of a node, those that have ended included
inline constexpr size_t kMostLabels = 256;       // of a pod
inline constexpr size_t kMostClaimsOfPod = 256;  // as in Kubernetes

struct Pod {
  std::string uid;  // IsPodUid
  std::string name_space;
  std::string name;
  std::string service_account;
  std::string phase;  // "Pending", "Running", "Succeeded", "Failed", "Unknown"; "": not stated
  std::map<std::string, std::string> labels;
  std::set<std::string> claims;  // names of ResourceClaim objects in the pod's namespace
  bool described = true;         // false: it has facts that make no sense, which are left out
  bool acknowledged = false;     // by the node's kubelet (status.startTime)
  bool mirror = false;           // the API server's copy of a static pod
  bool operator==(const Pod&) const = default;
};

struct PodList {
  std::vector<Pod> pods;
  // Of pods that are left out, 16 at most: those with names, labels or claims that Kubernetes does
  // not allow, or with too many.
  std::vector<std::string> problems;
  std::string next;  // the token of the list's next part; empty: this is the last one
};

// Returns why the pod makes no sense: a field that Kubernetes does not allow, or more labels or
// claims than the limits above. "" if it does.
std::string ProblemOf(const Pod& pod);
// Returns a sentence with the pod's name. `pod` may make no sense.
std::string DescribeProblem(const Pod& pod, absl::string_view problem);

// Returns the pods of a PodList. The kubelet knows static pods by another uid than the API server.
//   INVALID_ARGUMENT    the text is no such list, or has two pods of one uid
//   RESOURCE_EXHAUSTED  it is too large, too deep or too long
absl::StatusOr<PodList> ParsePods(absl::string_view text);

}  // namespace gpumem::kubernetes
