// SPDX-License-Identifier: Apache-2.0
// Work that may block, off the server's thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace gpumem::web {

// Runs jobs on a few threads, those of users in turn. A user with many jobs, or with jobs that
// block, holds up only the own ones.
class Calls {
 public:
  struct Limits {
    size_t places = 1;   // jobs of a user that hold a place; the others wait
    size_t waiting = 1;  // jobs of a user that wait
    // At least 2. Jobs of one user run on all but one of them: that one is for other users.
    size_t threads = 2;
  };
  // The job's user has one more place once all copies are gone.
  using Place = std::shared_ptr<void>;
  using Job = std::function<void(Place)>;
  // Drops its job, unless that has begun, once all copies are gone.
  using Ticket = std::shared_ptr<void>;

  // Starts the threads.
  //   RESOURCE_EXHAUSTED  no thread can be started
  static absl::StatusOr<std::unique_ptr<Calls>> Start(const Limits& limits);
  // Blocks until the running jobs have returned. Drops those that wait.
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // Runs `job` with a place, as soon as its user has one, if the ticket still exists then.
  // Thread-safe.
  //   RESOURCE_EXHAUSTED  too many jobs of the user wait
  absl::StatusOr<Ticket> Add(uid_t user, Job job);

 private:
  class Queue;
  explicit Calls(const Limits& limits);

  const std::shared_ptr<Queue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace gpumem::web
