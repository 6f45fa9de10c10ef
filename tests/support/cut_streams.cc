// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cut_streams.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/socket.h>

namespace gpumem::testing {

void CutStreams() {
  DIR* fds = opendir("/proc/self/fd");
  if (fds == nullptr) return;
  while (const dirent* entry = readdir(fds)) {
    const int fd = atoi(entry->d_name);
    int type = 0, domain = 0;
    socklen_t size = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) continue;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX) continue;
    shutdown(fd, SHUT_RDWR);
  }
  closedir(fds);
}

}  // namespace gpumem::testing
