// SPDX-License-Identifier: Apache-2.0
// The process's default pools: one for each device, created at first use, never destroyed. The
// environment configures them (gpumem/gpumem.h).
//
// Thread-safe; an existing pool is found without a lock.
#pragma once

#include "absl/status/statusor.h"
#include "gpumem/gpumem.h"

namespace gpumem::c_api {

//   INVALID_ARGUMENT     the ordinal is negative or absurd; an environment variable is invalid
//   FAILED_PRECONDITION  in a child after fork() whose parent has asked before
//   and as Client::Connect and Pool::Create; the next call tries again.
// In such a child, a pool that the parent has made is returned; its calls give this status.
absl::StatusOr<gpumem_pool*> DefaultPool(int device);

// Returns the pool if DefaultPool() has made it.
//   NOT_FOUND  it has not
absl::StatusOr<gpumem_pool*> FindDefaultPool(int device);

// Returns the ordinal of CUDA's current device; 0 if there is none.
int CurrentDevice();

}  // namespace gpumem::c_api
