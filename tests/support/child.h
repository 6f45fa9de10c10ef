// SPDX-License-Identifier: Apache-2.0
// Child processes for tests and benchmarks: each is killed and reaped at its end, on
// every path, so that a failed test leaves nothing behind.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem::testing {

class Child {
 public:
  Child() = default;
  // Runs a program. It is killed with its parent, whatever happens to that. It gets no GTEST_*
  // variables: a shard of this program would leave out the test that the child is to run.
  explicit Child(std::vector<std::string> args,
                 std::vector<std::pair<std::string, std::string>> env = {});
  // Runs this very program again (/proc/self/exe) with these arguments, and a socket in
  // descriptor 3 whose other end is channel(). A plain fork would not do: neither CUDA
  // nor gRPC survives it.
  static Child Self(std::vector<std::string> args);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();  // SIGKILL, then Wait

  pid_t pid() const { return pid_; }
  bool running() const { return pid_ > 0; }
  int channel() const { return channel_.get(); }
  void Signal(int signal) const;
  // True if it has ended and is not reaped yet.
  bool HasEnded() const;
  // Reaps it and returns its exit code, or 128 + the signal that ended it; -1 if there is none.
  int Wait();

 private:
  pid_t pid_ = -1;
  UniqueFd channel_;
};

// The child's end of channel(). Both ends exchange words.
inline constexpr int kParentChannel = 3;
// Sends words; they are lost if the other end is gone.
void Say(int channel, const std::string& words);
// The next ones; an error in words where none come within a minute.
std::string Hear(int channel);

// True if this process may act for other users: it is root, and not in a user namespace without
// other users.
bool CanBeOtherUsers();

// Open descriptors of a process, by /proc/PID/fd.
int CountFds(pid_t pid);
// Its child processes, by /proc/PID/task/*/children.
std::vector<pid_t> ChildrenOf(pid_t pid);
// Resident memory in bytes, by /proc/PID/status.
uint64_t ResidentBytes(pid_t pid);

// Calls `done` until it returns true; false if it does not within `patience`. For changes that no
// call waits for: the caller's condition decides, not the time.
bool Eventually(const std::function<bool()>& done, absl::Duration patience = absl::Seconds(20));

}  // namespace gpumem::testing
