// SPDX-License-Identifier: Apache-2.0
// A service that a test commands over a socket, for tests of the FD store in which a service
// manager starts it, kills it and starts it again. Each of its processes connects to the test anew.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace gpumem::testing {

// One process of it, from the test's side. It is not killed at the end of this object: the
// service manager is its parent.
class Puppet {
 public:
  // One that is not there: it answers with errors, and is not killed.
  Puppet() = default;
  Puppet(UniqueFd channel, pid_t pid) : channel_(std::move(channel)), pid_(pid) {}

  // Returns its number in the test's PID namespace.
  pid_t pid() const { return pid_; }
  // Returns its answer to one command; an error in words if it gives none within a minute.
  //   names                   of the descriptors that it was handed, "a,b,c"
  //   read NAME               the text in such a descriptor
  //   store NAME TEXT         stores a new file with this text: a status, "OK"
  //   store-again NAME NEW    the same file by another name: a status
  //   store-many PREFIX N     N new files, by PREFIX and a number from 0: a status
  //   remove NAME, remove-many PREFIX N, barrier, check-room, ready WORDS   a status
  //   pack NAME TEXT, pack-many PREFIX N, unpack NAME, unpack-many PREFIX N   the same in
  //                           crates (FdCrates), which it adopts at its start
  //   close NAME              of the descriptors that it was handed or has stored
  //   lost                    waits until the manager is gone, and says why
  //   capacity                of the store, 0: unknown
  //   env NAME                a variable's value
  //   fds                     how many descriptors are open
  //   raw N TEXT              TEXT to the notify socket as it is, with N descriptors
  //   raw-child N TEXT        the same from a child process
  std::string Ask(absl::string_view command) const;
  // Makes it end with this exit code, or by this signal, without an answer.
  void Exit(int code) const;
  void Kill(int signal) const;
  // Blocks until its process has ended (and all others with its end of the channel).
  void AwaitEnd() const;

 private:
  UniqueFd channel_;
  pid_t pid_ = 0;
};

// The test's end.
class PuppetStage {
 public:
  // Listens in `folder`.
  static absl::StatusOr<std::unique_ptr<PuppetStage>> Open(const std::string& folder);

  const std::string& path() const { return path_; }
  // The next process that comes; waits for it, a minute at most.
  absl::StatusOr<Puppet> Next();

 private:
  PuppetStage(std::string path, UniqueFd listener)
      : path_(std::move(path)), listener_(std::move(listener)) {}
  std::string path_;
  UniqueFd listener_;
};

// The service's main(): serves the stage at this path. Returns its exit code.
int RunPuppet(const std::string& path);

}  // namespace gpumem::testing
