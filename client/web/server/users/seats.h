// SPDX-License-Identifier: Apache-2.0
// Which connection to close when there are too many. Has no I/O.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>

namespace gpumem::web {

// The connections of each user, in the order of their last activity. A user with many connections
// loses the own ones, and takes none from users with fewer. Not thread-safe.
class Seats {
 public:
  using Id = uint64_t;
  using User = std::optional<uid_t>;  // nullopt: not known before the login

  // At most `limit` connections in all, and `limit_of_user` of each user.
  Seats(size_t limit, size_t limit_of_user) : limit_(limit), limit_of_user_(limit_of_user) {}

  // Adds a connection. Returns the one to close for it: the quietest of the same user if that one
  // is at the limit, else the quietest of the user with most if there are too many in all. The
  // caller closes and removes it.
  std::optional<Id> Add(Id id, User user);
  // Notes activity of a connection.
  void Touch(Id id);
  // Notes that a connection belongs to another user. Returns the one to close, as Add().
  std::optional<Id> Move(Id id, User user);
  void Remove(Id id);

  // Returns the quietest connection of the user with most; nullopt if there is none.
  std::optional<Id> Quietest() const;
  size_t size() const { return places_.size(); }

 private:
  struct Place {
    User user;
    std::list<Id>::iterator at;
  };

  const size_t limit_, limit_of_user_;
  std::map<User, std::list<Id>> users_;  // the quietest first; no list is empty
  std::map<Id, Place> places_;
};

}  // namespace gpumem::web
