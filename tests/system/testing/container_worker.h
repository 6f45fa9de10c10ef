// SPDX-License-Identifier: Apache-2.0
// A client that a test commands: the program in containers of container_test.
#pragma once

#include <string>

namespace gpumem {

// Connects to the test's socket at `path` and answers each message until the test closes it: "OK",
// or the result of the message.
//   connect            to the daemon
//   acquire MIB        a segment, written full
//   acquire MIB wait   the same, waiting for it up to a minute
//   check              whether all of its memory is as it was written
//   publish NAME       its memory, for all tenants
//   attach NAME        to a publication, and checks its bytes
//   tenant             "red"
//   charged            to the tenant, in bytes, by the daemon's count
//   pid                as it numbers itself
// Returns the exit code.
int RunContainerWorker(const std::string& path);

}  // namespace gpumem
