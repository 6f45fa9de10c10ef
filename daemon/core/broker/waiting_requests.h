// SPDX-License-Identifier: Apache-2.0
// Requests that wait in the broker. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"

namespace gpumemd {

// Waiting requests of one type, by their waiters in the ledger, and the times at which the broker's
// clock looks at them.
template <typename Request>
class WaitingRequests {
 public:
  size_t size() const { return waiting_.size(); }

  void Add(WaiterId id, std::shared_ptr<Request> request, absl::Time due) {
    waiting_.emplace(id, Waiting{std::move(request), due});
    due_.emplace(due, id);
  }

  // Requires that the request waits, as do SetDue and Take.
  Request& at(WaiterId id) { return *waiting_.at(id).request; }

  // Sets when the clock next looks at the request.
  void SetDue(WaiterId id, absl::Time due) {
    Waiting& waiting = waiting_.at(id);
    due_.erase({waiting.due, id});
    waiting.due = due;
    due_.emplace(due, id);
  }

  // Removes the request and returns it.
  std::shared_ptr<Request> Take(WaiterId id) {
    Waiting waiting = std::move(waiting_.extract(id).mapped());
    due_.erase({waiting.due, id});
    return std::move(waiting.request);
  }

  // Removes all requests and returns them.
  std::vector<std::shared_ptr<Request>> TakeAll() {
    std::vector<std::shared_ptr<Request>> all;
    for (auto& [id, waiting] : std::exchange(waiting_, {})) {
      all.push_back(std::move(waiting.request));
    }
    due_.clear();
    return all;
  }

  // Returns when the clock looks at the first request; infinite future if none waits.
  absl::Time NextDue() const { return due_.empty() ? absl::InfiniteFuture() : due_.begin()->first; }

  // Returns the first waiter that is due by `now`, or nothing.
  std::optional<WaiterId> FirstDue(absl::Time now) const {
    if (due_.empty() || due_.begin()->first > now) return std::nullopt;
    return due_.begin()->second;
  }

 private:
  struct Waiting {
    std::shared_ptr<Request> request;
    absl::Time due;
  };
  absl::flat_hash_map<WaiterId, Waiting> waiting_;
  absl::btree_set<std::pair<absl::Time, WaiterId>> due_;
};

}  // namespace gpumemd
