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

// Runs jobs on a few threads, those of users in turn. A user with many jobs holds up only the own
// ones.
class Calls {
 public:
  // The job's user has one more place once all copies are gone.
  using Place = std::shared_ptr<void>;
  using Job = std::function<void(Place)>;

  // Starts the threads. At most `places` jobs of a user hold a place; the others wait.
  //   RESOURCE_EXHAUSTED  no thread can be started
  static absl::StatusOr<std::unique_ptr<Calls>> Start(size_t places);
  // Blocks until the running jobs have returned. Drops those that wait.
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // Runs `job` with a place, as soon as its user has one. Thread-safe.
  void Add(uid_t user, Job job);

 private:
  class Queue;
  explicit Calls(size_t places);

  const std::shared_ptr<Queue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace gpumem::web
