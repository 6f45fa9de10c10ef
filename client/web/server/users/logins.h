// SPDX-License-Identifier: Apache-2.0
// Login links and keys, for viewers on TCP, where the kernel does not tell who connects.
//
// A user gets a link over the unix socket. Its token is exchanged once for a key, which
// authenticates requests. Both are 256 random bits. The time of a look-up tells nothing about a
// secret: it is compared with all of them, as a whole. Has no I/O but the kernel's random numbers.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/web/feed/viewer.h"

namespace gpumem::web {

// Not thread-safe.
class Logins {
 public:
  static constexpr absl::Duration kLinkLives = absl::Seconds(60);
  static constexpr absl::Duration kKeyLives = absl::Hours(12);
  static constexpr size_t kLinksOfUser = 8;
  static constexpr size_t kKeysOfUser = 16;

  // `now` should be a clock that cannot be set, and that goes on while the machine sleeps.
  // `user_of`: the user that a uid counts as.
  explicit Logins(
      std::function<absl::Time()> now,
      std::function<uid_t(uid_t)> user_of = [](uid_t uid) { return uid; })
      : now_(std::move(now)), user_of_(std::move(user_of)) {}

  // Returns the token of a new link for this user.
  //   RESOURCE_EXHAUSTED  the user has too many unused ones
  absl::StatusOr<std::string> NewLink(const Viewer& viewer);
  // Exchanges a token for a new key. nullopt: there is no such token, or it was used or is too old.
  // The user's oldest key ends if there are too many.
  std::optional<std::string> Redeem(absl::string_view token);
  // Returns the user of a key; nullopt: there is no such key, or it is too old.
  std::optional<Viewer> Find(absl::string_view key);
  // Returns the time until which a link or a key lives; InfinitePast() if there is none.
  absl::Time LiveUntil();

 private:
  struct Entry {
    std::string secret;
    Viewer viewer;
    absl::Time ends;
  };
  // Entries that live equally long: the first ends first, unless the clock was put back.
  struct Secrets {
    std::list<Entry> entries;

    void Expire(absl::Time now);
    std::string Add(const Viewer& viewer, absl::Time ends);
    // Returns the entry that has not ended.
    std::list<Entry>::iterator Find(absl::string_view secret, absl::Time now);
  };

  // True if both count as the same user.
  bool IsSameUser(const Viewer& one, const Viewer& other) const;
  size_t CountOf(const Viewer& viewer, const Secrets& secrets) const;

  const std::function<absl::Time()> now_;
  const std::function<uid_t(uid_t)> user_of_;
  Secrets links_, keys_;
};

}  // namespace gpumem::web
