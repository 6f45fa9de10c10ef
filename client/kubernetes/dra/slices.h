// SPDX-License-Identifier: Apache-2.0
// This node's GPUs as Kubernetes sees them: a ResourceSlice of resource.k8s.io/v1. Pure.
//
// Each GPU is a device that several claims may have at once, with its memory as consumable
// capacity. Its name comes from its UUID, so a claim means the same GPU after any restart.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/kubernetes/api/claims.h"
#include "proto/gpumem/v1/memory.pb.h"

namespace gpumem::kubernetes {

// Claims get memory in steps of this: the granularity of CUDA's allocations.
inline constexpr uint64_t kMemoryStep = 2 << 20;
inline constexpr int kMostDevices = 128;  // of a slice, as in Kubernetes

struct NodeDevice {
  std::string uuid;
  std::string product;
  uint64_t bytes = 0;  // a multiple of kMemoryStep
  uint64_t free = 0;   // guaranteed to no tenant, about (free.h)
  bool operator==(const NodeDevice&) const = default;
};
using NodeDevices = std::map<std::string, NodeDevice>;  // by name in the slice

// Returns the GPUs of gpumemd's answer. Those with less than two steps of memory are left out:
// Kubernetes takes no such capacity.
//   INVALID_ARGUMENT    a UUID is no name for a device, or two devices have the same
//   RESOURCE_EXHAUSTED  there are more than a slice may have
absl::StatusOr<NodeDevices> DevicesOf(
    const google::protobuf::RepeatedPtrField<v1::Device>& devices);

// Returns the devices as those of a pool, whose name is the node's.
std::map<DeviceName, Gpu> GpusOf(absl::string_view node, const NodeDevices& devices);

struct NodeSlice {
  std::string node;      // as Kubernetes calls it
  std::string node_uid;  // if not empty, the slice goes when the node's object goes
  NodeDevices devices;
};

// Returns the slice's name: one for each node and driver.
//   INVALID_ARGUMENT  the node's name is none, or too long for that
absl::StatusOr<std::string> NameOfSlice(absl::string_view node);

struct SliceStep {
  bool create = false;  // POST; false: PUT at its name
  std::string name;
  std::string body;  // JSON
};

// Returns the step that publishes the slice, or nullopt if the published one says the same.
// `published` is the slice of that name as the API server returned it; empty: there is none. A
// change has a new generation of the pool, so that the scheduler does not mix both.
//   INVALID_ARGUMENT, RESOURCE_EXHAUSTED  the published text is no such object, or as NameOfSlice
absl::StatusOr<std::optional<SliceStep>> PublishStep(const NodeSlice& slice,
                                                     absl::string_view published);

}  // namespace gpumem::kubernetes
