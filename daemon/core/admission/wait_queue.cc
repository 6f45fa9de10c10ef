// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/admission/wait_queue.h"

#include <algorithm>
#include <utility>

#include "daemon/core/admission/reuse.h"

namespace gpumemd {

uint64_t WaitQueue::VersionOf(const Tenant& top) {
  uint64_t version = 0;
  for (const Account& account : top.accounts) version += account.version();
  return version;
}

uint64_t WaitQueue::VersionOf(size_t limit) const {
  if (limit < state_.devices.size()) return state_.device_accounts[limit].version();
  uint64_t version = 0;
  for (const Account& account : state_.device_accounts) version += account.version();
  return version;
}

QueueLine::Left WaitQueue::LeftAt(size_t limit) const {
  const auto left = [](uint64_t all, uint64_t taken) { return all - std::min(all, taken); };
  if (limit == state_.devices.size())
    return {.room = left(state_.bounds.max_segments, state_.segments.size())};
  const Account& account = state_.device_accounts[limit];
  const uint64_t capacity = state_.devices[limit].capacity_bytes;
  return {.use = left(capacity, account.firm() + account.elsewhere()),
          .need = left(capacity, account.need())};
}

Claims WaitQueue::ClaimsBefore(const QueuePlace& place, const Request& request) const {
  Claims claims;
  if (auto tree = trees_.find(LedgerState::TreeOf(*request.tenant)); tree != trees_.end()) {
    for (const QueuePlace& each : tree->second.waiters) {
      if (!(each < place)) break;
      for (const auto& [key, claim, plain_need] : state_.waiters.at(each.id).claimed) {
        Claim& sum = claims[key];
        sum.asked += claim.asked;  // each at most a device's capacity
        sum.need += plain_need;
      }
    }
  }
  const QueueLine::Sums device = limits_[request.device].line.Before(place);
  const QueueLine::Sums daemon = limits_.back().line.Before(place);
  claims[DeviceKey(request.device)] = {device.asked, device.plain_need};
  claims[kSegmentsKey] = {daemon.asked, daemon.plain_need};
  return claims;
}

Claims WaitQueue::ClaimsBefore(WaiterId id) const {
  const Waiter& waiter = state_.waiters.at(id);
  if (!state_.queue_stale) return ClaimsBefore(PlaceOf(id, waiter), waiter.request);
  Claims claims;
  for (WaiterId each : WaitersInOrder(state_)) {
    if (each == id) break;
    const Waiter& before = state_.waiters.at(each);
    AddClaims(room_.StandingsOf(before.request, 0), before.claims, claims);
  }
  return claims;
}

// --- Places, and the data kept by place ------------------------------------------------------

void WaitQueue::Add(WaiterId id, Waiter added, const Decision& decision) {
  Waiter& waiter = state_.waiters.emplace(id, std::move(added)).first->second;
  Session& session = *state_.sessions.at(waiter.session);
  session.waiters.insert(id);
  if (waiter.asked_to) {
    Tenants::CountWaiting(*session.tenant, 1);
    --session.in_flight;
    --session.tenant->books->in_flight;
  }
  waiting_processes_[state_.ProcessOf(session)].insert(id);
  ++waiter.request.tenant->awaited;
  if (waiter.request.publication) for_publications_.emplace(*waiter.request.publication, id);
  waiter.rank = RankOf(waiter.request);
  waiter.tree = LedgerState::TreeOf(*waiter.request.tenant);
  Tree& tree = trees_[waiter.tree];
  // Other waiters of its tree may have been checked at another state of the tree: then they are
  // checked again.
  if (tree.waiters.empty()) tree.seen = VersionOf(*waiter.tree);
  tree.waiters.insert(PlaceOf(id, waiter));
  tree.woken.reset();
  SetDecision(id, waiter, decision);
  moves_ = true;
}

void WaitQueue::Remove(WaiterId id) {
  auto it = state_.waiters.find(id);
  Waiter& waiter = it->second;
  Session& session = *state_.sessions.at(waiter.session);
  session.waiters.erase(id);
  if (waiter.asked_to) {
    Tenants::CountWaiting(*session.tenant, -1);
    ++session.in_flight;
    ++session.tenant->books->in_flight;
  }
  auto process = waiting_processes_.find(state_.ProcessOf(session));
  process->second.erase(id);
  if (process->second.empty()) waiting_processes_.erase(process);
  Tenant& tenant = *waiter.request.tenant;
  --tenant.awaited;
  if (waiter.request.publication) for_publications_.erase({*waiter.request.publication, id});

  const QueuePlace place = PlaceOf(id, waiter);
  auto tree = trees_.find(waiter.tree);
  TakeOut(place, waiter, tree->second);
  for (size_t limit : {waiter.request.device, state_.devices.size()}) {
    const std::optional<QueueLine::Entry> entry = limits_[limit].line.Take(place);
    if (entry && entry->claims && !limits_[limit].restless.empty() &&
        place < *limits_[limit].restless.rbegin()) {
      NoteChange(limits_[limit].changed, place);
    }
  }
  tree->second.waiters.erase(place);
  if (!waiter.claimed.empty() && !tree->second.loose.empty() &&
      place < *tree->second.loose.rbegin()) {
    NoteChange(tree->second.changed, place);
  }
  if (tree->second.waiters.empty()) trees_.erase(tree);
  await_end_.erase(id);
  await_suspension_.erase(id);
  state_.waiters.erase(it);
  if (state_.waiters.empty()) swept_.reset();
  moves_ = true;
  tenants_.ForgetIfIdle(tenant);
}

void WaitQueue::TakeOut(const QueuePlace& place, const Waiter& waiter, Tree& tree) {
  tree.loose.erase(place);
  limits_[waiter.request.device].restless.erase(place);
  limits_.back().restless.erase(place);
  awake_.erase(place);
  roused_.erase(place);
}

void WaitQueue::Move(WaiterId id, Waiter& waiter, const QueueRank& rank) {
  const QueuePlace from = PlaceOf(id, waiter), to = {rank, id};
  Tree& tree = trees_.at(waiter.tree);
  TakeOut(from, waiter, tree);
  tree.waiters.erase(from);
  tree.waiters.insert(to);
  waiter.rank = rank;
  for (size_t limit : {waiter.request.device, state_.devices.size()}) {
    const std::optional<QueueLine::Entry> entry = limits_[limit].line.Take(from);
    if (!entry) continue;
    limits_[limit].line.Set(to, *entry);
    if (entry->claims) NoteChange(limits_[limit].changed, std::min(from, to));
  }
}

void WaitQueue::PlaceAll() {
  state_.queue_stale = false;
  for (auto& [id, waiter] : state_.waiters) {
    trees_.at(waiter.tree).loose.clear();  // refilled as the waiters are checked again
    Move(id, waiter, RankOf(waiter.request));
  }
  trees_.clear();
  for (auto& [id, waiter] : state_.waiters) {
    waiter.tree = LedgerState::TreeOf(*waiter.request.tenant);
    trees_[waiter.tree].waiters.insert(PlaceOf(id, waiter));
    awake_.insert(PlaceOf(id, waiter));
  }
  for (auto& [top, tree] : trees_) tree.seen = VersionOf(*top);
  swept_.reset();
  roused_.clear();
  moves_ = true;  // also if a new request, not a pass, brought the order up to date
}

void WaitQueue::NoteChange(std::optional<QueuePlace>& changed, const QueuePlace& place) {
  if (!changed || place < *changed) changed = place;
  changed_ = true;
}

void WaitQueue::SetEntry(size_t limit, const QueuePlace& place, const QueueLine::Entry& entry) {
  Limit& at = limits_[limit];
  const bool claims_change = at.line.Set(place, entry);
  if (entry.asleep == QueueLine::Asleep::kNot) {
    if (at.restless.empty()) at.seen = VersionOf(limit);
    at.restless.insert(place);
  }
  if (claims_change && !at.restless.empty() && place < *at.restless.rbegin()) {
    NoteChange(at.changed, place);
  }
}

void WaitQueue::SetDecision(WaiterId id, Waiter& waiter, const Decision& decision) {
  using Asleep = QueueLine::Asleep;
  const Request& request = waiter.request;
  const QueuePlace place = PlaceOf(id, waiter);
  Tree& tree = trees_.at(waiter.tree);
  const bool reuses = TraitsOf(request.kind).pooled && Reusable(request) > 0;
  std::vector<Standing> plain;
  if (reuses) plain = room_.StandingsOf(request, 0);
  const auto plain_need = [&](size_t i) {
    return reuses ? plain[i].more_need : decision.standings[i].more_need;
  };

  // The daemon's limit is the last one. A request that brings memory back has no standing there.
  const size_t on_daemon = decision.standings.size() - (request.BringsBack() ? 0 : 1);
  const size_t on_device = on_daemon - 1;
  std::vector<Waiter::Claimed> claimed;
  for (size_t i = 0; i < std::min(decision.claims, on_device); ++i) {
    const Standing& standing = decision.standings[i];
    claimed.push_back({.key = {standing.cause, standing.whose, standing.device},
                       .claim = {standing.asked, standing.more_need},
                       .plain_need = plain_need(i)});
  }
  if (claimed != waiter.claimed) {
    tree.all_behind = true;
    NoteChange(tree.changed, place);
    waiter.claimed = std::move(claimed);
  }
  waiter.claims = decision.claims;
  if (decision.awaits_end && !(waiter.asked_to && decision.blocked_firmly)) {
    await_end_.insert(id);
  } else {
    await_end_.erase(id);
  }
  if (decision.awaits_suspension) {
    await_suspension_.insert(id);
  } else {
    await_suspension_.erase(id);
  }

  Limit& device = limits_[request.device];
  Limit& daemon = limits_.back();
  device.restless.erase(place);
  daemon.restless.erase(place);
  if (decision.kept_by_tenants) {
    tree.loose.insert(place);
    for (size_t limit : {request.device, state_.devices.size()}) {
      const std::optional<QueueLine::Entry> entry = limits_[limit].line.Take(place);
      if (entry && entry->claims) NoteChange(limits_[limit].changed, place);
    }
    return;
  }
  const Standing& standing = decision.standings[on_device];
  QueueLine::Entry entry = {.asked = standing.asked,
                            .need = standing.more_need,
                            .plain_need = plain_need(on_device),
                            .claims = decision.claims > on_device};
  // Memory to be reused counts as held, too.
  if (decision.blocked_firmly && !reuses) {
    const QueueLine::Sums before = device.line.Before(place);
    const QueueLine::Left left = LeftAt(request.device);
    if (Plus(before.asked, entry.asked) > left.use) {
      entry.asleep = Asleep::kByUse;
    } else if (entry.need > 0 && Plus(before.need, entry.need) > left.need) {
      entry.asleep = Asleep::kByNeed;
    }
  }
  if (entry.asleep == Asleep::kNot) {
    tree.loose.insert(place);
  } else {
    tree.loose.erase(place);
  }
  SetEntry(request.device, place, entry);
  const uint64_t segments = Plus(request.count, daemon.line.Before(place).asked);
  SetEntry(state_.devices.size(), place,
           {.asked = request.count,
            .claims = decision.claims > on_daemon,
            .asleep =
                segments <= LeftAt(state_.devices.size()).room ? Asleep::kWithRoom : Asleep::kNot});
}

}  // namespace gpumemd
