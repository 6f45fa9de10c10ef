// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/suspension/swap_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace gpumemd {
namespace {

// Entries that one call makes candidates on each device, and requests that one call ends or begins.
constexpr size_t kRipenAtOnce = 256;
constexpr size_t kTicksAtOnce = 64;

absl::Time RoundUp(absl::Time time, absl::Duration grain) {
  return absl::UnixEpoch() + absl::Ceil(time - absl::UnixEpoch(), grain);
}

}  // namespace

// --- The index ------------------------------------------------------------------------------

uint64_t SwapPolicy::BytesOn(const Session& session, size_t device) {
  auto it = session.residences.find(device);
  if (it == session.residences.end()) return 0;
  // It may count memory twice.
  return std::min(it->second.bytes, session.tenant->accounts[device].charged());
}

uint64_t SwapPolicy::TierNeedOf(const Session& session) {
  uint64_t bytes = 0;
  for (const auto& [device, residence] : session.residences) {
    bytes += std::min(residence.kept, BytesOn(session, device));
  }
  return bytes;
}

void SwapPolicy::Refresh() {
  if (std::exchange(state_.swaps_stale, false)) {
    for (const auto& [id, session] : state_.sessions) {
      if (session->suspension_watches > 0) state_.swaps_changed.insert(id);
    }
  }
  if (state_.swaps_changed.empty()) return;
  for (SessionId id : std::exchange(state_.swaps_changed, {})) Index(id);
}

void SwapPolicy::SetIdleDue(SessionId id, absl::Time due) {
  if (auto it = idle_.find(id); it != idle_.end()) {
    idle_due_.erase({it->second, id});
    idle_.erase(it);
  }
  if (due == absl::InfiniteFuture()) return;
  idle_.emplace(id, due);
  idle_due_.emplace(due, id);
}

void SwapPolicy::Index(SessionId id) {
  auto it = state_.sessions.find(id);
  const bool swappable = it != state_.sessions.end() && it->second->IsSwappable();
  if (auto asked = asked_.find(id); asked != asked_.end()) {
    // An operator may have asked for something else.
    const SuspensionRequests::Request* const present = requests_.Find(id);
    const bool stands =
        present != nullptr && (present->number == asked->second.request ||
                               present->action == SuspensionRequests::Action::kSuspend);
    if (swappable && stands) return;  // it comes back when the request ends
    Finish(id, End::kGone);
  }
  index_.Remove(id);
  SetIdleDue(id, absl::InfiniteFuture());
  if (!swappable) return;
  const Session& session = *it->second;
  const Quota& quota = session.tenant->quota;
  bool resident = false;
  for (const auto& [device, residence] : session.residences) {
    const uint64_t bytes = BytesOn(session, device);
    if (bytes == 0) continue;
    resident = true;
    index_.Set(
        device,
        {.priority = quota.priority, .active = session.active, .bytes = bytes, .session = id},
        std::max(residence.since + quota.min_residence, session.swap_after));
  }
  if (!resident || quota.idle_suspend == absl::ZeroDuration()) return;
  if (session.idle_asked == session.active) return;
  SetIdleDue(id, std::max(session.active + quota.idle_suspend, session.swap_after));
}

void SwapPolicy::Reported(SessionId id) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  const absl::Time last = it->second->active, now = state_.now();
  // The clock may have been set back.
  if (now < last || last + kActivityGrain <= now) Active(id);
}

void SwapPolicy::Active(SessionId id) {
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  Session& session = *it->second;
  session.active = state_.now();
  if (session.suspension_watches > 0) state_.swaps_changed.insert(id);
}

// --- Requests -------------------------------------------------------------------------------

void SwapPolicy::AddComing(const Tenant& tenant, uint64_t bytes, Room::Coming& coming) const {
  const size_t tier = *suspensions_.Tier();
  coming[&state_.device_accounts[tier]] += bytes;
  for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
    coming[&each->accounts[tier]] += bytes;
  }
}

std::vector<SessionId> SwapPolicy::Select(SessionId asker, const Request& request,
                                          Shortfall& left) {
  std::vector<std::pair<SessionId, uint64_t>> chosen;  // and what they free
  const Shortfall before = left;
  const bool guaranteed = Room::Deficit(request) > 0;
  Room::Coming coming;
  for (const auto& [id, asked] : asked_) {
    AddComing(*state_.sessions.at(id)->tenant, asked.tier_bytes, coming);
  }
  std::vector<SessionId> without_room;
  size_t looks = 0;
  for (const SwapCandidate& each : index_.CandidatesOn(request.device)) {
    if (left.Covered()) break;
    if (!guaranteed && each.priority > request.tenant->quota.priority) break;
    if (looks++ == kLooks) {
      for (SessionId id : without_room) {
        state_.sessions.at(id)->swap_after = state_.now() + times_.back_off;
        state_.swaps_changed.insert(id);
      }
      wake_ |= !without_room.empty();  // the waiters look at the others next
      break;
    }
    const Session& session = *state_.sessions.at(each.session);
    const SuspensionRequests::Request* const present = requests_.Find(each.session);
    const bool asked = present != nullptr && state_.now() < present->until;  // by an operator
    if (each.session == asker || asked) continue;
    const uint64_t bytes = TierNeedOf(session);
    if (bytes > room_.Obtainable(*session.tenant, *suspensions_.Tier(), coming)) {
      without_room.push_back(each.session);
      continue;
    }
    if (!left.Free(*session.tenant, each.bytes)) continue;
    AddComing(*session.tenant, bytes, coming);
    chosen.emplace_back(each.session, each.bytes);
  }
  if (!left.Covered() && !left.CoveredBy(room_.Revocable(request))) return {};
  // The last ones may suffice without some of the first.
  std::vector<SessionId> needed;
  Shortfall rest = before;
  for (auto it = chosen.rbegin(); it != chosen.rend() && !rest.Covered(); ++it) {
    rest.Free(*state_.sessions.at(it->first)->tenant, it->second);
    needed.push_back(it->first);
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

bool SwapPolicy::Ask(SessionId asker, const Request& request, const Decision& decision,
                     const Claims& claims, absl::Time& deadline) {
  Refresh();
  const absl::Time now = state_.now();
  if (index_.empty() && asked_.empty()) return false;
  const bool over = deadline != absl::InfinitePast() && deadline <= now;
  if (over && decision.fit == Fit::kRevoked) return false;
  index_.Ripen(now, kRipenAtOnce);
  Shortfall left(request, decision, claims);
  for (SessionId id : asked_on_[request.device]) {
    for (const auto& [device, bytes] : asked_.at(id).bytes) {
      if (device == request.device) left.Free(*state_.sessions.at(id)->tenant, bytes);
    }
  }
  if (!left.Covered()) {
    // In parts, if they are too many. While no more can be asked, it is looked at once whether it
    // is worth waiting until they can.
    const size_t most = kMostAsked - std::min(kMostAsked, asked_on_[request.device].size());
    if (most > 0 || deadline == absl::InfinitePast()) {
      const std::vector<SessionId> chosen = Select(asker, request, left);
      if (chosen.empty()) return false;
      for (size_t i = 0; i < std::min(most, chosen.size()); ++i) {
        Begin(chosen[i], Cause::kWaiter,
              absl::StrCat("tenant ", request.tenant->name, " waits for ",
                           gpumem::FormatBytes(request.bytes * request.count)));
      }
    }
  }
  if (over) return false;
  if (deadline == absl::InfinitePast()) deadline = RoundUp(now + times_.grace, kPause);
  waiters_due_.insert(deadline);
  return true;
}

void SwapPolicy::SetExpected(SessionId id, Asked& asked) {
  for (const auto& [device, bytes] : asked.bytes) asked_on_[device].erase(id);
  asked.bytes.clear();
  asked.tier_bytes = 0;
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  for (const auto& [device, residence] : it->second->residences) {
    const uint64_t bytes = BytesOn(*it->second, device);
    if (bytes == 0) continue;
    asked.bytes.emplace_back(device, bytes);
    asked_on_[device].insert(id);
  }
  asked.tier_bytes = TierNeedOf(*it->second);
}

void SwapPolicy::Begin(SessionId id, Cause cause, absl::string_view why) {
  const absl::Time until = state_.now() + times_.grace;
  const absl::StatusOr<uint64_t> number =
      requests_.Begin(id, SuspensionRequests::Action::kSuspend, until, "", cause);
  if (!number.ok()) return;  // a candidate can always be asked
  Asked& asked = asked_[id];
  asked = {.request = *number, .until = until};
  SetExpected(id, asked);
  deadlines_.emplace(until, id);
  index_.Remove(id);
  SetIdleDue(id, absl::InfiniteFuture());
  Session& session = *state_.sessions.at(id);
  session.idle_asked = session.active;
  effects_.asked.insert(id);
  ++(cause == Cause::kIdle ? counts_.asked_idle : counts_.asked_for_waiters);
  uint64_t bytes = 0;
  for (const auto& [device, on] : asked.bytes) bytes += on;
  auditor_.SwapChanged(AuditEvent::kSuspensionAsked, id, bytes, why);
}

void SwapPolicy::Finish(SessionId id, End end) {
  const auto node = asked_.extract(id);
  Asked asked = node.mapped();
  for (const auto& [device, bytes] : asked.bytes) asked_on_[device].erase(id);
  deadlines_.erase({asked.until, id});
  requests_.End(id, asked.request);
  wake_ = true;
  ++(end == End::kSuspended ? counts_.suspended
     : end == End::kIgnored ? counts_.ignored
     : end == End::kRefused ? counts_.refused
                            : counts_.gone);
  auto it = state_.sessions.find(id);
  if (it == state_.sessions.end()) return;
  Session& session = *it->second;
  // A session that leaves while it is asked cannot avoid that by another watch.
  if (end != End::kSuspended) session.swap_after = state_.now() + times_.back_off;
  state_.swaps_changed.insert(id);
  if (end == End::kGone && !session.live) return;
  uint64_t left = 0;
  for (const auto& [device, residence] : session.residences) left += BytesOn(session, device);
  auditor_.SwapChanged(AuditEvent::kSuspensionEnded, id, left,
                       end == End::kSuspended ? "it has suspended its leases"
                       : end == End::kIgnored ? "it has not suspended its leases in time"
                       : end == End::kRefused ? "the host tier has no room for its leases"
                                              : "it does not accept requests any more, or an "
                                                "operator has asked for something else");
}

void SwapPolicy::Suspended(SessionId id) {
  auto it = asked_.find(id);
  if (it == asked_.end()) return;
  SetExpected(id, it->second);
  if (it->second.bytes.empty()) Finish(id, End::kSuspended);
}

void SwapPolicy::Refused(SessionId id) {
  if (asked_.contains(id)) Finish(id, End::kRefused);
}

// --- The clock ------------------------------------------------------------------------------

bool SwapPolicy::Tick() {
  Refresh();
  const absl::Time now = state_.now();
  const auto due = [now](const auto& times) {
    return !times.empty() && times.begin()->first <= now;
  };
  for (size_t i = 0; i < kTicksAtOnce && due(deadlines_); ++i) {
    const SessionId id = deadlines_.begin()->second;
    SetExpected(id, asked_.at(id));
    Finish(id, asked_.at(id).bytes.empty() ? End::kSuspended : End::kIgnored);
  }
  for (size_t i = 0; i < kTicksAtOnce && due(idle_due_); ++i) {
    const SessionId id = idle_due_.begin()->second;
    SetIdleDue(id, absl::InfiniteFuture());
    const Session& session = *state_.sessions.at(id);
    const SuspensionRequests::Request* const present = requests_.Find(id);
    if (state_.closing) continue;  // nothing can be resumed any more
    const bool by_operator = present != nullptr && now < present->until;
    const bool many =
        std::any_of(session.residences.begin(), session.residences.end(),
                    [&](const auto& each) { return asked_on_[each.first].size() >= kMostAsked; });
    if (by_operator || many) {
      SetIdleDue(id, by_operator ? present->until : now + kPause);
      continue;
    }
    Begin(
        id, Cause::kIdle,
        absl::StrCat("it was idle for ", absl::FormatDuration(session.tenant->quota.idle_suspend)));
  }
  while (!waiters_due_.empty() && *waiters_due_.begin() <= now) {
    waiters_due_.erase(waiters_due_.begin());
    wake_ = true;
  }
  wake_ |= index_.Ripen(now, kRipenAtOnce);
  Refresh();
  if (!wake_ || (woken_ <= now && now < woken_ + kPause)) return false;
  wake_ = false;
  woken_ = now;
  return true;
}

absl::Time SwapPolicy::NextDue(bool awaited) const {
  absl::Time next = absl::InfiniteFuture();
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (!idle_due_.empty()) next = std::min(next, idle_due_.begin()->first);
  if (!waiters_due_.empty()) next = std::min(next, *waiters_due_.begin());
  if (!awaited) return next;
  return std::min({next, index_.NextReady(), wake_ ? woken_ + kPause : absl::InfiniteFuture()});
}

absl::Status SwapPolicy::CheckInvariants() const {
  const auto wrong = [](auto... what) { return absl::InternalError(absl::StrCat(what...)); };
  size_t on_devices = 0, asked = 0;
  for (const auto& [id, request] : asked_) {
    for (const auto& [device, bytes] : request.bytes) {
      ++on_devices;
      if (!asked_on_[device].contains(id)) return wrong("an asked session is not on its device");
    }
    if (!deadlines_.contains({request.until, id})) return wrong("a request has no deadline");
  }
  for (const auto& on : asked_on_) asked += on.size();
  if (asked != on_devices || deadlines_.size() != asked_.size() ||
      idle_.size() != idle_due_.size()) {
    return wrong("the requests to suspend do not add up");
  }
  for (size_t device = 0; device < asked_on_.size(); ++device) {
    for (const SwapCandidate& each : index_.CandidatesOn(device)) {
      if (asked_.contains(each.session)) return wrong("a candidate has been asked already");
      auto session = state_.sessions.find(each.session);
      const bool stale = state_.swaps_stale || state_.swaps_changed.contains(each.session);
      if (stale) continue;
      if (session == state_.sessions.end() || !session->second->IsSwappable() ||
          BytesOn(*session->second, device) == 0) {
        return wrong("session ", ToInt(each.session), " is no candidate");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
