// SPDX-License-Identifier: Apache-2.0
// Broker mode (client/preload/brokered_memory.h) over libgpumem's pools, one for each device.
#pragma once

#include <functional>
#include <string>

#include "client/preload/brokered_memory.h"
#include "gpumem/gpumem.h"

namespace gpumem::preload {

// Returns the UUID of a device that the daemon serves, or null. The text lives for ever.
using FindDevice = std::function<const std::string*(const GpumemDeviceId&)>;

// Begins to serve a session's memory, and the requests to suspend it. Called once in a process.
const GpumemBroker* StartBroker(gpumem_client* client, uint64_t wait_ms, FindDevice find,
                                const GpumemPreload& preload);

}  // namespace gpumem::preload
