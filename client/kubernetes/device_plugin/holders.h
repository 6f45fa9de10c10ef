// SPDX-License-Identifier: Apache-2.0
// Which pods hold which units, and the tenants that they should have. Pure.
//
// The kubelet lists pods with their units by name; the API server knows the pods' uids. Both lag
// behind each other, and a later pod may have the name of an earlier one. A pod's units count if
// the API server had the pod, acknowledged by the kubelet, before the kubelet was asked, and has it
// afterwards. Then the pod was there all the time, and the kubelet, which forgets an earlier pod of
// the name before it acknowledges a later one, meant this pod.
//
// A tenant stays while the API server has its pod alive: a kubelet that was just started lists
// pods by and by. It also stays while the kubelet lists units for the pod's name, and it is not
// known yet whose they are.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/kubernetes/api/pods.h"
#include "client/kubernetes/desired.h"
#include "client/kubernetes/device_plugin/units.h"
#include "client/kubernetes/podresources.h"
#include "client/kubernetes/reconcile.h"

namespace gpumem::kubernetes {

using PodName = std::pair<std::string, std::string>;  // namespace, name

struct NamedPod {
  std::string uid;
  bool acknowledged = false;  // by the kubelet
  bool alive = false;         // its containers may run, or will
};
using PodNames = std::map<PodName, NamedPod>;

// Leaves out static pods: the kubelet knows them by another uid than the API server.
PodNames NamesOf(absl::Span<const Pod> pods);

struct HolderFacts {
  absl::Span<const DevicePod> listed;    // by the kubelet
  const PodNames* before = nullptr;      // of the API server, older than `listed`
  const PodNames* after = nullptr;       // and newer
  const UnitList* units = nullptr;       // gpumemd has those that are healthy
  std::set<std::string> tenants;         // ours that gpumemd has
  std::map<std::string, PodName> known;  // the pods of tenants, by earlier rounds
};

// A pod that the kubelet lists.
struct Holder {
  PodName name;
  std::set<std::string> ids;
  std::string tenant;   // empty: not known yet
  absl::Status status;  // why its tenant does not get the units
};

struct Holders {
  std::vector<Holder> pods;
  Desired desired;
  // True if the facts may suffice when they are read again now.
  bool read_again = false;
};

// Statuses of a holder:
//   INVALID_ARGUMENT     an id is no unit's, or the pod's uid is no UUID
//   FAILED_PRECONDITION  gpumemd does not have the GPU, or two pods have the same unit
//   UNAVAILABLE          the API server and the kubelet do not agree yet which pod it is
Holders HoldersOf(const HolderFacts& facts);

// Answers for pods while the API server is away: those with a tenant are OK, others get the status
// `away`. Tenants that have ended do not count. A live one of an unknown pod may be any pod's, so
// all are OK then; `known` is empty when the plug-in was just started.
std::vector<Holder> WithoutNames(absl::Span<const DevicePod> listed,
                                 absl::Span<const PresentTenant> present,
                                 const std::map<std::string, PodName>& known,
                                 const absl::Status& away);

// Returns the holder with some of these units, or null. Units of an init container may be no other
// container's: then the kubelet does not list them.
const Holder* HolderOf(absl::Span<const Holder> pods, absl::Span<const std::string> ids);

}  // namespace gpumem::kubernetes
