// SPDX-License-Identifier: Apache-2.0
// The daemon's sockets: handed over by the service manager, or made by the daemon.
//
// With units of type socket the manager makes them before the daemon starts, and keeps them while
// the daemon is away: new connections wait in the socket's queue for the next daemon. The unit
// determines such a socket's path, mode and group. It is recognized by its name in the unit:
// FileDescriptorName= session, admin or view (systemd.socket(5)).
//
// gpumem-keeper makes no sockets. The daemon has it keep the daemon's sockets (KeepIn), and the
// next daemon receives them: connections wait for it in the same way. The configuration of such a
// socket is applied anew; one that its path no longer leads to is replaced.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/config/config.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "daemon/server/runtime_dir.h"

namespace gpumemd {

// Removes the files of daemon-made sockets, and the runtime folder as RuntimeDir does; the
// manager's files stay. Before Serves(), it removes only what it made itself: a failed start
// removes nothing else.
class Listeners {
 public:
  // Makes the runtime folder, if it is missing, and those sockets that are not in `handed_over`.
  // `kept`: an earlier daemon has made those handed over (KeepIn).
  //   ALREADY_EXISTS       another daemon serves there
  //   FAILED_PRECONDITION  other users may write to the folder, or replace it: they own a folder on
  //                        the way to it, or may write to one that is not sticky
  //   INVALID_ARGUMENT     a socket that was handed over is none of them, twice there, or of a
  //   wrong
  //                        type; or the path of the folder is too long
  //   others               as the operating system says
  static absl::StatusOr<Listeners> Open(const Config& config, std::vector<NamedFd> handed_over,
                                        bool kept = false);

  Listeners() = default;
  Listeners(Listeners&& other) noexcept { *this = std::move(other); }
  Listeners& operator=(Listeners&& other) noexcept;
  ~Listeners();

  // Marks the daemon as serving: the destructor then also removes the files and the folder that an
  // earlier daemon made.
  void Serves();
  // Removes the files of the sockets now, while they are still open. So a daemon that starts in
  // this moment makes new ones.
  void RemoveFiles();
  // Has `store` keep the daemon-made sockets, for the next daemon. Call before they are taken.
  // Statuses as FdStore::Store.
  absl::Status KeepIn(FdStore& store);
  // Leaves the runtime folder, and the files of kept sockets, to the next daemon.
  void LeaveForNext();

  // Non-blocking, close-on-exec. The caller takes them.
  gpumem::UniqueFd session, admin, view;
  // Facts for the operator about sockets that were handed over, in sentences.
  std::vector<std::string> notices;
  // The number of sockets that were handed over.
  int handed_over = 0;

 private:
  std::vector<std::string> files_;
  std::vector<std::string> kept_files_;            // made by an earlier daemon; until Serves()
  std::vector<std::pair<std::string, int>> made_;  // names and sockets, until KeepIn
  bool kept_ = false;                              // the store has all sockets of files_
  RuntimeDir dir_;                                 // removed after the files
};

}  // namespace gpumemd
