// Acquiring memory, and the queue of requests that have to wait for it.
//
// Waiters are served in this order:
// 1. By guarantee: the tenant with most of its guarantee unused goes first, if that part covers the
//    request.
// 2. By the tenant's priority.
// 3. By arrival.
// A later waiter gets nothing that an earlier one waits for, so small requests do not starve a
// large one. A waiter claims what it asked for on each of its limits, up to the last one that
// blocks it. If a limit of its tenants blocks it, it claims only up to the first such limit: while
// a tenant waits for itself, memory of the device is free for others.
//
// The outcome is that of a sweep that checks every waiter, in order, after every change, and begins
// anew after every grant. But a change serves few waiters. So a sweep checks only waiters that are
// awake, and skips those whose verdict cannot have changed. What can change a verdict:
//
//   - A waiter that a limit of its tenants blocks depends on the accounts of its tenant's tree.
//     That tree is a topmost tenant and all tenants under it. The verdict also depends on the
//     claims of earlier waiters in that tree (QueueTree).
//   - A waiter that the device blocks firmly depends on its tree's accounts. It sleeps while
//     firm use there, its request and the claims before it exceed the capacity; or while the
//     same sum of needs does. QueueLine knows these sums, and the first waiter that they no
//     longer keep out.
//   - All others wait for memory on its way back. They depend on their tree, and on every
//     change on their device (QueueLimit::restless). Waiters that the daemon's limit of
//     segments keeps out depend on every change on any device.
//
// A waiter that comes, goes, or claims more or less changes the sums for those behind it. In its
// tree it wakes those behind it that sums alone do not keep asleep. It wakes others only if they
// are restless, or if the sums let them in now.
//
// Each call checks a bounded number of waiters; the next one continues from there. Meanwhile
// waiters that are awake keep their claims, so no other waiter gets that memory.
#include <algorithm>
#include <utility>

#include "daemon/core/ledger/ledger.h"

namespace gpumemd {
namespace {

ClaimKey DeviceKey(size_t device) { return {Denial::Cause::kCapacity, nullptr, device}; }
constexpr ClaimKey kSegmentsKey = {Denial::Cause::kDaemonLimit, nullptr, kAllDevices};

}  // namespace

absl::StatusOr<Admission> Ledger::BeginAcquire(SessionId session_id, const AcquireSpec& spec) {
  if (state_.draining) return Draining();
  absl::StatusOr<Session*> session = LiveSession(session_id);
  if (!session.ok()) return session.status();
  Tenant& tenant = *(*session)->tenant;
  absl::StatusOr<AcquireTerms> terms = CheckSpec(tenant, spec);
  if (!terms.ok()) return terms.status();
  if (absl::Status room = CheckLeaseCount(**session, spec.count); !room.ok()) return room;
  const Request request{.tenant = &tenant,
                        .device = terms->device,
                        .kind = terms->kind,
                        .bytes = terms->bytes,
                        .count = spec.count,
                        .revocable = spec.revocable || tenant.quota.revocable,
                        .request_id = spec.request_id};
  if (absl::Status sort = CheckSort(**session, request.revocable); !sort.ok()) return sort;
  if (absl::Status past = CheckUnbrokered(tenant, terms->bytes * spec.count); !past.ok()) {
    return past;
  }

  if (queue_stale_) PlaceAll();
  Verdict verdict;
  const Claims claims = ClaimsBefore({RankOf(request), WaiterId{next_waiter_}}, request);
  absl::StatusOr<std::optional<Operation>> granted =
      TryGrant(session_id, request, claims, &verdict);
  if (!granted.ok()) return granted.status();
  if (*granted) return Admission{.operation = *std::move(granted)};
  // A request that no holder can make room for does not wait.
  if (verdict.hopeless || (verdict.fit == Fit::kBlocked && !spec.waits)) {
    return Deny(tenant, room_.Explain(request, verdict));
  }
  if (spec.waits) {
    if (absl::Status room = CheckWaiting(tenant); !room.ok()) return room;
  }
  const WaiterId id{next_waiter_++};
  AddWaiter(id,
            Waiter{.session = session_id,
                   .request = request,
                   .asked_to = spec.waits,
                   .since = state_.now(),
                   .revokes = verdict.fit == Fit::kRevoked},
            verdict);
  if (spec.waits) {
    CountWaiting(tenant, 1);
    --(*session)->in_flight;
    --tenant.in_flight;
  }
  return Admission{.waiter = id};
}

absl::Status Ledger::CheckWaiting(Tenant& tenant) {
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    const uint64_t limit = each->quota.max_waiting.value_or(UINT32_MAX);
    if (each->tree_waiting < limit) continue;
    return DenyCount(tenant, Denial::Cause::kMaxWaiting, 1, each->tree_waiting, limit,
                     "wait until one of them is served, or ask for more in one call", each);
  }
  const uint64_t of_all = state_.waiters.size() + attach_waiters_.size();
  if (of_all < state_.bounds.max_waiting) return absl::OkStatus();
  return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_all, state_.bounds.max_waiting,
                   "too many requests wait already; ask again later");
}

RetainedPool& Ledger::PoolFor(const Request& request) {
  Tenant& tenant = *request.tenant;
  return TraitsOf(request.kind).pooled ? tenant.pools[request.device].idle
                                       : tenant.retained[request.device];
}

uint32_t Ledger::Reusable(const Request& request) {
  if (request.tenant->quota.scrub) return 0;
  const size_t there = PoolFor(request).Fits(request.kind, request.bytes);
  return static_cast<uint32_t>(std::min<size_t>(there, request.count));
}

absl::StatusOr<std::optional<Operation>> Ledger::TryGrant(SessionId session, const Request& request,
                                                          const Claims& claims, Verdict* verdict) {
  const uint32_t reused = Reusable(request);
  RetainedPool& reusable = PoolFor(request);
  *verdict = room_.Judge(request, reused, claims);
  if (verdict->fit == Fit::kBlocked || verdict->awaits_end) {
    return std::optional<Operation>();
  }
  if (verdict->fit == Fit::kNow) {
    // There may be more leases than when a waiter came.
    absl::Status room = CheckLeaseCount(*state_.sessions.at(session), request.count);
    if (!room.ok()) return room;
  }
  std::vector<SegmentId> segments;
  while (segments.size() < reused) {
    segments.push_back(*reusable.TakeFit(request.kind, request.bytes));
  }
  if (verdict->fit == Fit::kNow) {
    return std::optional(Grant(session, request, std::move(segments)));
  }
  // Takes the segments to reuse out of the pool, so that making room for the others does not doom
  // them. Their charges do not move: moving them there and back would count as a change of the
  // device. Two waiters that each do so would then be checked in turn for ever.
  TrimForShortfall(request, request.count - reused, claims);
  for (SegmentId id : segments) reusable.Add(id, request.kind, request.bytes);
  Revoke(verdict->victims, request);
  return std::optional<Operation>();
}

Operation Ledger::Grant(SessionId session, const Request& request, std::vector<SegmentId> reused) {
  Operation operation;
  operation.id = OperationId{state_.next_operation++};
  operation.session = session;
  operation.device = request.device;
  operation.kind = request.kind;
  operation.revocable = request.revocable;
  operation.request_id = request.request_id;
  for (SegmentId id : reused) {
    Charge& charge = state_.segments.at(id)->charge;
    charge.MoveTo(SegmentState::kPending);
    charge.SetRevocable(request.revocable);
    changes_.Touch(id);
    operation.items.push_back(
        {.lease = LeaseId{state_.next_lease++}, .segment = id, .reused = true});
  }
  while (operation.items.size() < request.count) {
    SegmentId id{state_.next_segment++};
    auto segment = std::make_unique<Segment>();
    segment->tenant = request.tenant;
    segment->device = request.device;
    segment->kind = request.kind;
    segment->charge =
        Charge(&request.tenant->accounts[request.device], request.bytes, request.revocable);
    segment->created = state_.now();
    state_.segments.emplace(id, std::move(segment));
    changes_.Touch(id);
    operation.items.push_back(
        {.lease = LeaseId{state_.next_lease++}, .segment = id, .fresh = true});
  }
  Pin(operation, *state_.sessions.at(session));
  return operation;
}

QueueRank Ledger::RankOf(const Request& request) {
  return {Room::Deficit(request), request.tenant->quota.priority};
}

std::vector<WaiterId> Ledger::WaitersInOrder() const {
  std::vector<std::pair<QueueRank, WaiterId>> ranked;
  ranked.reserve(state_.waiters.size());
  for (const auto& [id, waiter] : state_.waiters) ranked.emplace_back(RankOf(waiter.request), id);
  std::stable_sort(ranked.begin(), ranked.end(),  // they are by arrival already
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<WaiterId> waiters;
  waiters.reserve(ranked.size());
  for (const auto& [rank, id] : ranked) waiters.push_back(id);
  return waiters;
}

const Ledger::Tenant* Ledger::TreeOf(const Tenant& tenant) {
  const Tenant* top = &tenant;
  while (top->parent != nullptr) top = top->parent;
  return top;
}

uint64_t Ledger::VersionOf(const Tenant& top) {
  uint64_t version = 0;
  for (const Account& account : top.accounts) version += account.version();
  return version;
}

uint64_t Ledger::VersionOf(size_t limit) const {
  if (limit < state_.devices.size()) return state_.device_accounts[limit].version();
  uint64_t version = 0;
  for (const Account& account : state_.device_accounts) version += account.version();
  return version;
}

QueueLine::Left Ledger::LeftAt(size_t limit) const {
  const auto left = [](uint64_t all, uint64_t taken) { return all - std::min(all, taken); };
  if (limit == state_.devices.size())
    return {.room = left(state_.bounds.max_segments, state_.segments.size())};
  const Account& account = state_.device_accounts[limit];
  const uint64_t capacity = state_.devices[limit].capacity_bytes;
  return {.use = left(capacity, account.firm()), .need = left(capacity, account.need())};
}

Claims Ledger::ClaimsBefore(const QueuePlace& place, const Request& request) const {
  Claims claims;
  if (auto tree = trees_.find(TreeOf(*request.tenant)); tree != trees_.end()) {
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

// --- Places, and the data kept by place ------------------------------------------------------

void Ledger::AddWaiter(WaiterId id, Waiter added, const Verdict& verdict) {
  Waiter& waiter = state_.waiters.emplace(id, std::move(added)).first->second;
  Session& session = *state_.sessions.at(waiter.session);
  session.waiters.insert(id);
  waiting_processes_[state_.ProcessOf(session)].insert(id);
  waiter.rank = RankOf(waiter.request);
  waiter.tree = TreeOf(*waiter.request.tenant);
  QueueTree& tree = trees_[waiter.tree];
  // Other waiters of its tree may have been checked at another state of the tree: then they are
  // checked again.
  if (tree.waiters.empty()) tree.seen = VersionOf(*waiter.tree);
  tree.waiters.insert(PlaceOf(id, waiter));
  tree.woken.reset();
  SetVerdict(id, waiter, verdict);
  queue_moves_ = true;
}

void Ledger::RemoveWaiter(WaiterId id) {
  auto it = state_.waiters.find(id);
  Waiter& waiter = it->second;
  Session& session = *state_.sessions.at(waiter.session);
  session.waiters.erase(id);
  if (waiter.asked_to) {
    CountWaiting(*session.tenant, -1);
    ++session.in_flight;
    ++session.tenant->in_flight;
  }
  auto process = waiting_processes_.find(state_.ProcessOf(session));
  process->second.erase(id);
  if (process->second.empty()) waiting_processes_.erase(process);

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
  state_.waiters.erase(it);
  queue_moves_ = true;
}

void Ledger::TakeOut(const QueuePlace& place, const Waiter& waiter, QueueTree& tree) {
  tree.loose.erase(place);
  limits_[waiter.request.device].restless.erase(place);
  limits_.back().restless.erase(place);
  awake_.erase(place);
  roused_.erase(place);
}

void Ledger::Move(WaiterId id, Waiter& waiter, const QueueRank& rank) {
  const QueuePlace from = PlaceOf(id, waiter), to = {rank, id};
  QueueTree& tree = trees_.at(waiter.tree);
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

void Ledger::PlaceAll() {
  queue_stale_ = false;
  for (auto& [id, waiter] : state_.waiters) {
    trees_.at(waiter.tree).loose.clear();  // refilled as the waiters are checked again
    Move(id, waiter, RankOf(waiter.request));
  }
  trees_.clear();
  for (auto& [id, waiter] : state_.waiters) {
    waiter.tree = TreeOf(*waiter.request.tenant);
    trees_[waiter.tree].waiters.insert(PlaceOf(id, waiter));
    awake_.insert(PlaceOf(id, waiter));
  }
  for (auto& [top, tree] : trees_) tree.seen = VersionOf(*top);
  swept_.reset();
  roused_.clear();
}

void Ledger::NoteChange(std::optional<QueuePlace>& changed, const QueuePlace& place) {
  if (!changed || place < *changed) changed = place;
  queue_changed_ = true;
}

void Ledger::SetEntry(size_t limit, const QueuePlace& place, const QueueLine::Entry& entry) {
  QueueLimit& at = limits_[limit];
  const bool claims_change = at.line.Set(place, entry);
  if (entry.asleep == QueueLine::Asleep::kNot) {
    if (at.restless.empty()) at.seen = VersionOf(limit);
    at.restless.insert(place);
  }
  if (claims_change && !at.restless.empty() && place < *at.restless.rbegin()) {
    NoteChange(at.changed, place);
  }
}

void Ledger::SetVerdict(WaiterId id, Waiter& waiter, const Verdict& verdict) {
  using Asleep = QueueLine::Asleep;
  const Request& request = waiter.request;
  const QueuePlace place = PlaceOf(id, waiter);
  QueueTree& tree = trees_.at(waiter.tree);
  const bool reuses = TraitsOf(request.kind).pooled && Reusable(request) > 0;
  std::vector<Standing> plain;
  if (reuses) plain = room_.StandingsOf(request, 0);
  const auto plain_need = [&](size_t i) {
    return reuses ? plain[i].more_need : verdict.standings[i].more_need;
  };

  const size_t on_device = verdict.standings.size() - 2, on_daemon = on_device + 1;
  std::vector<Waiter::Claimed> claimed;
  for (size_t i = 0; i < std::min(verdict.claims, on_device); ++i) {
    const Standing& standing = verdict.standings[i];
    claimed.push_back({.key = {standing.cause, standing.whose, standing.device},
                       .claim = {standing.asked, standing.more_need},
                       .plain_need = plain_need(i)});
  }
  if (claimed != waiter.claimed) {
    tree.all_behind = true;
    NoteChange(tree.changed, place);
    waiter.claimed = std::move(claimed);
  }
  waiter.claims = verdict.claims;
  if (verdict.awaits_end && !(waiter.asked_to && verdict.blocked_firmly)) {
    await_end_.insert(id);
  } else {
    await_end_.erase(id);
  }

  QueueLimit& device = limits_[request.device];
  QueueLimit& daemon = limits_.back();
  device.restless.erase(place);
  daemon.restless.erase(place);
  if (verdict.kept_by_tenants) {
    tree.loose.insert(place);
    for (size_t limit : {request.device, state_.devices.size()}) {
      const std::optional<QueueLine::Entry> entry = limits_[limit].line.Take(place);
      if (entry && entry->claims) NoteChange(limits_[limit].changed, place);
    }
    return;
  }
  const Standing& standing = verdict.standings[on_device];
  QueueLine::Entry entry = {.asked = standing.asked,
                            .need = standing.more_need,
                            .plain_need = plain_need(on_device),
                            .claims = verdict.claims > on_device};
  // Memory to be reused counts as held, too.
  if (verdict.blocked_firmly && !reuses) {
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
            .claims = verdict.claims > on_daemon,
            .asleep =
                segments <= LeftAt(state_.devices.size()).room ? Asleep::kWithRoom : Asleep::kNot});
}

// --- Which waiters are checked ----------------------------------------------------------------

void Ledger::WakeOne(const QueuePlace& place, const std::optional<QueuePlace>& at) {
  if (at && !(*at < place)) {
    roused_.insert(place);
  } else {
    awake_.insert(place);
  }
}

void Ledger::WakeTree(const Tenant& top, QueueTree& tree, const std::optional<QueuePlace>& at) {
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

void Ledger::Wake(const std::optional<QueuePlace>& at) {
  const uint64_t version = VersionOf(state_.devices.size());
  if (at && !queue_changed_ && version == woken_at_) return;
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
    QueueLimit& limit = limits_[i];
    const std::optional<QueuePlace> changed = std::exchange(limit.changed, std::nullopt);
    const uint64_t now = VersionOf(i);
    const bool all = std::exchange(limit.seen, now) != now;
    if (!all && !changed) continue;
    auto it = all ? limit.restless.begin() : limit.restless.upper_bound(*changed);
    for (; it != limit.restless.end(); ++it) WakeOne(*it, at);
  }
  queue_changed_ = false;
}

void Ledger::WakeSorted() {
  for (const ProcessKey& process : std::exchange(sorted_processes_, {})) {
    auto it = waiting_processes_.find(process);
    if (it == waiting_processes_.end()) continue;
    for (WaiterId id : it->second) {
      const Waiter& waiter = state_.waiters.at(id);
      const Session& session = *state_.sessions.at(waiter.session);
      if (!CheckSort(session, waiter.request.revocable).ok()) awake_.insert(PlaceOf(id, waiter));
    }
  }
}

void Ledger::WakeAwaitingEnd() {
  for (WaiterId id : std::exchange(await_end_, {}))
    awake_.insert(PlaceOf(id, state_.waiters.at(id)));
  queue_moves_ = true;
}

std::optional<QueuePlace> Ledger::NextAwake() const {
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

void Ledger::BeginSweep(Sweep& sweep) {
  sweep = {};
  swept_.reset();
  ++sweeps_;
}

std::vector<Ledger::Admitted> Ledger::AdmitWaiting(size_t max_grants, size_t max_judged) {
  std::vector<Admitted> admitted;
  for (auto& [id, status] : std::exchange(refused_, {}))
    admitted.push_back({id, std::move(status)});
  if (state_.waiters.empty()) swept_.reset();
  if (!std::exchange(queue_moves_, false) || state_.waiters.empty()) return admitted;
  if (queue_stale_) PlaceAll();
  WakeSorted();
  // Waiters woken by a sweep itself are checked with the next change, not in turn for ever.
  if (!swept_) awake_.merge(std::exchange(roused_, {}));
  ++sweeps_;
  Wake(std::nullopt);
  Sweep sweep;
  for (size_t grants = 0, judged = 0; true;) {
    const std::optional<QueuePlace> next = NextAwake();
    if (!next && !swept_) break;
    if (!next) {
      BeginSweep(sweep);
      continue;
    }
    if (grants == max_grants || judged++ == max_judged) {
      queue_moves_ = true;
      return admitted;
    }
    swept_ = next;
    if (JudgeOne(*next, sweep, admitted)) ++grants;
    Wake(swept_);
  }
  queue_moves_ = false;  // the effects of this call come back by Destroyed()
  return admitted;
}

bool Ledger::JudgeOne(const QueuePlace& place, Sweep& sweep, std::vector<Admitted>& admitted) {
  const WaiterId id = place.id;
  Waiter& waiter = state_.waiters.at(id);
  const Request request = waiter.request;
  const SessionId session = waiter.session;
  ++judged_;
  awake_.erase(place);
  const auto refuse = [&](absl::Status status) {
    RemoveWaiter(id);
    admitted.push_back({id, std::move(status)});
    return false;
  };
  absl::Status sort =
      state_.draining ? Draining() : CheckSort(*state_.sessions.at(session), request.revocable);
  if (sort.ok()) sort = CheckUnbrokered(*request.tenant, request.bytes * request.count);
  if (!sort.ok()) return refuse(std::move(sort));

  // The claims of earlier waiters of its tree on its tenants' limits.
  const auto& waiters = trees_.at(waiter.tree).waiters;
  auto counted = sweep.counted.find(waiter.tree);
  auto each =
      counted == sweep.counted.end() ? waiters.begin() : waiters.lower_bound(counted->second);
  for (; *each < place; ++each) {
    for (const auto& [key, claim, plain_need] : state_.waiters.at(each->id).claimed) {
      Claim& sum = sweep.claims[key];
      sum.asked += claim.asked;  // each at most a device's capacity
      sum.need += claim.need;
    }
  }
  sweep.counted[waiter.tree] = place;
  const QueueLine::Sums device = limits_[request.device].line.Before(place);
  const QueueLine::Sums daemon = limits_.back().line.Before(place);
  sweep.claims[DeviceKey(request.device)] = {device.asked, device.need};
  sweep.claims[kSegmentsKey] = {daemon.asked, daemon.need};

  Verdict verdict;
  absl::StatusOr<std::optional<Operation>> granted =
      TryGrant(session, request, sweep.claims, &verdict);
  if (granted.ok() && granted->has_value()) {
    RemoveWaiter(id);
    admitted.push_back({id, **std::move(granted)});
    // Its tenant has less of its guarantee unused now, and its process holds leases, firm or
    // revocable. So other waiters may go first, or some no longer, and those passed over claim
    // other amounts. If none of that is possible, the sweep goes on from here.
    if (WasAlone(place, request, session)) return true;
    awake_.merge(std::exchange(roused_, {}));
    BeginSweep(sweep);
    WakeSorted();
    return true;
  }
  // If a limit was lowered, waiting may have become useless.
  if (!granted.ok()) return refuse(granted.status());
  if (verdict.hopeless || (!waiter.asked_to && verdict.fit == Fit::kBlocked)) {
    return refuse(Deny(*request.tenant, room_.Explain(request, verdict)));
  }
  waiter.revokes |= verdict.fit == Fit::kRevoked;
  SetVerdict(id, waiter, verdict);
  return false;
}

bool Ledger::WasAlone(const QueuePlace& place, const Request& request, SessionId session) const {
  const Tenant* top = TreeOf(*request.tenant);
  auto tree = trees_.find(top);
  auto process = waiting_processes_.find(state_.ProcessOf(*state_.sessions.at(session)));
  const std::optional<QueuePlace> crowded =
      limits_.back().line.FirstAwake(std::nullopt, LeftAt(state_.devices.size()));
  return roused_.empty() && (tree == trees_.end() || place < *tree->second.waiters.begin()) &&
         std::none_of(limits_.begin(), limits_.end(),
                      [&](const QueueLimit& limit) {
                        return !limit.restless.empty() && *limit.restless.begin() < place;
                      }) &&
         (!crowded || place < *crowded) &&
         std::all_of(top->accounts.begin(), top->accounts.end(),
                     [](const Account& account) { return account.least_need() == 0; }) &&
         process == waiting_processes_.end();
}

}  // namespace gpumemd
