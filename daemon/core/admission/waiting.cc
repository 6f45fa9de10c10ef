// Waiters: their views, how they give up, and whether the queue's data about them (queue.cc) is
// right.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd {

void Ledger::JudgeWaiters(absl::FunctionRef<bool(WaiterId, const Waiter&, Verdict&)> visit) const {
  Claims claims;
  for (WaiterId id : WaitersInOrder()) {
    const Waiter& waiter = state_.waiters.at(id);
    Verdict verdict = room_.Judge(waiter.request, 0, claims);
    AddClaims(verdict.standings, waiter.claims, claims);
    if (!visit(id, waiter, verdict)) return;
  }
}

Claims Ledger::ClaimsBefore(WaiterId id) const {
  const Waiter& waiter = state_.waiters.at(id);
  if (!queue_stale_) return ClaimsBefore(PlaceOf(id, waiter), waiter.request);
  Claims claims;
  for (WaiterId each : WaitersInOrder()) {
    if (each == id) break;
    const Waiter& before = state_.waiters.at(each);
    AddClaims(room_.StandingsOf(before.request, 0), before.claims, claims);
  }
  return claims;
}

absl::Status Ledger::CheckQueue() const {
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
      return wrong("waiter ", ToInt(id), " has no place");
    }
    if (!queue_stale_ && waiter.tree != TreeOf(*waiter.request.tenant)) {
      return wrong("waiter ", ToInt(id), " is in another's tree");
    }
    for (size_t i = 0; i < limits_.size(); ++i) {
      const QueueLine::Entry* entry = limits_[i].line.Find(place);
      const bool restless = limits_[i].restless.contains(place);
      if (entry == nullptr && !restless) continue;
      if (entry == nullptr || (i < state_.devices.size() && i != waiter.request.device)) {
        return wrong("waiter ", ToInt(id), " is in a line where it has no place");
      }
      ++in_lines;
      const bool awake = awake_.contains(place) || roused_.contains(place) || queue_stale_;
      if (restless != (entry->asleep == QueueLine::Asleep::kNot) && !awake) {
        return wrong("waiter ", ToInt(id), " is restless, or not, and asleep");
      }
    }
  }
  if (processes != waiting_processes_) return wrong("a process does not know what it waits for");
  for (const auto& [top, tree] : trees_) {
    in_trees += tree.waiters.size();
    loose += tree.loose.size();
    if (tree.waiters.empty()) return wrong("a tree is empty");
    for (const QueuePlace& place : tree.loose) {
      if (!tree.waiters.contains(place)) return wrong("one is loose that is not there");
    }
  }
  for (const QueueLimit& limit : limits_) {
    lined += limit.line.size();
    for (const QueuePlace& place : limit.restless) {
      if (!places.contains(place)) return wrong("one is restless that is not there");
    }
  }
  if (in_trees != state_.waiters.size() || in_lines != lined || loose > in_trees) {
    return wrong("one has two places, or has outlived its own");
  }
  for (const auto* set : {&awake_, &roused_}) {
    for (const QueuePlace& place : *set) {
      if (!places.contains(place)) return wrong("one is to be judged that is not there");
    }
  }
  bool settled = !queue_moves_ && !queue_stale_ && awake_.empty() && roused_.empty();
  for (const auto& [top, tree] : trees_) settled = settled && tree.seen == VersionOf(*top);
  if (!settled) return absl::OkStatus();
  // Each waits as it would if all had just been checked.
  if (swept_) return wrong("a sweep has not come to its end");
  Claims claims;
  for (WaiterId id : WaitersInOrder()) {
    const Waiter& waiter = state_.waiters.at(id);
    const Request& request = waiter.request;
    if (waiter.rank != RankOf(request)) return wrong("waiter ", ToInt(id), " has an old rank");
    const Verdict verdict = room_.Judge(request, Reusable(request), claims);
    if (verdict.claims != waiter.claims) {
      return wrong("waiter ", ToInt(id), " claims ", waiter.claims, " of its standings, not ",
                   verdict.claims);
    }
    if (verdict.fit == Fit::kNow) return wrong("waiter ", ToInt(id), " could be served");
    AddClaims(verdict.standings, verdict.claims, claims);
  }
  return absl::OkStatus();
}

std::optional<Denial> Ledger::BlockedBy(WaiterId id) const {
  const Request& request = state_.waiters.at(id).request;
  const Verdict verdict = room_.Judge(request, 0, ClaimsBefore(id));
  if (verdict.fit != Fit::kBlocked) return std::nullopt;
  return room_.Explain(request, verdict);
}

bool Ledger::IsBlocked(WaiterId id) const {
  return room_.Judge(state_.waiters.at(id).request, 0, ClaimsBefore(id)).fit == Fit::kBlocked;
}

std::vector<absl::Status> Ledger::EndExpiredWaits(absl::Span<const WaiterId> waiters) {
  std::vector<Denial> denials;
  for (WaiterId id : waiters) {
    const Request& request = state_.waiters.at(id).request;
    denials.push_back(room_.Explain(request, room_.Judge(request, 0, ClaimsBefore(id))));
  }
  std::vector<absl::Status> ends;
  for (size_t i = 0; i < waiters.size(); ++i) {
    Tenant& tenant = *state_.waiters.at(waiters[i]).request.tenant;
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
  if (!tenant.empty() && state_.FindTenant(tenant) == nullptr) return state_.NoSuchTenant(tenant);
  if (!device.empty()) {
    if (auto index = state_.FindDevice(device); !index.ok()) return index.status();
  }
  std::vector<WaiterView> views;
  std::vector<uint32_t> positions(state_.devices.size(), 0);
  JudgeWaiters([&](WaiterId id, const Waiter& waiter, Verdict& verdict) {
    const Request& request = waiter.request;
    const uint32_t position = ++positions[request.device];
    if (!tenant.empty() && request.tenant->name != tenant) return true;
    if (!device.empty() && state_.devices[request.device].uuid != device) return true;
    views.push_back({.id = id,
                     .session = waiter.session,
                     .tenant = request.tenant->name,
                     .device_uuid = state_.devices[request.device].uuid,
                     .kind = request.kind,
                     .bytes = request.bytes,
                     .count = request.count,
                     .revocable = request.revocable,
                     .asked_to = waiter.asked_to,
                     .position = position,
                     .age = state_.now() - waiter.since,
                     .blocked_by = room_.Explain(request, verdict)});
    return true;
  });
  std::stable_sort(views.begin(), views.end(), [this](const WaiterView& a, const WaiterView& b) {
    return *state_.FindDevice(a.device_uuid) < *state_.FindDevice(b.device_uuid);
  });
  return views;
}

}  // namespace gpumemd
