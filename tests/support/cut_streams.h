// SPDX-License-Identifier: Apache-2.0
// The loss of this process's connections.
#pragma once

namespace gpumem::testing {

// Ends gRPC connections, as if either side had closed them: shuts down all connected Unix stream
// sockets of this process. The library sees the end of its stream.
void CutStreams();

}  // namespace gpumem::testing
