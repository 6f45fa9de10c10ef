// SPDX-License-Identifier: Apache-2.0
// Tells of each allocation that a simulated daemon's threads make. The program's operator new is
// replaced for it, so a program that links this has no other.
#pragma once

namespace gpumemd::simulation {

class AllocationListener {
 public:
  virtual ~AllocationListener() = default;
  // Called before the memory is given. Allocations of this call itself are not told of.
  virtual void Allocates() = 0;
};

// Sets the listener of this thread's allocations, and returns the one before. Null: there is none.
AllocationListener* ListenToAllocations(AllocationListener* listener);

}  // namespace gpumemd::simulation
