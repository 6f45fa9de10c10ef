// Acquiring, and the queue of those who have to wait for it.
//
// Waiters are served by guarantee (who has most left of what is guaranteed to him, if that covers
// the request), then by the tenant's priority, then by arrival. Whoever comes later gets nothing
// that one before him waits for, so a large request is not starved by small ones: a waiter claims
// what it asked for on each of its limits up to the last one that stands in its way; but up to the
// first only where that is one of its tenants' own: while a tenant waits for itself, memory of the
// device is free for others.
//
// A pass over the whole queue costs a look at each waiter, and most changes serve none. So each
// pass leaves behind what would have to change for its outcome to change:
//
//   - A waiter that a limit of its tenants blocks depends on the accounts of its tenant's tree
//     alone (QueueTree): of a tenant that is under none, and of all those under it. After a change
//     in one tree only the waiters there are judged again.
//   - One that the device blocks depends also on how much is used firmly there (QueueBounds).
//     None is judged while that stays above what lets the first of them in.
//   - All others, which wait for what is on its way, depend on all that happens on their device
//     (QueueTree::restless).
//
// Changes that these do not cover (quotas, guarantees, a waiter in the midst of the queue that
// goes) take a pass over the whole queue (queue_whole_).
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/denial.h"
#include "daemon/core/ledger.h"

namespace gpumemd {
namespace {

using gpumem::v1::Denial;

ClaimKey DeviceKey(size_t device) { return {Denial::CAUSE_CAPACITY, nullptr, device}; }
constexpr ClaimKey kSegmentsKey = {Denial::CAUSE_DAEMON_LIMIT, nullptr, kAllDevices};

Claim ClaimAt(const Claims& claims, const ClaimKey& key) {
  auto it = claims.find(key);
  return it == claims.end() ? Claim{} : it->second;
}

// Of what belongs to no tenant.
std::vector<std::pair<ClaimKey, Claim>> Common(
    const std::vector<std::pair<ClaimKey, Claim>>& claims) {
  std::vector<std::pair<ClaimKey, Claim>> common;
  for (const auto& each : claims) {
    if (std::get<1>(each.first) == nullptr) common.push_back(each);
  }
  return common;
}

}  // namespace

absl::StatusOr<Admission> Ledger::BeginAcquire(SessionId session_id, const AcquireSpec& spec) {
  if (draining_) return Draining();
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

  Verdict verdict;
  const bool last = ClaimsAreCurrent() && GoesLast(RankOf(request));
  Claims before;
  if (!last) before = ClaimsBefore(request);
  const Claims& claims = last ? all_claims_ : before;
  absl::StatusOr<std::optional<Operation>> granted =
      TryGrant(session_id, request, claims, &verdict);
  if (!granted.ok()) return granted.status();
  if (*granted) return Admission{.operation = *std::move(granted)};
  // What no holder can make room for is not worth waiting for.
  if (verdict.hopeless || (verdict.fit == Fit::kBlocked && !spec.waits)) {
    return Deny(tenant, Explain(request, verdict));
  }
  if (spec.waits) {
    if (absl::Status room = CheckWaiting(tenant); !room.ok()) return room;
  }
  const WaiterId id{next_waiter_++};
  AddWaiter(id,
            Waiter{.session = session_id,
                   .request = request,
                   .asked_to = spec.waits,
                   .since = now_(),
                   .revokes = verdict.fit == Fit::kRevoked},
            verdict, claims);
  // It may go before others, which then wait for their own tenants alone and claim less.
  if (!last) queue_whole_ = true;
  queue_moves_ = true;
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
    return DenyCount(tenant, Denial::CAUSE_MAX_WAITING, 1, each->tree_waiting, limit,
                     "wait until one of them is served, or ask for more in one call", each);
  }
  const uint64_t of_all = waiters_.size() + attach_waiters_.size();
  if (of_all < bounds_.max_waiting) return absl::OkStatus();
  return DenyCount(tenant, Denial::CAUSE_DAEMON_LIMIT, 1, of_all, bounds_.max_waiting,
                   "too many requests wait already; ask again later");
}

absl::StatusOr<std::optional<Operation>> Ledger::TryGrant(SessionId session, const Request& request,
                                                          const Claims& claims, Verdict* verdict) {
  Tenant& tenant = *request.tenant;
  RetainedPool& reusable = request.kind == Kind::kMempool ? tenant.pools[request.device].idle
                                                          : tenant.retained[request.device];
  const size_t there = tenant.quota.scrub ? 0 : reusable.Fits(request.kind, request.bytes);
  const auto reused = static_cast<uint32_t>(std::min<size_t>(there, request.count));
  *verdict = Judge(request, reused, claims);
  if (verdict->fit == Fit::kBlocked || verdict->awaits_end) {
    return std::optional<Operation>();
  }
  if (verdict->fit == Fit::kNow) {
    // There may be more leases than when a waiter came.
    absl::Status room = CheckLeaseCount(*sessions_.at(session), request.count);
    if (!room.ok()) return room;
  }
  std::vector<SegmentId> segments;
  while (segments.size() < reused) {
    segments.push_back(*reusable.TakeFit(request.kind, request.bytes));
  }
  if (verdict->fit == Fit::kNow) {
    return std::optional(Grant(session, request, std::move(segments)));
  }
  // Making room for the others must not give them away. Their charges stay as they are: to move
  // them there and back would count as a change of the device, and two waiters that each do so
  // would be judged in turn for ever.
  TrimForShortfall(request, request.count - reused, claims);
  for (SegmentId id : segments) reusable.Add(id, request.kind, request.bytes);
  Revoke(verdict->victims, request);
  return std::optional<Operation>();
}

Operation Ledger::Grant(SessionId session, const Request& request, std::vector<SegmentId> reused) {
  Operation operation;
  operation.id = OperationId{next_operation_++};
  operation.session = session;
  operation.device = request.device;
  operation.kind = request.kind;
  operation.revocable = request.revocable;
  operation.request_id = request.request_id;
  for (SegmentId id : reused) {
    Charge& charge = segments_.at(id)->charge;
    charge.MoveTo(SegmentState::kPending);
    charge.SetRevocable(request.revocable);
    Touch(id);
    operation.items.push_back({.lease = LeaseId{next_lease_++}, .segment = id, .reused = true});
  }
  while (operation.items.size() < request.count) {
    SegmentId id{next_segment_++};
    auto segment = std::make_unique<Segment>();
    segment->tenant = request.tenant;
    segment->device = request.device;
    segment->kind = request.kind;
    segment->charge =
        Charge(&request.tenant->accounts[request.device], request.bytes, request.revocable);
    segment->created = now_();
    segments_.emplace(id, std::move(segment));
    Touch(id);
    operation.items.push_back({.lease = LeaseId{next_lease_++}, .segment = id, .fresh = true});
  }
  Pin(operation, *sessions_.at(session));
  return operation;
}

uint64_t Ledger::Deficit(const Request& request) {
  if (request.revocable) return 0;
  const uint64_t unused = request.tenant->accounts[request.device].unused_guarantees();
  return request.bytes * request.count <= unused ? unused : 0;
}

records::Rank Ledger::RankOf(const Request& request) {
  return {Deficit(request), request.tenant->quota.priority};
}

// True if none of those who wait would be served after it.
bool Ledger::GoesLast(const records::Rank& rank) const {
  return ranks_.empty() || rank <= ranks_.begin()->first;
}

std::vector<WaiterId> Ledger::WaitersInOrder() const {
  std::vector<std::pair<records::Rank, WaiterId>> ranked;
  ranked.reserve(waiters_.size());
  for (const auto& [id, waiter] : waiters_) ranked.emplace_back(RankOf(waiter.request), id);
  std::stable_sort(ranked.begin(), ranked.end(),  // they are by arrival already
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<WaiterId> waiters;
  waiters.reserve(ranked.size());
  for (const auto& [rank, id] : ranked) waiters.push_back(id);
  return waiters;
}

void Ledger::JudgeWaiters(absl::FunctionRef<bool(WaiterId, const Waiter&, Verdict&)> visit) const {
  Claims claims;
  for (WaiterId id : WaitersInOrder()) {
    const Waiter& waiter = waiters_.at(id);
    Verdict verdict = Judge(waiter.request, 0, claims);
    AddClaims(verdict.standings, waiter.claims, claims);
    if (!visit(id, waiter, verdict)) return;
  }
}

const Ledger::Tenant* Ledger::TreeOf(const Tenant& tenant) {
  const Tenant* top = &tenant;
  while (top->parent != nullptr) top = top->parent;
  return top;
}

uint64_t Ledger::VersionOf(const Tenant& top, const QueueTree& tree) const {
  uint64_t version = 0;
  for (const Account& account : top.accounts) version += account.version();
  for (size_t device : tree.restless) version += device_accounts_[device].version();
  return version;
}

bool Ledger::ClaimsAreCurrent() const {
  return !queue_stale_ && !queue_whole_ &&
         std::all_of(trees_.begin(), trees_.end(), [this](const auto& each) {
           return each.second.seen == VersionOf(*each.first, each.second);
         });
}

Claims Ledger::ClaimsBefore(const Request& request) const {
  Claims claims;
  const Tenant* tree = TreeOf(*request.tenant);
  const records::Rank rank = RankOf(request);
  for (const auto& [id, waiter] : waiters_) {
    // What it claims of its own tenants and its own device bears on no others.
    const bool bears = waiter.request.device == request.device ||
                       TreeOf(*waiter.request.tenant) == tree ||
                       (!waiter.claimed.empty() && waiter.claimed.back().first == kSegmentsKey);
    if (!bears || rank > RankOf(waiter.request)) continue;
    AddClaims(StandingsOf(waiter.request, 0), waiter.claims, claims);
  }
  return claims;
}

Claims Ledger::ClaimsBefore(WaiterId id) const {
  Claims claims;
  const Waiter& waiter = waiters_.at(id);
  if (!ClaimsAreCurrent() || queue_restless_) {
    for (WaiterId each : WaitersInOrder()) {
      if (each == id) break;
      const Waiter& before = waiters_.at(each);
      AddClaims(StandingsOf(before.request, 0), before.claims, claims);
    }
    return claims;
  }
  for (const QueuePlace& each : trees_.at(waiter.tree).waiters) {
    if (each.id == id) break;
    for (const auto& [key, claim] : waiters_.at(each.id).claimed) {
      Claim& sum = claims[key];
      sum.asked = Plus(sum.asked, claim.asked);
      sum.need = Plus(sum.need, claim.need);
    }
  }
  claims[DeviceKey(waiter.request.device)] = waiter.device_before;
  claims[kSegmentsKey] = waiter.daemon_before;
  return claims;
}

void Ledger::SetClaims(Waiter& waiter, const Verdict& verdict) {
  for (const auto& [key, claim] : waiter.claimed) {
    auto it = all_claims_.find(key);
    it->second.asked -= claim.asked;
    it->second.need -= claim.need;
    if (it->second == Claim{}) all_claims_.erase(it);
  }
  waiter.claims = verdict.claims;
  // Where it would reuse what its tenant's pool has, its need is less for now.
  waiter.claimed = waiter.request.kind == Kind::kMempool
                       ? ClaimsOf(StandingsOf(waiter.request, 0), verdict.claims)
                       : ClaimsOf(verdict.standings, verdict.claims);
  for (const auto& [key, claim] : waiter.claimed) {
    Claim& sum = all_claims_[key];
    sum.asked += claim.asked;  // of each at most a device's capacity
    sum.need += claim.need;
  }
}

void Ledger::SetRank(Waiter& waiter, std::optional<records::Rank> rank) {
  if (waiter.tree != nullptr) {
    auto it = ranks_.find(waiter.rank);
    if (--it->second == 0) ranks_.erase(it);
    waiter.tree = nullptr;
  }
  if (!rank) return;
  waiter.rank = *rank;
  waiter.tree = TreeOf(*waiter.request.tenant);
  ++ranks_[*rank];
}

void Ledger::AddWaiter(WaiterId id, Waiter added, const Verdict& verdict, const Claims& claims) {
  Waiter& waiter = waiters_.emplace(id, std::move(added)).first->second;
  Session& session = *sessions_.at(waiter.session);
  session.waiters.insert(id);
  waiting_processes_[ProcessOf(session)].insert(id);
  SetRank(waiter, RankOf(waiter.request));
  SetPlace(id, waiter, claims);
  NoteBounds(waiter, verdict);
  SetClaims(waiter, verdict);
  // Others of its tree may have been judged at another state of it: then they are again.
  QueueTree& tree = trees_.at(waiter.tree);
  if (tree.waiters.size() == 1) tree.seen = VersionOf(*waiter.tree, tree);
}

void Ledger::SetPlace(WaiterId id, Waiter& waiter, const Claims& claims) {
  trees_[waiter.tree].waiters.insert(QueuePlace{waiter.rank, id});
  waiter.device_before = ClaimAt(claims, DeviceKey(waiter.request.device));
  waiter.daemon_before = ClaimAt(claims, kSegmentsKey);
}

bool Ledger::NoteBounds(const Waiter& waiter, const Verdict& verdict) {
  if (verdict.kept_by_tenants) return false;
  const Request& request = waiter.request;
  QueueBounds& bounds = bounds_of_[request.device];
  // What it would reuse there counts less than what ClaimsBefore says of it.
  const RetainedPool& idle = request.tenant->pools[request.device].idle;
  queue_restless_ |= request.kind == Kind::kMempool && idle.Fits(request.kind, request.bytes) > 0;
  const uint64_t segments = Plus(request.count, waiter.daemon_before.asked);
  if (Plus(segments_.size(), segments) > bounds_.max_segments) {
    queue_restless_ = true;
  } else {
    bounds.most_segments = std::min(bounds.most_segments, bounds_.max_segments - segments);
  }
  // The least of what is used, or needed, that keeps it out.
  const auto least = [limit = devices_[request.device].capacity_bytes](uint64_t more) {
    return more > limit ? 0 : limit - more + 1;
  };
  const Standing& device = verdict.standings[verdict.standings.size() - 2];
  const Account& account = device_accounts_[request.device];
  const uint64_t firm = least(Plus(device.asked, waiter.device_before.asked));
  const uint64_t need = least(Plus(device.more_need, waiter.device_before.need));
  if (verdict.blocked_firmly && account.firm() >= firm) {
    bounds.least_firm = std::max(bounds.least_firm, firm);
    return false;
  }
  if (verdict.blocked_firmly && device.more_need > 0 && account.need() >= need) {
    bounds.least_need = std::max(bounds.least_need, need);
    return false;
  }
  trees_.at(waiter.tree).restless.insert(request.device);
  return true;
}

bool Ledger::WholeQueueMoves() {
  for (const ProcessKey& process : std::exchange(sorted_processes_, {})) {
    auto it = waiting_processes_.find(process);
    if (it == waiting_processes_.end()) continue;
    queue_whole_ |= std::any_of(it->second.begin(), it->second.end(), [this](WaiterId id) {
      const Waiter& waiter = waiters_.at(id);
      return !CheckSort(*sessions_.at(waiter.session), waiter.request.revocable).ok();
    });
  }
  if (queue_stale_ || queue_whole_ || queue_restless_) return true;
  for (size_t d = 0; d < devices_.size(); ++d) {
    const QueueBounds& bounds = bounds_of_[d];
    const Account& account = device_accounts_[d];
    if (account.firm() < bounds.least_firm || account.need() < bounds.least_need ||
        segments_.size() > bounds.most_segments) {
      return true;
    }
  }
  return false;
}

std::vector<Ledger::Admitted> Ledger::AdmitWaiting(size_t max_grants) {
  std::vector<Admitted> admitted;
  for (auto& [id, status] : std::exchange(refused_, {}))
    admitted.push_back({id, std::move(status)});
  if (!std::exchange(queue_moves_, false) || waiters_.empty()) return admitted;
  size_t grants = 0;
  absl::flat_hash_set<const Tenant*> passed_over;
  while (true) {
    const Tenant* tree = nullptr;
    bool whole = WholeQueueMoves();
    for (auto it = trees_.begin(); !whole && it != trees_.end(); ++it) {
      if (it->second.seen == VersionOf(*it->first, it->second)) continue;
      // Of several the order in which they are served is that of the whole queue.
      whole = tree != nullptr;
      tree = it->first;
    }
    if (!whole && tree == nullptr) break;
    // Where one tree's turn changes what another waits for, they do not take turns, but all once.
    whole = whole || !passed_over.insert(tree).second;
    const Passed passed = PassOver(whole ? nullptr : tree, max_grants, grants, admitted);
    if (passed == Passed::kEnoughGranted) {
      queue_moves_ = true;
      return admitted;
    }
    if (whole) break;
    if (passed == Passed::kNeedsWhole) queue_whole_ = true;
  }
  queue_moves_ = false;  // what this itself has set in motion comes back by Destroyed()
  return admitted;
}

Ledger::Passed Ledger::PassOver(const Tenant* tree, size_t max_grants, size_t& grants,
                                std::vector<Admitted>& admitted) {
  const bool whole = tree == nullptr;
  std::vector<WaiterId> waiting;
  Claims claims;
  absl::flat_hash_set<const Tenant*> passed_by;  // trees of those who go on waiting
  bool restless = false;                         // one of them
  // False where they are served in another order now: none is judged by the old one, since that
  // gives up memory for it.
  const auto begin = [&] {
    claims.clear();
    passed_by.clear();
    restless = false;
    waiting.clear();
    if (!whole) {
      auto it = trees_.find(tree);
      if (it == trees_.end()) return true;
      for (const QueuePlace& place : it->second.waiters) {
        if (RankOf(waiters_.at(place.id).request) != place.rank) return false;
        waiting.push_back(place.id);
      }
      it->second.restless.clear();
      return true;
    }
    queue_whole_ = true;  // until it has come to its end
    queue_restless_ = false;
    trees_.clear();
    for (QueueBounds& bounds : bounds_of_) bounds = {};
    waiting = WaitersInOrder();
    return true;
  };
  if (!begin()) return Passed::kNeedsWhole;
  for (size_t next = 0; next < waiting.size();) {
    const WaiterId id = waiting[next++];
    Waiter& waiter = waiters_.at(id);
    const Request request = waiter.request;
    const SessionId session = waiter.session;
    ++judged_;
    if (!whole) {
      claims[DeviceKey(request.device)] = waiter.device_before;
      claims[kSegmentsKey] = waiter.daemon_before;
    }
    absl::Status sort =
        draining_ ? Draining() : CheckSort(*sessions_.at(session), request.revocable);
    if (sort.ok()) sort = CheckUnbrokered(*request.tenant, request.bytes * request.count);
    if (!sort.ok()) {
      RemoveWaiter(id);
      admitted.push_back({id, std::move(sort)});
      if (!whole && queue_whole_) return Passed::kNeedsWhole;
      continue;
    }
    Verdict verdict;
    absl::StatusOr<std::optional<Operation>> granted = TryGrant(session, request, claims, &verdict);
    if (granted.ok() && granted->has_value()) {
      const bool alone = !restless && IsAlone(request, session, passed_by);
      RemoveWaiter(id);
      admitted.push_back({id, **std::move(granted)});
      if (++grants == max_grants) return Passed::kEnoughGranted;
      if (!whole && queue_whole_) return Passed::kNeedsWhole;
      // Its tenant has less left of what is guaranteed to it, and its process holds leases of one
      // sort now: others may go first, or no more, and those passed over claim something else.
      // Where none of that can be, it goes on from here.
      if (whole && alone) continue;
      if (!begin()) return Passed::kNeedsWhole;
      next = 0;
      continue;
    }
    // Where a limit was lowered, waiting may have become useless.
    absl::Status denied = granted.status();
    if (denied.ok() && (verdict.hopeless || (!waiter.asked_to && verdict.fit == Fit::kBlocked))) {
      denied = Deny(*request.tenant, Explain(request, verdict));
    }
    if (!denied.ok()) {
      RemoveWaiter(id);
      admitted.push_back({id, std::move(denied)});
      if (!whole && queue_whole_) return Passed::kNeedsWhole;
      continue;
    }
    const auto before = whole ? std::vector<std::pair<ClaimKey, Claim>>() : Common(waiter.claimed);
    waiter.revokes |= verdict.fit == Fit::kRevoked;
    if (whole) {
      SetRank(waiter, RankOf(request));
      SetPlace(id, waiter, claims);
      passed_by.insert(waiter.tree);
    }
    restless |= NoteBounds(waiter, verdict);
    SetClaims(waiter, verdict);
    AddClaims(verdict.standings, verdict.claims, claims);
    if (!whole && Common(waiter.claimed) != before) return Passed::kNeedsWhole;
  }
  if (!whole) {
    auto it = trees_.find(tree);
    if (it != trees_.end()) it->second.seen = VersionOf(*tree, it->second);
    return Passed::kToTheEnd;
  }
  queue_whole_ = queue_stale_ = false;
  for (auto& [top, each] : trees_) each.seen = VersionOf(*top, each);
  return Passed::kToTheEnd;
}

bool Ledger::IsAlone(const Request& request, SessionId session,
                     const absl::flat_hash_set<const Tenant*>& passed_by) const {
  const Tenant* tree = TreeOf(*request.tenant);
  auto process = waiting_processes_.find(ProcessOf(*sessions_.at(session)));
  return !passed_by.contains(tree) && !queue_restless_ &&
         std::none_of(
             bounds_of_.begin(), bounds_of_.end(),
             [&](const QueueBounds& bounds) { return segments_.size() > bounds.most_segments; }) &&
         std::all_of(tree->accounts.begin(), tree->accounts.end(),
                     [](const Account& account) { return account.least_need() == 0; }) &&
         (process == waiting_processes_.end() || process->second.size() == 1);
}

void Ledger::RemoveWaiter(WaiterId id) {
  auto it = waiters_.find(id);
  Waiter& waiter = it->second;
  Session& session = *sessions_.at(waiter.session);
  session.waiters.erase(id);
  if (waiter.asked_to) {
    CountWaiting(*session.tenant, -1);
    ++session.in_flight;
    ++session.tenant->in_flight;
  }
  auto process = waiting_processes_.find(ProcessOf(session));
  process->second.erase(id);
  if (process->second.empty()) waiting_processes_.erase(process);

  // What it claimed is there for those after it: of its own tenants for its tree, of the device for
  // all.
  const bool last = GoesLast(waiter.rank) && id == waiters_.rbegin()->first;
  queue_whole_ |= !last && !Common(waiter.claimed).empty();
  if (auto tree = trees_.find(waiter.tree); tree != trees_.end()) {
    tree->second.waiters.erase(QueuePlace{waiter.rank, id});
    tree->second.seen = 0;
    if (tree->second.waiters.empty()) trees_.erase(tree);
  }
  SetClaims(waiter, {});
  SetRank(waiter, std::nullopt);
  waiters_.erase(it);
  queue_moves_ = true;
}

absl::Status Ledger::CheckQueue() const {
  Claims claims;
  std::map<records::Rank, size_t> ranks;
  std::map<ProcessKey, absl::btree_set<WaiterId>> processes;
  // A pass over the whole queue gives each its place anew.
  const bool placed = !queue_whole_ && !queue_stale_;
  for (const auto& [id, waiter] : waiters_) {
    for (const auto& [key, claim] : waiter.claimed) {
      claims[key].asked += claim.asked;
      claims[key].need += claim.need;
    }
    ++ranks[waiter.rank];
    processes[ProcessOf(*sessions_.at(waiter.session))].insert(id);
    if (!placed) continue;
    auto tree = trees_.find(TreeOf(*waiter.request.tenant));
    if (tree == trees_.end() || !tree->second.waiters.contains(QueuePlace{waiter.rank, id})) {
      return absl::InternalError(absl::StrCat("waiter ", ToInt(id), " has no place in the queue"));
    }
  }
  if (claims != all_claims_) return absl::InternalError("the queue's claims do not add up");
  if (ranks != ranks_) return absl::InternalError("the queue's ranks are miscounted");
  if (processes != waiting_processes_) {
    return absl::InternalError("a process does not know what it waits for");
  }
  size_t places = 0;
  for (const auto& [top, tree] : trees_) places += tree.waiters.size();
  if (placed && places != waiters_.size()) {
    return absl::InternalError("a waiter has two places in the queue, or has outlived its own");
  }
  return absl::OkStatus();
}

std::optional<Denial> Ledger::BlockedBy(WaiterId id) const {
  const Request& request = waiters_.at(id).request;
  const Verdict verdict = Judge(request, 0, ClaimsBefore(id));
  if (verdict.fit != Fit::kBlocked) return std::nullopt;
  return Explain(request, verdict);
}

bool Ledger::IsBlocked(WaiterId id) const {
  return Judge(waiters_.at(id).request, 0, ClaimsBefore(id)).fit == Fit::kBlocked;
}

std::vector<absl::Status> Ledger::EndExpiredWaits(absl::Span<const WaiterId> waiters) {
  std::vector<Denial> denials;
  for (WaiterId id : waiters) {
    const Request& request = waiters_.at(id).request;
    denials.push_back(Explain(request, Judge(request, 0, ClaimsBefore(id))));
  }
  std::vector<absl::Status> ends;
  for (size_t i = 0; i < waiters.size(); ++i) {
    Tenant& tenant = *waiters_.at(waiters[i]).request.tenant;
    RemoveWaiter(waiters[i]);
    ends.push_back(Deny(tenant, denials[i]));
  }
  return ends;
}

absl::Status Ledger::EndWait(WaiterId id, bool expired) {
  if (expired) return EndExpiredWaits({id}).front();
  RemoveWaiter(id);
  return absl::CancelledError("the client has given up the request");
}

absl::StatusOr<std::vector<WaiterView>> Ledger::ListWaiting(absl::string_view tenant,
                                                            absl::string_view device) const {
  if (!tenant.empty() && FindTenant(tenant) == nullptr) return NoSuchTenant(tenant);
  if (!device.empty()) {
    if (auto index = FindDevice(device); !index.ok()) return index.status();
  }
  std::vector<WaiterView> views;
  std::vector<uint32_t> positions(devices_.size(), 0);
  JudgeWaiters([&](WaiterId id, const Waiter& waiter, Verdict& verdict) {
    const Request& request = waiter.request;
    const uint32_t position = ++positions[request.device];
    if (!tenant.empty() && request.tenant->name != tenant) return true;
    if (!device.empty() && devices_[request.device].uuid != device) return true;
    views.push_back({.id = id,
                     .session = waiter.session,
                     .tenant = request.tenant->name,
                     .device_uuid = devices_[request.device].uuid,
                     .kind = request.kind,
                     .bytes = request.bytes,
                     .count = request.count,
                     .revocable = request.revocable,
                     .asked_to = waiter.asked_to,
                     .position = position,
                     .age = now_() - waiter.since,
                     .blocked_by = Explain(request, verdict)});
    return true;
  });
  std::stable_sort(views.begin(), views.end(), [this](const WaiterView& a, const WaiterView& b) {
    return *FindDevice(a.device_uuid) < *FindDevice(b.device_uuid);
  });
  return views;
}

}  // namespace gpumemd
