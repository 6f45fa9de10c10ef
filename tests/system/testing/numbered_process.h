// SPDX-License-Identifier: Apache-2.0
// Processes that all have one number, one after the other, in a separate PID namespace.
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <string>

#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace gpumem::testing {

inline constexpr pid_t kNumber = 20000;  // the one that is given out again and again

// The identity of a process.
struct Part {
  const char* name;
  uid_t id;           // uid and gid, if there are other users
  std::string procs;  // of its control group; empty: none
};

// How the life of a process ends that has connected.
struct Life {
  bool stays = false;       // until it is killed
  absl::string_view hello;  // sent before; empty: nothing
  int yields = 0;           // how often it lets others run before it dies
};

// Process `kNumber`, made as `part`: connects `end` to `address` and lives its `life`.
// Does nothing but system calls, since the conductor has threads.
// Returns its number, or -1.
pid_t Start(const Part& part, bool as_other_user, int end, const sockaddr_un& address,
            const Life& life);

// Reaps process `kNumber`; true if it ended well.
bool Reap();
// Kills process `kNumber`, and reaps it.
void Kill();

// Returns the address of the socket at this path.
sockaddr_un AddressOf(const std::string& path);
// Returns an unconnected socket.
UniqueFd NewEnd();
// Blocks until the second process has connected `end`; false if it does not. The end is no longer
// unconnected then.
bool Connected(int end);

}  // namespace gpumem::testing
