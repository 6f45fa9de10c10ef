// SPDX-License-Identifier: Apache-2.0
// For tests that fork().
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

// Of clang's counters for `./run coverage`, which _exit() would lose; null without them.
extern "C" __attribute__((weak)) int __llvm_profile_write_file();  // NOLINT

namespace gpumem::internal {

// Calls `holds` in a child of fork(). True if the child has returned true.
inline bool HoldsInChild(const std::function<bool()>& holds) {
  const pid_t child = fork();
  if (child == 0) {
    const bool held = holds();
    if (__llvm_profile_write_file != nullptr) __llvm_profile_write_file();
    _exit(held ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace gpumem::internal
