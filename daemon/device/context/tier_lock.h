// SPDX-License-Identifier: Apache-2.0
// Tells a daemon which copiers of an earlier daemon may still write to the host tier's file.
//
// A copier locks one byte of the file: the byte whose offset is its pid. The lock belongs to a
// separate opening (fcntl(2), F_OFD_SETLK), so it ends with the process and with nothing else.
// Linux closes the descriptors of a process that ends from the highest to the lowest (fs/file.c,
// close_files), so a lock behind a low one outlives what the driver has open.
#pragma once

#include <sys/types.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumemd {

// The name of a process with a context, as ps(1) shows it.
inline constexpr char kContextProcessName[] = "gpumem-context";

// The locks of this process. Not thread-safe. Requires that they live until the process ends.
class TierLock {
 public:
  // Reserves a low descriptor for the first lock. Requires that the driver has none open yet.
  TierLock();

  // Locks the file if this does not have it yet. The caller must then check that its daemon lives,
  // before it writes: the next daemon looks for locks once that daemon has ended.
  //   RESOURCE_EXHAUSTED  no descriptors or memory left
  //   INTERNAL            any other error of the system
  absl::Status Hold(int tier_fd);

 private:
  struct File {
    dev_t device = 0;
    ino_t inode = 0;
    gpumem::UniqueFd locked;
  };
  std::vector<File> files_;
  gpumem::UniqueFd low_;  // until the first lock takes its place
};

// A copier whose daemon has ended needs less by itself: see kGraceMs in server.cc.
inline constexpr absl::Duration kCopierGrace = absl::Seconds(6);

// Blocks until no process has the file locked. Kills those that live longer than `grace`. Requires
// that no copier of this daemon has the file.
//   UNAVAILABLE         a copier does not end although it was killed, or it cannot be told from
//                       another process
//   RESOURCE_EXHAUSTED  no descriptors or memory left
//   INTERNAL            any other error of the system
absl::Status AwaitCopiers(int tier_fd, absl::Duration grace = kCopierGrace);

}  // namespace gpumemd
