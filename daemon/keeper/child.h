// SPDX-License-Identifier: Apache-2.0
// Runs the daemon with the descriptors that are kept for it.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "daemon/keeper/stored_fds.h"

namespace gpumemd::keeper {

struct ChildSpec {
  std::vector<std::string> command;
  std::string notify_socket;
  size_t max_fds = 0;
  sigset_t signal_mask;      // of the child
  struct sigaction on_pipe;  // what it does about SIGPIPE
};

// Runs the command, found in $PATH. It gets descriptors 0 to 2 of this process, the stored ones
// from 3 on, in their order, and no others; and the environment of sd_listen_fds(3). Returns its
// pid once it runs; else -1, errno says why. Requires a process with one thread only.
pid_t RunChild(const ChildSpec& spec, const StoredFds& stored);

}  // namespace gpumemd::keeper
