// SPDX-License-Identifier: Apache-2.0
// The attribute `free` of the node's devices: how much memory is guaranteed to no tenant. Pure.
//
// It is a hint for people and for selectors. The scheduler counts by itself what claims consume;
// what else gpumemd guarantees, it does not know. The attribute is written seldom, since each write
// of a slice goes to all schedulers.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "client/kubernetes/dra/slices.h"
#include "proto/gpumem/v1/tenant.pb.h"

namespace gpumem::kubernetes {

// Sets the free memory of each device: its memory without what guarantees need, rounded down to
// kMemoryStep. A tenant needs its guarantee or what its members need, whichever is more.
void SetFree(const v1::ListTenantsResponse& tenants, NodeDevices* devices);

// Returns the free memory that a published slice states, by device. Empty if the text is no slice.
std::map<std::string, uint64_t> FreeIn(absl::string_view published);

// Keeps the published amounts in place of those of `devices`, unless they may change and one of
// them differs by 1 GiB, or by 1/64 of the device. Devices without a published amount keep theirs.
void KeepFree(const std::map<std::string, uint64_t>& published, bool may_change,
              NodeDevices* devices);

}  // namespace gpumem::kubernetes
