// SPDX-License-Identifier: Apache-2.0
// Listens for requests to a pool: memory denied to other sessions (Pressure), and revoked memory
// (Revocation).
//
// Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gpumem/client.h"

namespace gpumem::internal {

class PressureListener {
 public:
  // `client` outlives it.
  explicit PressureListener(Client* client) : client_(client) {}

  // Sets the functions that a thread of the listener calls once Listen() was called. Each may be
  // empty; both empty: as Disable().
  void Enable(std::function<void(const Pressure&)> give,
              std::function<void(const Revocation&)> yield) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until a call in progress has returned; no call follows.
  void Disable() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ensures that there is a watch, if possible: one may have been refused, or dropped for reading
  // too slowly. Cheap if there is one; otherwise tries at most once a second.
  void Listen() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Client* const client_;
  absl::Mutex mutex_;
  std::function<void(const Pressure&)> give_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const Revocation&)> yield_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Watch> watch_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<std::atomic<bool>> ended_ ABSL_GUARDED_BY(mutex_);  // of watch_
  absl::Time tried_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace gpumem::internal
