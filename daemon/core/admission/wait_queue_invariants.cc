// SPDX-License-Identifier: Apache-2.0
// Checks that the data of the queue about its waiters is right.
#include <map>

#include "absl/strings/str_cat.h"
#include "daemon/core/admission/reuse.h"
#include "daemon/core/admission/wait_queue.h"

namespace gpumemd {

absl::Status WaitQueue::CheckInvariants() const {
  const auto wrong = [](const auto&... what) {
    return absl::InternalError(absl::StrCat("the queue: ", what...));
  };
  std::map<ProcessKey, absl::btree_set<WaiterId>> processes;
  absl::btree_set<QueuePlace> places;
  size_t in_trees = 0, in_lines = 0, lined = 0, loose = 0;
  for (const auto& [id, waiter] : state_.waiters) {
    const QueuePlace place = PlaceOf(id, waiter);
    places.insert(place);
    processes[state_.ProcessOf(*state_.sessions.at(waiter.session))].insert(id);
    auto tree = trees_.find(waiter.tree);
    if (tree == trees_.end() || !tree->second.waiters.contains(place)) {
      return wrong("waiter ", ToInt(id), " is not in its tree");
    }
    if (!state_.queue_stale && waiter.tree != LedgerState::TreeOf(*waiter.request.tenant)) {
      return wrong("waiter ", ToInt(id), " is in the tree of another root");
    }
    for (size_t i = 0; i < limits_.size(); ++i) {
      const QueueLine::Entry* entry = limits_[i].line.Find(place);
      const bool restless = limits_[i].restless.contains(place);
      if (entry == nullptr && !restless) continue;
      if (entry == nullptr || (i < state_.devices.size() && i != waiter.request.device)) {
        return wrong("waiter ", ToInt(id), " is in the line of another limit");
      }
      ++in_lines;
      const bool awake = awake_.contains(place) || roused_.contains(place) || state_.queue_stale;
      if (restless != (entry->asleep == QueueLine::Asleep::kNot) && !awake) {
        return wrong("waiter ", ToInt(id), " has a restless state that its line contradicts");
      }
    }
  }
  if (processes != waiting_processes_) return wrong("the waiters of a process are wrong");
  for (const auto& [top, tree] : trees_) {
    in_trees += tree.waiters.size();
    loose += tree.loose.size();
    if (tree.waiters.empty()) return wrong("a tree has no waiters");
    for (const QueuePlace& place : tree.loose) {
      if (!tree.waiters.contains(place)) return wrong("a loose waiter is not in the tree");
    }
  }
  for (const Limit& limit : limits_) {
    lined += limit.line.size();
    for (const QueuePlace& place : limit.restless) {
      if (!places.contains(place)) return wrong("a restless waiter does not exist");
    }
  }
  if (in_trees != state_.waiters.size() || in_lines != lined || loose > in_trees) {
    return wrong("a waiter has two places, or a place has no waiter");
  }
  for (const auto* set : {&awake_, &roused_}) {
    for (const QueuePlace& place : *set) {
      if (!places.contains(place)) return wrong("a waiter to be checked does not exist");
    }
  }
  bool settled = !Moves() && !state_.queue_stale && awake_.empty() && roused_.empty();
  for (const auto& [top, tree] : trees_) settled = settled && tree.seen == VersionOf(*top);
  if (!settled) return absl::OkStatus();
  // Each waits as it would if all had just been checked.
  if (swept_) return wrong("a sweep has not ended");
  Claims claims;
  for (WaiterId id : WaitersInOrder(state_)) {
    const Waiter& waiter = state_.waiters.at(id);
    const Request& request = waiter.request;
    if (waiter.rank != RankOf(request)) return wrong("waiter ", ToInt(id), " has an old rank");
    const Decision decision = room_.Check(request, Reusable(request), claims);
    if (decision.claims != waiter.claims) {
      return wrong("waiter ", ToInt(id), " claims ", waiter.claims, " of its standings, not ",
                   decision.claims);
    }
    if (decision.fit == Fit::kNow) return wrong("waiter ", ToInt(id), " could be served");
    AddClaims(decision.standings, decision.claims, claims);
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
