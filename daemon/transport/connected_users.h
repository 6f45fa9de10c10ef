// SPDX-License-Identifier: Apache-2.0
// The users of one socket: how many connections each has, the frames that all of them together may
// send, and the calls that may be open while they are closed.
//
// A user's budget outlives the user's last connection for a while. Otherwise each new connection
// would bring a new budget. A user that exceeds it has flooded: its connections are to be cut, and
// new ones are refused for a moment. The moment is short and does not grow: all tools of an
// operator have one uid, and one that is broken must not keep the others out.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/transport/meter/call_window.h"
#include "daemon/transport/meter/frame_budget.h"

namespace gpumemd {

struct ConnectedUsersOptions {
  // Returns a tenant's frames, but ten times those that carry nothing: each tool of an operator
  // connects for a few calls, and all have one uid. These limits are for peers that break the rules
  // of HTTP/2, so calls never wait.
  static FrameBudgetOptions OfAllTools();

  FrameBudgetOptions frames = OfAllTools();  // of each user
  // Open calls of connections that are being closed, of each user.
  CallWindowOptions ends = CallWindowOptions::OfEnds();
  absl::Duration pause = absl::Seconds(1);  // new connections are refused for so long
  // A user is forgotten so long after its last connection and its last refusal, or earlier if more
  // have no connections. Each bucket of `frames` is full again by then.
  absl::Duration memory = absl::Seconds(20);
  size_t max_without_connections = 1024;
};

// Not thread-safe; budgets and windows are. `now` is of a clock that does not go back.
class ConnectedUsers {
 public:
  explicit ConnectedUsers(const ConnectedUsersOptions& options) : options_(options) {}

  struct Limits {
    std::shared_ptr<FrameBudget> frames;
    std::shared_ptr<CallWindow> ends;
  };
  // Returns the limits that another connection of `uid` has in common with the user's others.
  //   RESOURCE_EXHAUSTED  refused for a while after a flood
  absl::StatusOr<Limits> LimitsOf(uid_t uid, absl::Time now);
  // Counts a connection that got the limits.
  void Connected(uid_t uid);
  // Requires a counted connection.
  void Ended(uid_t uid, absl::Time now);
  // True if the user has exceeded the budget since the last call that returned true. Starts the
  // refusal. The caller must cut the user's connections.
  bool TakeFlood(uid_t uid, absl::Time now);

  // Returns the windows that hold connections until others have been closed.
  std::vector<std::shared_ptr<CallWindow>> WindowsWithHeld() const;
  uint32_t connections(uid_t uid) const;
  // Returns how many users are known.
  size_t size() const { return users_.size(); }

 private:
  struct User {
    std::shared_ptr<FrameBudget> frames;  // of the connections since the last flood
    std::shared_ptr<CallWindow> ends;     // of all connections
    uint32_t connections = 0;
    absl::Time left_at = absl::InfinitePast();  // when it was first without connections again
    absl::Time refused_until = absl::InfinitePast();
  };

  absl::Time ForgottenAt(const User& user) const;
  // Makes room for another user without connections.
  void Forget(absl::Time now);

  const ConnectedUsersOptions options_;
  absl::flat_hash_map<uid_t, User> users_;
};

}  // namespace gpumemd
