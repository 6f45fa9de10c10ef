// What stands in for a CUDA context on a host device: memfds that only this process owns.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/context/context.h"

namespace gpumemd {

// `spec.device_uuid` is a host device's. Answers on `spec.socket_path`, replacing what is
// there, for as long as it lives; with an empty path it makes no memory (UNIMPLEMENTED).
// host_ipc.h says how its memory is opened.
//
// Each allocation is a memfd that is sealed at its size, also in a pool, so that no client can make
// it hold more. What a pool has reserved beyond the bytes in use is a number alone: freed memory
// goes at once.
absl::StatusOr<std::unique_ptr<Context>> MakeHostContext(const ContextSpec& spec);

}  // namespace gpumemd
