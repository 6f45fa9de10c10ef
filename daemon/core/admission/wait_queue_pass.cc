// SPDX-License-Identifier: Apache-2.0
// A pass over the waiting requests: which of them are checked, in which order.
#include <algorithm>
#include <utility>

#include "daemon/core/admission/request_checks.h"
#include "daemon/core/admission/wait_queue.h"

namespace gpumemd {

bool WaitQueue::Moves() const {
  return !state_.waiters.empty() &&
         (moves_ || state_.queue_stale || !state_.newly_holding.empty() ||
          !state_.moved_publications.empty() || VersionOf(state_.devices.size()) != woken_at_);
}

void WaitQueue::BeginPass() {
  Refresh();
  WakeHoldersOfOtherLeaseType();
  WakeForPublications();
  // Waiters woken by a sweep itself are checked with the next change, not in turn for ever.
  if (!swept_) awake_.merge(std::exchange(roused_, {}));
  sweep_ = {};
  ++sweeps_;
  Wake(std::nullopt);
}

std::optional<QueuePlace> WaitQueue::Next() {
  std::optional<QueuePlace> next = NextAwake();
  while (!next && swept_) {
    BeginSweep();
    next = NextAwake();
  }
  return next;
}

const Claims& WaitQueue::Take(const QueuePlace& place) {
  swept_ = place;
  awake_.erase(place);
  const Waiter& waiter = state_.waiters.at(place.id);
  // The claims of earlier waiters of its tree on its tenants' limits.
  const auto& waiters = trees_.at(waiter.tree).waiters;
  auto counted = sweep_.counted.find(waiter.tree);
  auto each =
      counted == sweep_.counted.end() ? waiters.begin() : waiters.lower_bound(counted->second);
  for (; *each < place; ++each) {
    for (const auto& [key, claim, plain_need] : state_.waiters.at(each->id).claimed) {
      Claim& sum = sweep_.claims[key];
      sum.asked += claim.asked;  // each at most a device's capacity
      sum.need += claim.need;
    }
  }
  sweep_.counted[waiter.tree] = place;
  const size_t on = waiter.request.device;
  const QueueLine::Sums device = limits_[on].line.Before(place);
  const QueueLine::Sums daemon = limits_.back().line.Before(place);
  sweep_.claims[DeviceKey(on)] = {device.asked, device.need};
  sweep_.claims[kSegmentsKey] = {daemon.asked, daemon.need};
  return sweep_.claims;
}

void WaitQueue::Granted(const QueuePlace& place, const Request& request, SessionId session) {
  if (WasAlone(place, request, session)) return;
  awake_.merge(std::exchange(roused_, {}));
  BeginSweep();
  WakeHoldersOfOtherLeaseType();
}

void WaitQueue::WakeOne(const QueuePlace& place, const std::optional<QueuePlace>& at) {
  if (at && !(*at < place)) {
    roused_.insert(place);
  } else {
    awake_.insert(place);
  }
}

void WaitQueue::WakeTree(const Tenant& top, Tree& tree, const std::optional<QueuePlace>& at) {
  const std::vector<QueuePlace> places(tree.waiters.begin(), tree.waiters.end());
  for (const QueuePlace& place : places) {
    Waiter& waiter = state_.waiters.at(place.id);
    const QueueRank rank = RankOf(waiter.request);
    if (rank == place.rank) {
      WakeOne(place, at);
    } else {
      Move(place.id, waiter, rank);
      awake_.insert({rank, place.id});
    }
  }
  tree.seen = VersionOf(top);
  tree.changed.reset();
  tree.woken = *tree.waiters.begin();
  tree.woken_sweep = sweeps_;
}

void WaitQueue::Wake(const std::optional<QueuePlace>& at) {
  const uint64_t version = VersionOf(state_.devices.size());
  if (at && !changed_ && version == woken_at_) return;
  woken_at_ = version;
  for (auto& [top, tree] : trees_) {
    if (tree.seen != VersionOf(*top)) WakeTree(*top, tree, at);
    const std::optional<QueuePlace> changed = std::exchange(tree.changed, std::nullopt);
    const bool all_behind = std::exchange(tree.all_behind, false);
    if (!changed) continue;
    if (at && tree.woken_sweep == sweeps_ && tree.woken && !(*changed < *tree.woken)) continue;
    const auto& behind = all_behind ? tree.waiters : tree.loose;
    for (auto it = behind.upper_bound(*changed); it != behind.end(); ++it) WakeOne(*it, at);
    if (!all_behind) continue;
    tree.woken = *changed;
    tree.woken_sweep = sweeps_;
  }
  for (size_t i = 0; i < limits_.size(); ++i) {
    Limit& limit = limits_[i];
    const std::optional<QueuePlace> changed = std::exchange(limit.changed, std::nullopt);
    const uint64_t now = VersionOf(i);
    const bool all = std::exchange(limit.seen, now) != now;
    if (!all && !changed) continue;
    auto it = all ? limit.restless.begin() : limit.restless.upper_bound(*changed);
    for (; it != limit.restless.end(); ++it) WakeOne(*it, at);
  }
  changed_ = false;
}

void WaitQueue::WakeHoldersOfOtherLeaseType() {
  for (const ProcessKey& process : std::exchange(state_.newly_holding, {})) {
    auto it = waiting_processes_.find(process);
    if (it == waiting_processes_.end()) continue;
    for (WaiterId id : it->second) {
      const Waiter& waiter = state_.waiters.at(id);
      const Session& session = *state_.sessions.at(waiter.session);
      if (!CheckLeaseType(state_, session, waiter.request.revocable).ok())
        awake_.insert(PlaceOf(id, waiter));
    }
  }
}

void WaitQueue::WakeForPublications() {
  for (PublicationId id : std::exchange(state_.moved_publications, {})) {
    for (auto it = for_publications_.lower_bound({id, WaiterId{}});
         it != for_publications_.end() && it->first == id; ++it) {
      awake_.insert(PlaceOf(it->second, state_.waiters.at(it->second)));
    }
  }
}

void WaitQueue::WakeAwaitingEnd() {
  for (WaiterId id : std::exchange(await_end_, {}))
    awake_.insert(PlaceOf(id, state_.waiters.at(id)));
  moves_ = true;
}

void WaitQueue::WakeAwaitingSuspension() {
  for (WaiterId id : await_suspension_) awake_.insert(PlaceOf(id, state_.waiters.at(id)));
  moves_ |= !await_suspension_.empty();
}

std::optional<QueuePlace> WaitQueue::NextAwake() const {
  std::optional<QueuePlace> first;
  const auto consider = [&](const std::optional<QueuePlace>& place) {
    if (place && (!first || *place < *first)) first = place;
  };
  auto it = swept_ ? awake_.upper_bound(*swept_) : awake_.begin();
  if (it != awake_.end()) consider(*it);
  for (size_t i = 0; i < limits_.size(); ++i) {
    consider(limits_[i].line.FirstAwake(swept_, LeftAt(i)));
  }
  return first;
}

void WaitQueue::BeginSweep() {
  sweep_ = {};
  swept_.reset();
  ++sweeps_;
}

bool WaitQueue::WasAlone(const QueuePlace& place, const Request& request, SessionId session) const {
  const Tenant* top = LedgerState::TreeOf(*request.tenant);
  auto tree = trees_.find(top);
  auto process = waiting_processes_.find(state_.ProcessOf(*state_.sessions.at(session)));
  const std::optional<QueuePlace> crowded =
      limits_.back().line.FirstAwake(std::nullopt, LeftAt(state_.devices.size()));
  return roused_.empty() && (tree == trees_.end() || place < *tree->second.waiters.begin()) &&
         std::none_of(limits_.begin(), limits_.end(),
                      [&](const Limit& limit) {
                        return !limit.restless.empty() && *limit.restless.begin() < place;
                      }) &&
         (!crowded || place < *crowded) &&
         std::all_of(top->accounts.begin(), top->accounts.end(),
                     [](const Account& account) { return account.least_need() == 0; }) &&
         process == waiting_processes_.end();
}

}  // namespace gpumemd
