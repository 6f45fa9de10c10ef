// SPDX-License-Identifier: Apache-2.0
// Tells whether the process is the one that an object was made in, or a child of it after fork().
// As getpid() would, without a system call.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpumem::internal {

extern std::atomic<uint64_t> fork_count;

// Returns the number of calls of fork() that led to this process from the first one that called
// this. Children of vfork(), or of clone() without the C library, have the number of their parent.
uint64_t CountForks();

// The same, after a call of CountForks() in this process or one that led to it.
inline uint64_t KnownForkCount() { return fork_count.load(std::memory_order_relaxed); }

}  // namespace gpumem::internal
