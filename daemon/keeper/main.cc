// SPDX-License-Identifier: Apache-2.0
// gpumem-keeper: replaces systemd's FD store on machines without systemd.
//
// It must not fail, since all that it keeps would be lost. It uses no library but the C and C++
// ones, allocates little, and never blocks but in its wait for messages and signals.
#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "daemon/keeper/keeper.h"
#include "daemon/keeper/notify_socket.h"
#include "daemon/keeper/options.h"

int main(int argc, char** argv) {
  using namespace gpumemd::keeper;
  // Descriptors 0 to 2 are the daemon's, too: no socket may get their numbers.
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
  // Descriptors from outside, open by mistake or for socket activation, are not for the daemon.
  close_range(STDERR_FILENO + 1, UINT_MAX, CLOSE_RANGE_CLOEXEC);

  int exit_code = 0;
  const std::optional<Options> options = ParseOptions(argc, argv, exit_code);
  if (!options.has_value()) return exit_code;
  std::string error;
  std::optional<NotifySocket> socket = NotifySocket::Make(error);
  if (!socket.has_value()) {
    fprintf(stderr, "gpumem-keeper: %s\n", error.c_str());
    return 1;
  }
  return Keeper(*options, *std::move(socket)).Run();
}
