// SPDX-License-Identifier: Apache-2.0
// Lets threads that outlive a part of the daemon, or start before it, call that part.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace gpumemd {

template <typename Part>
class PartRelay {
 public:
  PartRelay() = default;
  PartRelay(const PartRelay&) = delete;
  PartRelay& operator=(const PartRelay&) = delete;

  // Sets the part to call. It outlives the next Clear().
  void Set(Part* part) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    part_ = part;
  }

  // Blocks until no call is in progress, and prevents later ones. A call must not use it.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_) { Set(nullptr); }

  // Calls the part. False if there is none.
  template <typename Call>
  bool With(const Call& call) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::ReaderMutexLock lock(&mutex_);
    if (part_ == nullptr) return false;
    call(*part_);
    return true;
  }

 private:
  mutable absl::Mutex mutex_;
  Part* part_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// Owns a part that a relay calls. Destroys it only after the relay was cleared.
template <typename Part>
class RelayedPart {
 public:
  // `relay` outlives this.
  explicit RelayedPart(PartRelay<Part>* relay) : relay_(relay) {}
  ~RelayedPart() { reset(); }
  RelayedPart(const RelayedPart&) = delete;
  RelayedPart& operator=(const RelayedPart&) = delete;

  // Takes ownership of the part, which is called at once. Requires that there is none.
  void Own(std::unique_ptr<Part> part) {
    part_ = std::move(part);
    relay_->Set(part_.get());
  }
  // Blocks until no call is in progress, and destroys the part.
  void reset() {
    relay_->Clear();
    part_.reset();
  }

  Part* get() const { return part_.get(); }
  Part* operator->() const { return part_.get(); }
  bool operator==(std::nullptr_t) const { return part_ == nullptr; }

 private:
  PartRelay<Part>* const relay_;
  std::unique_ptr<Part> part_;
};

}  // namespace gpumemd
