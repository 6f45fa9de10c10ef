// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/pods.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/kubernetes/api/cache.h"
#include "client/kubernetes/api/claims.h"
#include "client/kubernetes/api/json_reader.h"
#include "common/kubernetes/names.h"

namespace gpumem::kubernetes {
namespace {

constexpr size_t kMostToken = 16384;
constexpr size_t kMostPhase = 16;
constexpr size_t kMostProblems = 16;

// Returns why a member of the metadata or spec makes the pod one that is not described, or "".
std::string ReadLabels(const Json& labels, Pod* pod) {
  if (labels.size() > kMostLabels) return "it has too many labels";
  for (const auto& [key, value] : labels.items()) {
    if (!value.is_string()) return "a label is no text";
    pod->labels[key] = value.get_ref<const std::string&>();
  }
  return "";
}

// A claim is named in the pod's spec, or made for the pod and named in its status.
std::string ReadClaims(const Json& spec, const Json& status, Pod* pod) {
  const Json& named = Array(spec, "resourceClaims");
  const Json& made = Array(status, "resourceClaimStatuses");
  if (named.size() > kMostClaimsOfPod || made.size() > kMostClaimsOfPod) {
    return "it has too many claims";
  }
  for (const Json* const claims : {&named, &made}) {
    for (const Json& claim : *claims) {
      const std::string name = Text(claim, "resourceClaimName", kMostName);
      if (!name.empty()) pod->claims.insert(name);
    }
  }
  const std::string extended =
      Text(Object(status, "extendedResourceClaimStatus"), "resourceClaimName", kMostName);
  if (!extended.empty()) pod->claims.insert(extended);
  return "";
}

// Returns the problem of a pod's facts, or "".
std::string ReadPod(const Json& item, Pod* pod) {
  const Json& metadata = Object(item, "metadata");
  const Json& spec = Object(item, "spec");
  const Json& status = Object(item, "status");
  pod->uid = Text(metadata, "uid", kMostName);
  pod->name_space = Text(metadata, "namespace", kMostName);
  pod->name = Text(metadata, "name", kMostName);
  pod->service_account = Text(spec, "serviceAccountName", kMostName);
  pod->phase = Text(status, "phase", kMostPhase);
  pod->acknowledged = !Text(status, "startTime", kMostName).empty();
  pod->mirror = Object(metadata, "annotations").contains("kubernetes.io/config.mirror");
  std::string problem = ReadLabels(Object(metadata, "labels"), pod);
  if (problem.empty()) problem = ReadClaims(spec, status, pod);
  return problem.empty() ? ProblemOf(*pod) : problem;
}

// Returns why the pod cannot be told from others, or "".
std::string IdentityProblemOf(const Pod& pod) {
  if (!IsPodUid(pod.uid)) return "its uid is no UUID";
  if (!IsDnsLabel(pod.name_space)) return "its namespace is none";
  return IsDnsSubdomain(pod.name) ? "" : "its name is none";
}

}  // namespace

std::string ProblemOf(const Pod& pod) {
  if (std::string problem = IdentityProblemOf(pod); !problem.empty()) return problem;
  if (!pod.service_account.empty() && !IsDnsSubdomain(pod.service_account)) {
    return "its service account is none";
  }
  if (pod.labels.size() > kMostLabels) return "it has too many labels";
  if (pod.claims.size() > 2 * kMostClaimsOfPod) return "it has too many claims";
  for (const auto& [key, value] : pod.labels) {
    if (!IsLabelKey(key) || !IsLabelValue(value)) return "a label is none";
  }
  const bool named = std::all_of(pod.claims.begin(), pod.claims.end(), IsDnsSubdomain);
  return named ? "" : "a claim's name is none";
}

std::string DescribeProblem(const Pod& pod, absl::string_view problem) {
  const auto name = [](absl::string_view text) { return text.substr(0, kMostName); };
  return absl::StrCat("pod \"", name(pod.name), "\" of \"", name(pod.name_space),
                      "\" is not described: ", problem);
}

absl::StatusOr<PodList> ParsePods(absl::string_view text) {
  const auto json = ParseJson(text, kMostText, kMostDepth);
  if (!json.ok()) return json.status();
  if (Text(*json, "kind", kMostName) != "PodList" || Text(*json, "apiVersion", kMostName) != "v1") {
    return absl::InvalidArgumentError("it is no PodList of v1");
  }
  const Json& items = Member(*json, "items");
  if (!items.is_array() && !items.is_null()) {
    return absl::InvalidArgumentError("its items are none");
  }
  if (items.size() > kMostPods) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has ", items.size(), " pods; at most ", kMostPods, " are read"));
  }
  PodList list;
  const Json& metadata = Object(*json, "metadata");
  const Json& next = Member(metadata, "continue");
  list.next = Text(metadata, "continue", kMostToken);
  if (list.next.empty() && next.is_string() && !next.get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError("its token of the next part is none");
  }
  std::set<std::string> uids;
  for (const Json& item : Array(*json, "items")) {
    Pod pod;
    const std::string problem = ReadPod(item, &pod);
    if (!pod.uid.empty() && !uids.insert(pod.uid).second) {
      return absl::InvalidArgumentError(absl::StrCat("two pods have the uid ", pod.uid));
    }
    if (!problem.empty() && list.problems.size() < kMostProblems) {
      list.problems.push_back(DescribeProblem(pod, problem));
    }
    if (!IdentityProblemOf(pod).empty()) continue;
    if (!problem.empty()) {
      // Users choose labels: they do not make the pod one that is not there.
      pod.described = false;
      pod.service_account.clear();
      pod.labels.clear();
      pod.claims.clear();
    }
    list.pods.push_back(std::move(pod));
  }
  return list;
}

}  // namespace gpumem::kubernetes
