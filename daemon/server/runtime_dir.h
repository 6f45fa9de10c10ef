// SPDX-License-Identifier: Apache-2.0
// The runtime folder, which has the daemon's sockets: made by the daemon if it is missing, and safe
// from other users.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace gpumemd {

// Removes the folder if this or an earlier daemon made it. Before Serves(), it removes only what it
// made itself: a failed start removes nothing else.
//
// A daemon marks a folder that it made with a file in it, kMadeMark. Clients that come after the
// last daemon would otherwise wait for another.
class RuntimeDir {
 public:
  static constexpr char kMadeMark[] = ".made-by-gpumemd";

  // Makes the folder and its parents, if they are missing.
  //   FAILED_PRECONDITION  other users may write to the folder, or replace it: they own a folder on
  //                        the way to it, or may write to one that is not sticky
  //   others               as the operating system says
  static absl::StatusOr<RuntimeDir> Open(const std::string& path);

  RuntimeDir() = default;
  RuntimeDir(RuntimeDir&& other) noexcept { *this = std::move(other); }
  RuntimeDir& operator=(RuntimeDir&& other) noexcept;
  ~RuntimeDir();

  // Marks the daemon as serving: the destructor then also removes a folder that an earlier daemon
  // made.
  void Serves();
  // Leaves the folder to the next daemon.
  void LeaveForNext();

 private:
  std::string folder_;       // empty: not to be removed
  std::string kept_folder_;  // made by an earlier daemon; until Serves()
};

}  // namespace gpumemd
