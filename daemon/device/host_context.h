// What stands in for a CUDA context on a host device: memfds that only this process owns.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/context.h"

namespace gpumemd {

// `spec.device_uuid` is a host device's. Answers on `spec.socket_path`, replacing what is
// there, for as long as it lives; with an empty path it makes no memory of kind ipc
// (UNIMPLEMENTED). host_ipc.h says how its memory is opened.
//
// Where CUDA recycles a pool's memory without the driver, so does it: freed bytes keep what was
// written until the pool gives them back or somebody gets them, zeroed.
absl::StatusOr<std::unique_ptr<Context>> MakeHostContext(const ContextSpec& spec);

}  // namespace gpumemd
