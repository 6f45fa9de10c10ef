// SPDX-License-Identifier: Apache-2.0
// Descriptors in the service manager's FD store, each in a place directly or in a crate.
//
// With systemd as the manager, the descriptors lie in crates (fd_crates.h). gpumem-keeper takes
// each one directly, while it has places. A manager silently drops descriptors for which it has no
// place. So places are counted if their number is known, and the manager is asked for them before
// each new crate.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/restart/fd_store/fd_crates.h"
#include "daemon/restart/fd_store/fd_store.h"

namespace gpumemd {

// Thread-safe, except Adopt() and AdoptDirect().
class StorePlaces {
 public:
  // A manager that answers later does not hold up further segments.
  static constexpr absl::Duration kAnswerTime = absl::Seconds(2);

  // `store` outlives this.
  explicit StorePlaces(FdStore& store);

  // Takes over what an earlier daemon stored: crates and their contents, as FdCrates::Adopt, and a
  // descriptor that is stored directly. Call before all else.
  absl::StatusOr<std::vector<NamedFd>> Adopt(std::vector<NamedFd>& inherited) {
    return crates_.Adopt(inherited);
  }
  void AdoptDirect(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);

  // The result of keeping a descriptor.
  struct Outcome {
    absl::Status status;  // OK: it is
    bool full = false;    // it is not kept: the store has no place for it
  };
  // Stores a descriptor by a unique name. Makes a crate for it if there is no other place.
  Outcome Put(const std::string& name, int fd) ABSL_LOCKS_EXCLUDED(crates_mutex_, mutex_);

  struct Removal {
    absl::Status status;  // the first error; names that are not stored are none
    bool freed = false;   // there are more places than before
  };
  Removal Remove(absl::Span<const std::string> names) ABSL_LOCKS_EXCLUDED(mutex_);

  // True if a descriptor can be stored without a new crate.
  bool HasPlace() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of places that this daemon uses, by its count.
  uint64_t used() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool TakeDirectPlace(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes a crate if all are full.
  Outcome MakeRoom() ABSL_LOCKS_EXCLUDED(crates_mutex_);
  Outcome CheckPlacesOfACrate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(crates_mutex_);

  FdStore& store_;
  // Held from the question whether there are places for a crate until the crate is made. Not needed
  // for a descriptor that fits into an existing crate.
  absl::Mutex crates_mutex_;
  Outcome no_crate_ ABSL_GUARDED_BY(crates_mutex_);  // of the last question; valid until then:
  std::chrono::steady_clock::time_point ask_again_ ABSL_GUARDED_BY(crates_mutex_);
  FdCrates crates_;
  // Number of descriptors that go to the manager directly. Crates hold the rest, and need places of
  // it, too.
  const uint64_t direct_room_;

  mutable absl::Mutex mutex_;
  absl::flat_hash_set<std::string> direct_ ABSL_GUARDED_BY(mutex_);  // names that went directly
};

}  // namespace gpumemd
