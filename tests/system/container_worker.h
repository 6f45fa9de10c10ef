// A client that does what a test says: the program in containers of container_test.
#pragma once

#include <string>

namespace gpumem {

// Connects to the test's socket at `path` and answers each message until the test closes it: "OK",
// or what it is about.
//   connect            to the daemon
//   acquire MIB        a segment, written full
//   acquire MIB wait   the same, waiting for it up to a minute
//   check              whether all that it has is as it was written
//   publish NAME       what it has, for everybody
//   attach NAME        to a publication, and checks its bytes
//   tenant             "red"
//   charged            to the tenant, in bytes, by the daemon's count
//   pid                as it numbers itself
// Returns the exit code.
int RunContainerWorker(const std::string& path);

}  // namespace gpumem
