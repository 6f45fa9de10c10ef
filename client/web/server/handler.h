// SPDX-License-Identifier: Apache-2.0
// Answers requests. Knows no connections.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/web/feed/feed_source.h"
#include "client/web/server/answer.h"
#include "client/web/server/calls.h"
#include "client/web/server/routes.h"
#include "client/web/server/users/logins.h"

namespace gpumem::web {

// The end of a connection.
struct Caller {
  std::optional<Viewer> viewer;  // of a unix socket; nullopt: TCP, where only a key tells the user
};

// Runs on the server's thread.
class Handler {
 public:
  struct Facts {
    std::vector<std::string> hosts;       // names of this server beside those of loopback
    std::string node;                     // the node's name
    std::string origin;                   // http://ADDRESS:PORT for login links; empty: no TCP
    std::function<std::string()> peers;   // the document of other nodes. Must not block
    std::function<uid_t(uid_t)> user_of;  // the user that a uid counts as
  };
  // May be called before Handle() returns, and on any thread.
  using Done = std::function<void(Answer)>;

  // All must outlive the handler. `names`: for calls of directory services, which must not wait for
  // those of the feed.
  Handler(Facts facts, FeedSource* feed, Logins* logins, Calls* calls, Calls* names)
      : facts_(std::move(facts)), feed_(feed), logins_(logins), calls_(calls), names_(names) {}

  // Returns the user that a request is from: the caller's, or the one of its key.
  std::optional<Viewer> Authenticate(const Caller& caller, const std::string& authorization);
  // Answers a request of this user, or of a user that is not known. Calls `done` once, not at all
  // if the server ends before, or if all copies of the returned ticket are gone before.
  Calls::Ticket Handle(const Caller& caller, const std::optional<Viewer>& viewer,
                       const Request& request, const Done& done);
  // Returns a login link for this user.
  //   FAILED_PRECONDITION  the server has no TCP listener
  //   RESOURCE_EXHAUSTED   the user has too many unused ones
  absl::StatusOr<std::string> NewLink(const Viewer& viewer);

 private:
  // Returns the answer to a request that is not admitted.
  std::optional<Answer> Refuse(const std::optional<Viewer>& viewer, const Request& request,
                               Route route) const;
  Answer LinkAnswer(const Caller& caller, const Viewer& viewer);
  Answer LoginAnswer(const Caller& caller, const std::string& body);
  // Asks the feed, or for a name, on another thread.
  Calls::Ticket Ask(Route route, const Viewer& viewer, const Request& request, const Done& done);

  const Facts facts_;
  FeedSource* const feed_;
  Logins* const logins_;
  Calls* const calls_;
  Calls* const names_;
};

}  // namespace gpumem::web
