// SPDX-License-Identifier: Apache-2.0
// Packs many stored descriptors into few of the service manager's, in crates.
//
// systemd's FD store gets slow with the number of its descriptors, and PID 1 with it (see
// fd_store.h). A crate is a pair of connected sockets that the manager stores. The unread messages
// in its queue are descriptors, sent with SCM_RIGHTS (unix(7)). The kernel keeps them there for as
// long as the manager keeps the crate, so they outlive this process. Putting one in or taking one
// out does not involve the manager.
//
// Measured with 9,000 of them in 282 crates (564 descriptors in the manager):
//   - 3 us to put one in, 8 us including the making of crates,
//   - 110 us to take any one out,
//   - 60 ms to adopt them all,
//   - one more crate for PID 1 to take in after every 32 descriptors.
//
// Tests on an H200 showed this for descriptors of CUDA's memory (VMM): the queue alone held the
// memory when its owner was killed, another process read it correctly, and taking one out freed it.
//
// A queue is open at its front only. To take one out of the middle, those before it move to the
// end, each put in again before it leaves the front. If this process dies meanwhile, each is in
// there once or twice, and Adopt() drops the second.
//
// The kernel counts descriptors in queues for each user. A process without CAP_SYS_RESOURCE and
// CAP_SYS_ADMIN can send none (ETOOMANYREFS) when its user has more of them than the process may
// have open files (too_many_unix_fds() in Linux's net/core/scm.c). So give the daemon a separate
// user, root or "gpumem". Otherwise keep the number below the limits of that user's other
// processes, often 1,024. gpumem-keeper needs no crates: it takes any number of descriptors at 10
// us each.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/restart/fd_store/fd_store.h"

namespace gpumemd {

// Thread-safe.
class FdCrates {
 public:
  static constexpr size_t kCrateSize = 32;  // descriptors; the cost of taking one out is
                                            // proportional
  // Kind of the crates' names in the FD store (fd_name.h): "c0", "c1", … Reserved for crates.
  static constexpr char kKind = 'c';

  // Stores crates in `store`, which has to outlive this object.
  explicit FdCrates(FdStore& store) : store_(store) {}

  // Takes the crates out of the descriptors that the process was handed, and continues to use them.
  // Returns their contents, in no useful order; all of it also stays in them. Must be called first,
  // if at all; after an error this object is unusable.
  //   RESOURCE_EXHAUSTED  this process may not open so many files (raise its limit before: systemd
  //                       starts services with 1,024); nothing in them is lost
  //   INTERNAL            a crate is not as this class makes them
  //   others              FdStore's
  absl::StatusOr<std::vector<NamedFd>> Adopt(std::vector<NamedFd>& inherited);

  // Puts a descriptor in, by a unique name of 1 to 255 bytes. It outlives this process from then
  // on.
  //   ALREADY_EXISTS      there is one of this name
  //   INVALID_ARGUMENT    the name or the descriptor is invalid
  //   RESOURCE_EXHAUSTED  too many of this user's descriptors are in queues (see above)
  //   others              FdStore's, if a new crate is needed; it waits for at most kTimeout
  absl::Status Store(absl::string_view name, int fd) ABSL_LOCKS_EXCLUDED(mutex_);

  // As Store(), but makes no new crate: false if none has room.
  absl::StatusOr<bool> StoreInRoom(absl::string_view name, int fd) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes a crate, which needs two places of the manager's. Other calls proceed meanwhile. Statuses
  // as FdStore::Store.
  absl::Status AddCrate(absl::Duration timeout = FdStore::kTimeout) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes the descriptor out and closes it: on return, nothing in here refers to its file.
  //   NOT_FOUND           there is none of this name
  //   RESOURCE_EXHAUSTED  no descriptor is left that this takes for a moment; it is still in
  absl::Status Remove(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);

  // Return the number of descriptors, and of crates. Crates are never given up.
  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t crates() const ABSL_LOCKS_EXCLUDED(mutex_);
  // True if the next Store() makes a new crate, for which the manager needs two places.
  bool full() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Crate {
    gpumem::UniqueFd in, out;         // ends of a socket pair
    std::deque<std::string> content;  // as in the queue
  };

  // Makes a crate and has the manager store it.
  absl::StatusOr<std::unique_ptr<Crate>> MakeCrate(uint64_t number, absl::Duration timeout);
  absl::Status StoreLocked(absl::string_view name, int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> StoreInRoomLocked(absl::string_view name, int fd)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(uint64_t number, std::unique_ptr<Crate> crate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AdoptWhole(uint64_t number, std::unique_ptr<Crate> adopted,
                          std::vector<NamedFd>& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AdoptHalf(uint64_t number, const gpumem::UniqueFd& out, std::vector<NamedFd>& found)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FdStore& store_;
  mutable absl::Mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Crate>> crates_ ABSL_GUARDED_BY(mutex_);  // by number
  std::vector<Crate*> with_room_ ABSL_GUARDED_BY(mutex_);  // in crates_: all that are not full
  absl::flat_hash_map<std::string, Crate*> where_ ABSL_GUARDED_BY(mutex_);  // by name of content
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumemd
