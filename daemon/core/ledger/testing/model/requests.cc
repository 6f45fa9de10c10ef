// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/requests.h"

#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/devices.h"
#include "daemon/core/ledger/testing/model/guarantees.h"
#include "daemon/core/ledger/testing/model/limits.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/queue.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/revocation.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

using absl::StatusCode;

std::set<SegmentId> Reusable(const LedgerModel& model, const Request& request) {
  std::set<SegmentId> reusable;
  for (const auto& [id, segment] : model.segments) {
    if (reusable.size() == request.count || model.tenants.at(request.tenant).quota.scrub) break;
    if (segment.tenant == request.tenant && segment.device == request.device &&
        segment.kind == request.kind && segment.bytes == request.bytes &&
        (segment.kept_since > 0 || IsIdleInPool(model, id))) {
      reusable.insert(id);
    }
  }
  return reusable;
}

absl::Status BeginAcquire(LedgerModel& model, SessionId id, const AcquireSpec& spec, absl::Time now,
                          const absl::StatusOr<Admission>& answer) {
  const auto refused = [&](StatusCode code) { return ExpectCode(answer.status(), code); };
  if (model.draining) return refused(StatusCode::kUnavailable);
  if (!Live(model, id)) return refused(StatusCode::kAborted);
  Session& session = model.sessions.at(id);
  if (HasEnded(model, session.tenant)) return refused(StatusCode::kFailedPrecondition);
  const Quota& quota = model.tenants.at(session.tenant).quota;
  const absl::StatusOr<size_t> device = DeviceFor(model, session.tenant, spec);
  if (!device.ok()) return refused(device.status().code());
  const DeviceInfo& info = model.devices[*device];
  Request request = {.tenant = session.tenant,
                     .device = *device,
                     .kind = KindFor(model, session.tenant, spec, *device),
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
  if (auto denied = NoRoomForLeases(model, id, spec.count, answer.status())) return *denied;
  if (HoldsOtherLeaseType(model, id, request.revocable))
    return refused(StatusCode::kFailedPrecondition);
  if (DeniedForUnbrokered(model, request.tenant)) {
    return ExpectUnbrokered(model, request, answer.status());
  }

  Claims claims;
  for (const auto& [other_id, other] : model.waiters) {
    if (GoesBefore(model, request, other.request)) continue;
    Add(LimitsFor(model, other.request, {}), other.claimed, claims);
  }
  const std::set<SegmentId> reused = Reusable(model, request);
  const Decision decision = Decide(model, request, reused, claims);
  if (decision.fit == Fit::kNow) {
    if (!answer.ok() || !answer->operation || answer->waiter) {
      return Wrong("expected a grant, got ",
                   answer.ok() ? std::string("a waiter") : answer.status().ToString());
    }
    return Grant(model, id, request, reused, now, *answer->operation);
  }
  MakeRoom(model, request, reused, decision, claims, now);
  if (decision.hopeless || (decision.fit == Fit::kBlocked && !spec.waits)) {
    return ExpectDenial(model, answer.status(), request.tenant, decision.denial);
  }
  if (spec.waits) {
    if (auto denied = NoRoomToWait(model, request.tenant, answer.status())) return *denied;
  }
  if (!answer.ok() || answer->operation || !answer->waiter ||
      ToInt(*answer->waiter) <= model.last_waiter) {
    return Wrong("expected a waiter, got ",
                 answer.ok() ? std::string("a grant") : answer.status().ToString());
  }
  model.last_waiter = ToInt(*answer->waiter);
  model.waiters[*answer->waiter] = {.session = id,
                                    .request = request,
                                    .asked_to = spec.waits,
                                    .since = now,
                                    .revokes = decision.fit == Fit::kRevoked,
                                    .claimed = decision.blocking};
  if (spec.waits) --session.calls;
  model.queue_changed = true;
  return absl::OkStatus();
}

void MakeRoom(LedgerModel& model, const Request& request, const std::set<SegmentId>& reused,
              const Decision& decision, const Claims& claims, absl::Time now) {
  if (decision.fit == Fit::kBlocked || decision.awaits_end) return;
  // Segments that it would reuse must not be given up for it.
  std::map<SegmentId, uint64_t> kept_since;
  for (SegmentId id : reused) {
    kept_since[id] = std::exchange(model.segments.at(id).kept_since, 0);
  }
  GiveUpFor(model, request, request.count - static_cast<uint32_t>(reused.size()), claims);
  for (const auto& [id, since] : kept_since) model.segments.at(id).kept_since = since;
  for (SegmentId id : decision.to_revoke) BeginRevocation(model, id, now);
}

absl::Status Grant(LedgerModel& model, SessionId session, const Request& request,
                   const std::set<SegmentId>& reused, absl::Time now, const Operation& answer) {
  if (ToInt(answer.id) <= model.last_operation || answer.session != session ||
      answer.device != request.device || answer.kind != request.kind ||
      answer.revocable != request.revocable || answer.request_id != request.request_id ||
      answer.regrant || answer.items.size() != request.count) {
    return Wrong("the operation is not what was asked for");
  }
  std::vector<std::string> limited = PathOf(model, request.tenant);
  limited.emplace_back("");
  std::vector<uint64_t> needs;
  for (const std::string& each : limited) needs.push_back(Need(model, each, request.device));

  model.last_operation = ToInt(answer.id);
  auto expected_reuse = reused.begin();
  for (const Operation::Item& item : answer.items) {
    if (ToInt(item.lease) <= model.last_lease) return Wrong("a lease's number is used twice");
    model.last_lease = ToInt(item.lease);
    if (expected_reuse != reused.end()) {
      if (item.segment != *expected_reuse++ || !item.reused || item.fresh) {
        return Wrong("expected segment ", ToInt(*std::prev(expected_reuse)), " to be reused");
      }
      model.segments.at(item.segment).kept_since = 0;
      model.segments.at(item.segment).revocable = request.revocable;
    } else {
      if (item.reused || !item.fresh || ToInt(item.segment) <= model.last_segment) {
        return Wrong("expected a fresh segment with a number of its own");
      }
      model.last_segment = ToInt(item.segment);
      model.segments[item.segment] = {.tenant = request.tenant,
                                      .device = request.device,
                                      .kind = request.kind,
                                      .bytes = request.bytes,
                                      .created = now,
                                      .revocable = request.revocable};
    }
    model.mappings.push_back({session, item.segment, request.revocable});
    if (request.kind == Kind::kMempool) model.imports.push_back({session, request.device});
  }
  model.operations.emplace(answer.id, answer);
  NotePeaks(model);

  // Whatever else was expected: the grant exceeds no limit, and gives away no guaranteed memory.
  for (size_t i = 0; i < limited.size(); ++i) {
    const std::string& each = limited[i];
    const uint64_t limit = each.empty() ? model.devices[request.device].capacity_bytes
                                        : LimitOn(model, each, request.device);
    if (SumOf(model, each, request.device, Which::kAll).bytes > limit) {
      return Wrong("granted beyond the limit of \"", each, "\"");
    }
    const uint64_t need = Need(model, each, request.device);
    const bool has_limit = each.empty() || limit < model.devices[request.device].capacity_bytes;
    if (has_limit && need > needs[i] && need > limit) {
      return Wrong("granted what is guaranteed under \"", each, "\"");
    }
    if (each.empty()) continue;
    const Quota& quota = model.tenants.at(each).quota;
    if ((!Pinned(model, request.device) && SumOf(model, each, kUnpinned, Which::kAll).bytes >
                                               quota.total_limit_bytes.value_or(UINT64_MAX)) ||
        SumOf(model, each, kEverywhere, Which::kAll).segments >
            quota.max_segments.value_or(UINT32_MAX)) {
      return Wrong("granted beyond a limit of \"", each, "\"");
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd::model
