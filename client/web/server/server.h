// SPDX-License-Identifier: Apache-2.0
// Serves the page and the daemon's state over HTTP/1.1.
//
// One thread serves all connections; it never blocks. Calls of the feed run on others. Peers are
// assumed hostile: limits.h says what one may take.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/web/feed/feed_source.h"
#include "client/web/server/limits.h"
#include "client/web/server/listener.h"
#include "client/web/server/users/viewer_of_peer.h"

namespace gpumem::web {

// Returns the time since boot, as one since 1970 (CLOCK_BOOTTIME): that clock cannot be set, and it
// goes on while the machine sleeps.
absl::Time BootTime();

class Server {
 public:
  struct Options {
    Limits limits;
    std::vector<std::string> hosts;              // names of this server beside those of loopback
    std::vector<gid_t> groups;                   // whose members see all
    std::string node;                            // the node's name
    std::function<std::string()> peers;          // the document of other nodes. Must not block
    std::function<absl::Time()> now = BootTime;  // the clock of logins
    // Called once if there was no connection for so long, and no login lives.
    absl::Duration idle = absl::InfiniteDuration();
    std::function<void()> on_idle;
    // True if a uid has an account. Runs on any thread, and may block.
    std::function<absl::StatusOr<bool>(uid_t)> has_account = HasAccount;
  };

  // Starts a server. `feed` must outlive it.
  //   RESOURCE_EXHAUSTED  no thread, or no descriptor for its event loop
  static absl::StatusOr<std::unique_ptr<Server>> Start(std::vector<Listener> listeners,
                                                       FeedSource* feed, Options options);
  // Closes the listeners and all connections. Removes the files of its sockets.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Returns a login link for the user of this process. Blocks for the server's thread.
  //   FAILED_PRECONDITION  there is no TCP listener
  absl::StatusOr<std::string> OwnLink();

 private:
  class Loop;
  explicit Server(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace gpumem::web
