// SPDX-License-Identifier: Apache-2.0
// The stand-in for a CUDA context on a host device: memfds that only this process owns.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/context/context.h"

namespace gpumemd {

// Returns a context for the host device `spec.device_uuid`. While it lives, it answers on
// `spec.socket_path`, replacing an existing file. With an empty path it makes no memory
// (UNIMPLEMENTED). host_ipc.h describes how its memory is opened.
//
// Each allocation is a memfd that is sealed at its size, also in a pool, so that no client can
// enlarge it. A pool's reserved bytes beyond the bytes in use are only a number: freed memory is
// released at once.
absl::StatusOr<std::unique_ptr<Context>> MakeHostContext(const ContextSpec& spec);

}  // namespace gpumemd
