// SPDX-License-Identifier: Apache-2.0
#include "common/fork_count.h"

#include <pthread.h>

namespace gpumem::internal {

std::atomic<uint64_t> fork_count{0};

uint64_t CountForks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return KnownForkCount();
}

}  // namespace gpumem::internal
