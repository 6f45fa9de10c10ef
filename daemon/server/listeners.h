// The daemon's two sockets: those that the service manager has handed over, and those that the
// daemon makes itself.
//
// With units of type socket the manager makes them, before the daemon is started, and keeps them
// while it is away: who connects then waits in the socket's queue for the next daemon. Such a
// socket's path, mode and group are its unit's affair. It is told from others by its name, which
// the unit says: FileDescriptorName= session or admin (systemd.socket(5)).
//
// gpumem-keeper makes no sockets. The daemon has it keep those that it has made (KeepIn), and the
// next daemon is handed them: also there a connection waits for the next daemon. What the
// configuration says of such a socket is applied anew; one that its path no longer leads to is
// replaced.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/config/config.h"
#include "daemon/restart/fd_store/fd_store.h"

namespace gpumemd {

// Removes the files of the sockets that were made, and the runtime folder if a daemon has made it,
// this one or one before it; what the manager has made stays. Before Serves(), it removes only what
// it has made itself: a start that fails takes nothing away.
//
// A folder that a daemon has made says so by a file in it, kMadeMark. Without that, clients that
// come after the last daemon would wait for another.
class Listeners {
 public:
  static constexpr char kMadeMark[] = ".made-by-gpumemd";

  // Makes the runtime folder, where it is not there, and those sockets that are not in
  // `handed_over`.
  //   ALREADY_EXISTS       another daemon serves there
  //   FAILED_PRECONDITION  others may write to the folder, or replace it: they own a folder on the
  //                        way to it, or may write to one that is not sticky
  //   INVALID_ARGUMENT     what was handed over is neither of the two, twice there, or of a wrong
  //                        type; or the path of the folder is too long
  //   others               as the operating system says
  // `kept`: an earlier daemon has made what was handed over (KeepIn).
  static absl::StatusOr<Listeners> Open(const Config& config, std::vector<NamedFd> handed_over,
                                        bool kept = false);

  Listeners() = default;
  Listeners(Listeners&& other) noexcept { *this = std::move(other); }
  Listeners& operator=(Listeners&& other) noexcept;
  ~Listeners();

  // The daemon serves: after this call it also removes the files and the folder that an earlier
  // daemon made.
  void Serves();
  // Removes the files of the sockets now: while they are still open, so that a daemon that starts
  // in this moment makes its own.
  void RemoveFiles();
  // Has `store` keep the sockets that were made, for the next daemon. Before they are taken.
  // Statuses as FdStore::Store.
  absl::Status KeepIn(FdStore& store);
  // Another daemon follows: leaves the runtime folder to it, and the files of sockets that are
  // kept.
  void LeaveForNext();

  // Non-blocking, close-on-exec. The caller's to take.
  gpumem::UniqueFd session, admin;
  // What an operator should know of sockets that were handed over, in sentences.
  std::vector<std::string> notices;
  // How many were.
  int handed_over = 0;

 private:
  std::vector<std::string> files_;
  std::vector<std::string> kept_files_;  // made by a daemon before this one; until Serves()
  std::vector<std::pair<std::string, int>> made_;  // names and sockets, until KeepIn
  bool kept_ = false;                              // a store has all whose files_ these are
  std::string folder_;                             // empty: it is not to be removed
  std::string kept_folder_;                        // a daemon before this one made it
};

}  // namespace gpumemd
