// SPDX-License-Identifier: Apache-2.0
// Bytes that the server has not sent yet. Has no I/O.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/web/feed/feed_source.h"
#include "client/web/server/users/seats.h"

namespace gpumem::web {

// Counts texts, one that several connections share once. Thread-safe.
class Unsent : public std::enable_shared_from_this<Unsent> {
 public:
  // Counts a text, and keeps it, until all copies are gone.
  using Text = std::shared_ptr<void>;

  explicit Unsent(size_t limit) : limit_(limit) {}

  Text Count(const Message& message);
  size_t bytes() const {
    absl::MutexLock lock(&mutex_);
    return bytes_;
  }
  bool exceeded() const { return bytes() > limit_; }

 private:
  void Forget(const std::string& text);

  const size_t limit_;
  mutable absl::Mutex mutex_;
  std::map<const std::string*, size_t> texts_ ABSL_GUARDED_BY(mutex_);  // with their holders
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What one connection has not sent.
struct UnsentOf {
  Seats::Id id = 0;
  Seats::User user;
  size_t bytes = 0;
};

// Returns the connection with most unsent bytes of the user with most; nullopt if all have none.
std::optional<Seats::Id> WorstOf(const std::vector<UnsentOf>& connections);

}  // namespace gpumem::web
