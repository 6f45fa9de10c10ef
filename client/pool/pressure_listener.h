// Hears on a pool's behalf what is to be given back: what others are denied (Pressure), and what is
// taken back (Revocation).
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

  // From here on, once Listen() was called, these are called in a thread of the listener's. Each
  // may be empty; both: as Disable().
  void Enable(std::function<void(const Pressure&)> give,
              std::function<void(const Revocation&)> yield) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for a call that is under way; there is none after it.
  void Disable() ABSL_LOCKS_EXCLUDED(mutex_);

  // Sees to it that there is a watch, if one is to be had: one may have been refused, or dropped
  // for reading too slowly. Cheap where there is one; asks for another once a second at most.
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
