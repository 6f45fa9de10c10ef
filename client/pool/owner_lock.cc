// SPDX-License-Identifier: Apache-2.0
#include "client/pool/owner_lock.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

namespace gpumem::internal {
namespace {

long Membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

void FenceAllThreads() {
  const int saved = errno;
  while (Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
    // The kernel's lack of memory passes. Any other error means that a filter of system calls came
    // after the registration; continuing would give one block to two threads.
    if (errno != ENOMEM) {
      std::perror("gpumem: membarrier(2), which worked before");
      std::abort();
    }
    std::this_thread::yield();
  }
  errno = saved;
}

}  // namespace

bool OwnerLock::OthersCanFence() {
  static const bool can = Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
  return can;
}

OwnerLock::Visit::Visit(std::vector<OwnerLock*> locks) : locks_(std::move(locks)) {
  for (OwnerLock* lock : locks_) {
    while (lock->other_in_.exchange(true, std::memory_order_seq_cst)) std::this_thread::yield();
  }
  if (!locks_.empty() && OthersCanFence()) FenceAllThreads();
  for (const OwnerLock* lock : locks_) {
    while (lock->owner_in_.load(std::memory_order_seq_cst)) std::this_thread::yield();
  }
}

OwnerLock::Visit::~Visit() {
  for (OwnerLock* lock : locks_) lock->other_in_.store(false, std::memory_order_release);
}

}  // namespace gpumem::internal
