// SPDX-License-Identifier: Apache-2.0
// Physical memory, for vmm.cc and vmm_sharing.cc. All under the state's lock.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "client/preload/toolkit.h"

namespace fake_cuda {

struct Physical {
  int fd;  // -1: a multicast object
  uint64_t size;
  int device;  // -1: in host memory, or another process's
  CUmemAllocationProp properties;
  int handles = 1;
  int mappings = 0;
};

// A mapping, by its address.
struct Mapped {
  Physical* physical;
  std::map<std::pair<int, int>, CUmemAccess_flags> access = {};  // by type and id of the location
};

// Those that are mapped, by address, and those that have handles. A handle is the object's address.
std::map<uint64_t, Mapped>& Mappings();
std::set<Physical*>& Handles();
// Null for a handle that does not exist.
Physical* FindHandle(CUmemGenericAllocationHandle handle);

}  // namespace fake_cuda
