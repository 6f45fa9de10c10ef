// The process's default pools: one for each device, made when it is first asked for, never ended.
// The environment says how (gpumem/gpumem.h).
//
// Thread-safe; a pool that is there is found without a lock.
#pragma once

#include "absl/status/statusor.h"
#include "gpumem/gpumem.h"

namespace gpumem::c_api {

//   INVALID_ARGUMENT     the ordinal is negative or absurd; an environment variable makes no sense
//   FAILED_PRECONDITION  in a child after fork() whose parent has asked before
//   and as Client::Connect and Pool::Create; the next call tries again
absl::StatusOr<gpumem_pool*> DefaultPool(int device);

// The ordinal of the device that is current in CUDA; 0 where none is.
int CurrentDevice();

}  // namespace gpumem::c_api
