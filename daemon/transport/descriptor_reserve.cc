// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/descriptor_reserve.h"

#include <sys/resource.h>

#include <algorithm>

namespace gpumemd {

bool IsOfReserve(int fd) {
  constexpr rlim_t kReserve = 64;
  rlimit limit;  // it may be changed while the process runs (prlimit(2))
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  return static_cast<rlim_t>(fd) >= limit.rlim_cur - std::min(kReserve, limit.rlim_cur / 4);
}

absl::Status NoDescriptors() {
  return absl::ResourceExhaustedError(
      "the daemon has no file descriptors left; raise its LimitNOFILE, or try again when sessions "
      "have ended");
}

}  // namespace gpumemd
