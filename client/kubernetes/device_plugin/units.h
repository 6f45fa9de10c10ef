// SPDX-License-Identifier: Apache-2.0
// Units of GPUs' memory: the devices of the device plug-in. Pure.
//
// A unit is a step of one GPU's memory. Its id says which, as in
// "GPU-fef8089b-4820-abfc-e83e-94318197576e/1GiB/0007": the plug-in's options do not change what a
// running pod has.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/gpumem/v1/memory.pb.h"

namespace gpumem::kubernetes {

inline constexpr uint64_t kDefaultStep = uint64_t{1} << 30;
inline constexpr size_t kMostId = 63;             // characters of a device's id, as in Kubernetes
inline constexpr size_t kMostUnitList = 4 << 20;  // bytes of a list that the kubelet reads

// Returns the step that the text names, such as "256MiB".
//   INVALID_ARGUMENT  it is no whole number of MiB from 1 MiB to 1 TiB
absl::StatusOr<uint64_t> ParseStep(absl::string_view text);
// Returns "1GiB" or "256MiB". Requires a step of ParseStep.
std::string NameOfStep(uint64_t step);

// Returns the resource's name unless a site chooses another: "gpumem.dev/memory-1GiB".
std::string ResourceOf(uint64_t step);
// True if Kubernetes takes it as a name of an extended resource: "DOMAIN/NAME".
bool IsResourceName(absl::string_view name);
// True if pods' devices of the resource can be units: it is `ours`, or a name of ResourceOf.
bool HasUnits(absl::string_view resource, absl::string_view ours);

struct Unit {
  std::string uuid;  // of the GPU
  uint64_t step = 0;
  uint32_t number = 0;  // on the GPU, from 0
  bool operator==(const Unit&) const = default;
};

// Requires a UUID of UnitsOf and a step of ParseStep.
std::string IdOf(const Unit& unit);
//   INVALID_ARGUMENT  IdOf() returns no such text
absl::StatusOr<Unit> ParseId(absl::string_view id);

struct GpuUnits {
  uint32_t count = 0;
  bool healthy = true;
  bool operator==(const GpuUnits&) const = default;
};

struct UnitList {
  uint64_t step = kDefaultStep;
  std::map<std::string, GpuUnits> gpus;  // by UUID
  bool operator==(const UnitList&) const = default;
};

// Returns the units of gpumemd's GPUs. The rest of a GPU's memory, less than a step, has none.
//   INVALID_ARGUMENT    a UUID does not fit into an id, or two devices have the same
//   RESOURCE_EXHAUSTED  the list would be longer than the kubelet reads
absl::StatusOr<UnitList> UnitsOf(const google::protobuf::RepeatedPtrField<v1::Device>& devices,
                                 uint64_t step);

// Returns the list with the GPUs of `earlier` that are gone, as unhealthy ones: pods may have their
// units. Those that would make it longer than the kubelet reads are left out; those in `held`, of
// which pods have units, come first. Requires that both have the same step.
UnitList WithLost(UnitList now, const UnitList& earlier, const std::set<std::string>& held);
// Returns the list with all GPUs unhealthy.
UnitList Unhealthy(UnitList list);

// Returns the most bytes that a list takes in a message for the kubelet.
size_t BytesOf(const UnitList& list);

}  // namespace gpumem::kubernetes
