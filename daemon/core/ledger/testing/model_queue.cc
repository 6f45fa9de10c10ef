// The model of requests for memory, and of waiting requests.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/testing/model.h"

namespace gpumemd {

using absl::StatusCode;

absl::Status LedgerModel::CheckDenial(const Denial& denial, const std::string& tenant,
                                      const Expected& expected) const {
  const LimitName& name = expected.name;
  const std::string device = name.device < devices_.size() ? devices_[name.device].uuid : "";
  const std::string limited = name.whose == tenant ? "" : name.whose;
  if (denial.cause == name.cause && denial.tenant == tenant && denial.device_uuid == device &&
      denial.limited_tenant == limited && denial.asked == expected.asked &&
      denial.used == expected.used && denial.limit == expected.limit &&
      (!denial.help.empty() || name.cause == Denial::Cause::kUnbrokered)) {
    // Each named holder holds it; the largest come first.
    uint64_t last = UINT64_MAX;
    for (const Denial::Holder& holder : denial.holders) {
      if (!tenants_.contains(holder.tenant) || !IsUnder(holder.tenant, name.whose) ||
          holder.used > last || holder.used == 0 ||
          holder.used != Of(holder.tenant, name.device, Which::kHeld).bytes) {
        return Wrong("a denial names the wrong holder: ", DenialError(denial).ToString());
      }
      last = holder.used;
    }
    return absl::OkStatus();
  }
  return Wrong("expected a denial of ", tenant, " by ", NameOf(name.cause), " of \"", limited,
               "\" on \"", device, "\", asked ", expected.asked, ", used ", expected.used,
               ", limit ", expected.limit, "; got ", DenialError(denial).ToString());
}

absl::Status LedgerModel::ExpectDenial(const absl::Status& answer, const std::string& tenant,
                                       const Expected& expected) {
  ++tenants_.at(tenant).denials;
  const std::optional<Denial> denial = DenialOf(answer);
  if (!absl::IsResourceExhausted(answer) || !denial) {
    return Wrong("expected a denial by ", NameOf(expected.name.cause), ", got ", answer.ToString());
  }
  return CheckDenial(*denial, tenant, expected);
}

std::set<SegmentId> LedgerModel::Reusable(const Request& request) const {
  std::set<SegmentId> reusable;
  for (const auto& [id, segment] : segments_) {
    if (reusable.size() == request.count || tenants_.at(request.tenant).quota.scrub) break;
    if (segment.tenant == request.tenant && segment.device == request.device &&
        segment.kind == request.kind && segment.bytes == request.bytes &&
        (segment.kept_since > 0 || (request.kind == Kind::kMempool && !segment.lost &&
                                    !MayMap(id) && StateOf(id) == SegmentState::kLingering))) {
      reusable.insert(id);
    }
  }
  return reusable;
}

bool LedgerModel::OtherSort(SessionId id, bool revocable) const {
  const PeerIdentity& peer = sessions_.at(id).peer;
  return std::any_of(mappings_.begin(), mappings_.end(), [&](const Mapping& mapping) {
    const PeerIdentity& other = sessions_.at(mapping.session).peer;
    return other.pid == peer.pid && other.start_time == peer.start_time &&
           mapping.revocable != revocable;
  });
}

// --- Asking ------------------------------------------------------------------------------

absl::Status LedgerModel::BeginAcquire(SessionId id, const AcquireSpec& spec, absl::Time now,
                                       const absl::StatusOr<Admission>& answer) {
  const auto refused = [&](StatusCode code) { return ExpectCode(answer.status(), code); };
  if (draining_) return refused(StatusCode::kUnavailable);
  if (!Live(id)) return refused(StatusCode::kAborted);
  Session& session = sessions_.at(id);
  const Quota& quota = tenants_.at(session.tenant).quota;
  const absl::StatusOr<size_t> device = DeviceFor(session.tenant, spec);
  if (!device.ok()) return refused(device.status().code());
  const DeviceInfo& info = devices_[*device];
  Request request = {.tenant = session.tenant,
                     .device = *device,
                     .kind = KindFor(session.tenant, spec, *device),
                     .bytes = spec.bytes,
                     .count = spec.count,
                     .revocable = spec.revocable || quota.revocable,
                     .request_id = spec.request_id};
  if (request.revocable && request.kind == Kind::kMempool) {
    return refused(StatusCode::kUnimplemented);
  }
  if (spec.count == 0 || spec.count > kMaxSegmentsPerCall || spec.bytes == 0 ||
      spec.bytes > info.capacity_bytes) {
    return refused(StatusCode::kInvalidArgument);
  }
  const bool own_steps = request.kind == Kind::kMempool && info.pool_granularity_bytes > 0;
  while (request.bytes % (own_steps ? info.pool_granularity_bytes : info.granularity_bytes) != 0) {
    ++request.bytes;
  }
  if (auto denied = NoRoomForLeases(id, spec.count, answer.status())) return *denied;
  if (OtherSort(id, request.revocable)) return refused(StatusCode::kFailedPrecondition);
  if (TookTooMuch(request.tenant)) return ExpectUnbrokered(request, answer.status());

  Claims claims;
  for (const auto& [other_id, other] : waiters_) {
    if (GoesBefore(request, other.request)) continue;
    Add(LimitsFor(other.request, {}), other.claimed, claims);
  }
  const std::set<SegmentId> reused = Reusable(request);
  const Judgement judgement = Judge(request, reused, claims);
  if (judgement.fit == Fit::kNow) {
    if (!answer.ok() || !answer->operation || answer->waiter) {
      return Wrong("expected a grant, got ",
                   answer.ok() ? std::string("a waiter") : answer.status().ToString());
    }
    return Grant(id, request, reused, now, *answer->operation);
  }
  MakeRoom(request, reused, judgement, claims, now);
  if (judgement.hopeless || (judgement.fit == Fit::kBlocked && !spec.waits)) {
    return ExpectDenial(answer.status(), request.tenant, judgement.denial);
  }
  if (spec.waits) {
    if (auto denied = NoRoomToWait(request.tenant, answer.status())) return *denied;
  }
  if (!answer.ok() || answer->operation || !answer->waiter ||
      ToInt(*answer->waiter) <= last_waiter_) {
    return Wrong("expected a waiter, got ",
                 answer.ok() ? std::string("a grant") : answer.status().ToString());
  }
  last_waiter_ = ToInt(*answer->waiter);
  waiters_[*answer->waiter] = {.session = id,
                               .request = request,
                               .asked_to = spec.waits,
                               .since = now,
                               .revokes = judgement.fit == Fit::kRevoked,
                               .claimed = judgement.in_the_way};
  if (spec.waits) --session.calls;
  stirred_ = true;
  return absl::OkStatus();
}

void LedgerModel::MakeRoom(const Request& request, const std::set<SegmentId>& reused,
                           const Judgement& judgement, const Claims& claims, absl::Time now) {
  if (judgement.fit == Fit::kBlocked || judgement.awaits_end) return;
  // Segments that it would reuse must not be given up for it, and count as used just now.
  for (SegmentId id : reused) segments_.at(id).kept_since = 0;
  GiveUpFor(request, request.count - static_cast<uint32_t>(reused.size()), claims);
  for (SegmentId id : reused) Rest(id);
  for (SegmentId id : judgement.victims) TakeBack(id, now);
}

absl::Status LedgerModel::Grant(SessionId session, const Request& request,
                                const std::set<SegmentId>& reused, absl::Time now,
                                const Operation& answer) {
  if (ToInt(answer.id) <= last_operation_ || answer.session != session ||
      answer.device != request.device || answer.kind != request.kind ||
      answer.revocable != request.revocable || answer.request_id != request.request_id ||
      answer.regrant || answer.items.size() != request.count) {
    return Wrong("the operation is not what was asked for");
  }
  std::vector<std::string> limited = PathOf(request.tenant);
  limited.emplace_back("");
  std::vector<uint64_t> needs;
  for (const std::string& each : limited) needs.push_back(Need(each, request.device));

  last_operation_ = ToInt(answer.id);
  auto expected_reuse = reused.begin();
  for (const Operation::Item& item : answer.items) {
    if (ToInt(item.lease) <= last_lease_) return Wrong("a lease's number is used twice");
    last_lease_ = ToInt(item.lease);
    if (expected_reuse != reused.end()) {
      if (item.segment != *expected_reuse++ || !item.reused || item.fresh) {
        return Wrong("expected segment ", ToInt(*std::prev(expected_reuse)), " to be reused");
      }
      segments_.at(item.segment).kept_since = 0;
      segments_.at(item.segment).revocable = request.revocable;
    } else {
      if (item.reused || !item.fresh || ToInt(item.segment) <= last_segment_) {
        return Wrong("expected a fresh segment with a number of its own");
      }
      last_segment_ = ToInt(item.segment);
      segments_[item.segment] = {.tenant = request.tenant,
                                 .device = request.device,
                                 .kind = request.kind,
                                 .bytes = request.bytes,
                                 .created = now,
                                 .revocable = request.revocable};
    }
    mappings_.push_back({session, item.segment, request.revocable});
    if (request.kind == Kind::kMempool) imports_.push_back({session, request.device});
  }
  operations_.emplace(answer.id, answer);
  stirred_ = true;
  NotePeaks();

  // Whatever else was expected: the grant exceeds no limit, and gives away no guaranteed memory.
  for (size_t i = 0; i < limited.size(); ++i) {
    const std::string& each = limited[i];
    const uint64_t limit =
        each.empty() ? devices_[request.device].capacity_bytes : LimitOn(each, request.device);
    if (Of(each, request.device, Which::kAll).bytes > limit) {
      return Wrong("granted beyond the limit of \"", each, "\"");
    }
    const uint64_t need = Need(each, request.device);
    const bool has_limit = each.empty() || limit < devices_[request.device].capacity_bytes;
    if (has_limit && need > needs[i] && need > limit) {
      return Wrong("granted what is guaranteed under \"", each, "\"");
    }
    if (each.empty()) continue;
    const Quota& quota = tenants_.at(each).quota;
    if ((!Pinned(request.device) &&
         Of(each, kUnpinned, Which::kAll).bytes > quota.total_limit_bytes.value_or(UINT64_MAX)) ||
        Of(each, kEverywhere, Which::kAll).segments > quota.max_segments.value_or(UINT32_MAX)) {
      return Wrong("granted beyond a limit of \"", each, "\"");
    }
  }
  return absl::OkStatus();
}

// --- Waiting -----------------------------------------------------------------------------

bool LedgerModel::GoesBefore(const Request& request, const Request& other) const {
  const uint64_t deficit = Deficit(request), other_deficit = Deficit(other);
  if (deficit != other_deficit) return deficit > other_deficit;
  return tenants_.at(request.tenant).quota.priority > tenants_.at(other.tenant).quota.priority;
}

std::vector<WaiterId> LedgerModel::InOrder() const {
  std::vector<std::tuple<uint64_t, int64_t, WaiterId>> ranks;  // the lowest first
  for (const auto& [id, waiter] : waiters_) {
    ranks.emplace_back(UINT64_MAX - Deficit(waiter.request),
                       -QuotaOf(waiter.request.tenant).priority, id);
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<WaiterId> ordered;
  for (const auto& [deficit, priority, id] : ranks) ordered.push_back(id);
  return ordered;
}

LedgerModel::Claims LedgerModel::ClaimsOfThoseBefore(WaiterId id) const {
  Claims claims;
  for (WaiterId each : InOrder()) {
    if (each == id) break;
    Add(LimitsFor(waiters_.at(each).request, {}), waiters_.at(each).claimed, claims);
  }
  return claims;
}

void LedgerModel::Leave(WaiterId id) {
  if (waiters_.at(id).asked_to) ++sessions_.at(waiters_.at(id).session).calls;
  waiters_.erase(id);
  stirred_ = true;
}

absl::Status LedgerModel::AdmitWaiting(const std::vector<Ledger::Admitted>& answer,
                                       absl::Time now) {
  size_t next = 0;
  const auto told = [&](WaiterId id) -> const Ledger::Admitted* {
    if (next == answer.size() || answer[next].waiter != id) return nullptr;
    return &answer[next++];
  };
  for (WaiterId id : std::exchange(refused_, {})) {
    const Ledger::Admitted* admitted = told(id);
    if (admitted == nullptr || !absl::IsAborted(admitted->operation.status())) {
      return Wrong("waiter ", ToInt(id), " should be told that its session has ended");
    }
  }
  std::vector<WaiterId> left = std::exchange(stirred_, false) ? InOrder() : std::vector<WaiterId>();
  Claims claims;
  while (!left.empty()) {
    const WaiterId id = left.front();
    left.erase(left.begin());
    Waiter& waiter = waiters_.at(id);
    const Request request = waiter.request;
    const SessionId session = waiter.session;
    if (draining_ || OtherSort(session, request.revocable)) {
      const Ledger::Admitted* admitted = told(id);
      if (admitted == nullptr) return Wrong("waiter ", ToInt(id), " should be refused");
      absl::Status code =
          ExpectCode(admitted->operation.status(),
                     draining_ ? StatusCode::kUnavailable : StatusCode::kFailedPrecondition);
      if (!code.ok()) return code;
      Leave(id);
      continue;
    }
    if (TookTooMuch(request.tenant)) {
      const Ledger::Admitted* admitted = told(id);
      if (admitted == nullptr) return Wrong("waiter ", ToInt(id), " should be denied");
      absl::Status denied = ExpectUnbrokered(request, admitted->operation.status());
      if (!denied.ok()) return denied;
      Leave(id);
      continue;
    }
    const std::set<SegmentId> reused = Reusable(request);
    const Judgement judgement = Judge(request, reused, claims);
    if (judgement.fit == Fit::kNow) {
      const Ledger::Admitted* admitted = told(id);
      if (admitted == nullptr) return Wrong("waiter ", ToInt(id), " should wait no longer");
      if (auto denied = NoRoomForLeases(session, request.count, admitted->operation.status())) {
        if (!denied->ok()) return *denied;
        Leave(id);
        continue;
      }
      if (!admitted->operation.ok()) {
        return Wrong("waiter ", ToInt(id), " should be granted what it waits for");
      }
      Leave(id);
      absl::Status granted = Grant(session, request, reused, now, *admitted->operation);
      if (!granted.ok()) return granted;
      left = InOrder();
      claims.clear();
      continue;
    }
    MakeRoom(request, reused, judgement, claims, now);
    if (judgement.hopeless || (judgement.fit == Fit::kBlocked && !waiter.asked_to)) {
      const Ledger::Admitted* admitted = told(id);
      if (admitted == nullptr) return Wrong("waiter ", ToInt(id), " should be denied");
      absl::Status denied =
          ExpectDenial(admitted->operation.status(), request.tenant, judgement.denial);
      if (!denied.ok()) return denied;
      Leave(id);
      continue;
    }
    waiter.claimed = judgement.in_the_way;
    if (judgement.fit == Fit::kRevoked) waiter.revokes = true;
    Add(judgement.limits, judgement.in_the_way, claims);
  }
  stirred_ = false;  // memory given up for them comes back when it is destroyed
  if (next == answer.size()) return absl::OkStatus();
  return Wrong("waiter ", ToInt(answer[next].waiter), " should go on waiting, and got ",
               answer[next].operation.status().ToString());
}

absl::Status LedgerModel::NobodyWaitsInVain() const {
  Claims claims;
  for (WaiterId id : InOrder()) {
    const Request& request = waiters_.at(id).request;
    if (OtherSort(waiters_.at(id).session, request.revocable)) continue;  // it will be told
    const Judgement judgement = Judge(request, Reusable(request), claims);
    if (judgement.fit == Fit::kNow) {
      return Wrong("waiter ", ToInt(id), " waits for ", request.count, " x ", request.bytes, " on ",
                   devices_[request.device].uuid, ", which is there");
    }
    Add(judgement.limits, judgement.in_the_way, claims);
  }
  return absl::OkStatus();
}

absl::Status LedgerModel::EndWait(WaiterId id, bool expired, const absl::Status& answer) {
  const Request request = waiters_.at(id).request;
  const Judgement judgement = Judge(request, {}, ClaimsOfThoseBefore(id));
  Leave(id);
  if (!expired) return ExpectCode(answer, StatusCode::kCancelled);
  return ExpectDenial(answer, request.tenant, judgement.denial);
}

absl::Status LedgerModel::CompareWaiters(const Ledger& ledger, const std::string& tenant,
                                         const std::string& device, absl::Time now) const {
  const auto views = ledger.ListWaiting(tenant, device);
  if (!views.ok()) return Wrong("waiters are not listed: ", views.status().ToString());
  auto view = views->begin();
  // In the order in which they are served: what blocks each request.
  std::vector<std::pair<WaiterId, Judgement>> order;
  Claims claims;
  for (WaiterId id : InOrder()) {
    order.emplace_back(id, Judge(waiters_.at(id).request, {}, claims));
    Add(order.back().second.limits, waiters_.at(id).claimed, claims);
  }
  for (size_t d = 0; d < devices_.size(); ++d) {
    uint32_t position = 0;
    for (const auto& [id, judgement] : order) {
      const Waiter& waiter = waiters_.at(id);
      const Request& request = waiter.request;
      if (request.device != d) continue;
      ++position;
      if ((!tenant.empty() && request.tenant != tenant) ||
          (!device.empty() && devices_[d].uuid != device)) {
        continue;
      }
      if (view == views->end() || view->id != id || view->session != waiter.session ||
          view->tenant != request.tenant || view->device_uuid != devices_[d].uuid ||
          view->kind != request.kind || view->bytes != request.bytes ||
          view->count != request.count || view->revocable != request.revocable ||
          view->asked_to != waiter.asked_to || view->position != position ||
          view->age != now - waiter.since) {
        return Wrong("waiter ", ToInt(id), " is listed wrongly");
      }
      if (ledger.state().waiters.at(id).revokes != waiter.revokes) {
        return Wrong("whether memory is taken back for waiter ", ToInt(id), " is wrong");
      }
      const std::optional<Denial> blocked_by = ledger.BlockedBy(id);
      if (blocked_by.has_value() != (judgement.fit == Fit::kBlocked)) {
        return Wrong("whether waiter ", ToInt(id), " is blocked is wrong");
      }
      if (judgement.fit == Fit::kNow) {
        if (view->blocked_by.cause != Denial::Cause::kUnspecified) {
          return Wrong("waiter ", ToInt(id), " is blocked by what is not in its way");
        }
      } else {
        absl::Status same = CheckDenial(view->blocked_by, request.tenant, judgement.denial);
        if (!same.ok()) return same;
      }
      if (blocked_by && *blocked_by != view->blocked_by) {
        return Wrong("waiter ", ToInt(id), " is blocked by two things");
      }
      ++view;
    }
  }
  return view == views->end() ? absl::OkStatus() : Wrong("too many waiters are listed");
}

}  // namespace gpumemd
