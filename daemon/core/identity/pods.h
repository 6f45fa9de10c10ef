// SPDX-License-Identifier: Apache-2.0
// Facts of Kubernetes' pods, as helpers of the node tell them: namespace, name, labels and others,
// by the pod's uid. The kernel alone says which pod a process is of. Without I/O.
//
// Trust. Only operators tell facts. Kubernetes fixes a pod's namespace, name and service account at
// its creation, so its permissions decide about them. Users may choose and change labels.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/kubernetes/pod_bounds.h"

namespace gpumemd {

struct PodFacts {
  std::string uid;
  std::string name_space;
  std::string name;
  std::string service_account;  // empty: unknown
  std::map<std::string, std::string> labels;
  std::set<std::string> claims;  // names of ResourceClaims in its namespace
  bool operator==(const PodFacts&) const = default;
};

// What a rule may ask of a pod's facts.
enum class PodFact { kNamespace, kName, kServiceAccount, kClaim, kLabel };

// Returns "namespace", "pod_name", "service_account", "claim" or "label". The first four are also
// keys of conditions in the configuration; "label:KEY" is the fifth.
absl::string_view NameOf(PodFact fact);

// Returns the values: none, one or, of claims, several. `label`: the key, of kLabel.
std::vector<std::string> ValuesOf(const PodFacts& pod, PodFact fact, const std::string& label);

// An immutable set of pods.
class KnownPods {
 public:
  // Returns null if the pod has not been described.
  std::shared_ptr<const PodFacts> Find(absl::string_view uid) const {
    const auto pod = pods_.find(uid);
    return pod == pods_.end() ? nullptr : pod->second;
  }

 private:
  friend class PodBook;
  absl::flat_hash_map<std::string, std::shared_ptr<const PodFacts>> pods_;
};

// The lists of pods that owners have told. In memory only. Thread-safe.
class PodBook {
 public:
  explicit PodBook(gpumem::PodBounds bounds = {}) : bounds_(bounds) {}

  // Replaces the list of `owner`, all or nothing; an empty one ends it. A pod that several owners
  // describe is as the list that was set last says. `revision` is the owner's own mark of the list.
  //   INVALID_ARGUMENT    a malformed owner, revision or pod, or two pods of one uid
  //   RESOURCE_EXHAUSTED  a bound is reached
  absl::Status Set(const std::string& owner, const std::string& revision,
                   std::vector<PodFacts> pods) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns all pods as of now.
  std::shared_ptr<const KnownPods> known() const ABSL_LOCKS_EXCLUDED(mutex_);

  struct List {
    std::string owner;
    std::string revision;
    std::vector<std::shared_ptr<const PodFacts>> pods;  // by uid
  };
  // Returns the lists, the one that was set last at the end.
  std::vector<List> lists() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status Check(absl::Span<const PodFacts> pods) const;

  const gpumem::PodBounds bounds_;
  mutable absl::Mutex mutex_;
  std::vector<List> lists_ ABSL_GUARDED_BY(mutex_);  // in the order in which they were set
  std::shared_ptr<const KnownPods> known_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<const KnownPods>();
};

}  // namespace gpumemd
