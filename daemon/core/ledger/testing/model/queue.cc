// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/queue.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/guarantees.h"
#include "daemon/core/ledger/testing/model/limits.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/requests.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

using absl::StatusCode;

namespace {

std::vector<WaiterId> InOrder(const LedgerModel& model) {
  std::vector<std::tuple<uint64_t, int64_t, WaiterId>> ranks;  // the lowest first
  for (const auto& [id, waiter] : model.waiters) {
    ranks.emplace_back(UINT64_MAX - Deficit(model, waiter.request),
                       -QuotaOf(model, waiter.request.tenant).priority, id);
  }
  std::sort(ranks.begin(), ranks.end());
  std::vector<WaiterId> ordered;
  for (const auto& [deficit, priority, id] : ranks) ordered.push_back(id);
  return ordered;
}

}  // namespace

bool GoesBefore(const LedgerModel& model, const Request& request, const Request& other) {
  const uint64_t deficit = Deficit(model, request), other_deficit = Deficit(model, other);
  if (deficit != other_deficit) return deficit > other_deficit;
  return model.tenants.at(request.tenant).quota.priority >
         model.tenants.at(other.tenant).quota.priority;
}

Claims ClaimsBefore(const LedgerModel& model, WaiterId id) {
  Claims claims;
  for (WaiterId each : InOrder(model)) {
    if (each == id) break;
    Add(LimitsFor(model, model.waiters.at(each).request, {}), model.waiters.at(each).claimed,
        claims);
  }
  return claims;
}

void LeaveQueue(LedgerModel& model, WaiterId id) {
  if (model.waiters.at(id).asked_to) ++model.sessions.at(model.waiters.at(id).session).calls;
  model.waiters.erase(id);
  model.queue_changed = true;
}

absl::Status AdmitWaiting(LedgerModel& model, const std::vector<AdmissionControl::Admitted>& answer,
                          absl::Time now) {
  size_t next = 0;
  const auto told = [&](WaiterId id) -> const AdmissionControl::Admitted* {
    if (next == answer.size() || answer[next].waiter != id) return nullptr;
    return &answer[next++];
  };
  for (WaiterId id : std::exchange(model.refused, {})) {
    const AdmissionControl::Admitted* admitted = told(id);
    if (admitted == nullptr || !absl::IsAborted(admitted->operation.status())) {
      return Wrong("waiter ", ToInt(id), " should be told that its session has ended");
    }
  }
  // In the last check, one waiter may have taken retained memory from another that was checked
  // before. That one is checked again with the next change.
  if (Charges(model) != model.charges_checked) model.queue_changed = true;
  std::vector<WaiterId> left =
      std::exchange(model.queue_changed, false) ? InOrder(model) : std::vector<WaiterId>();
  Claims claims;
  while (!left.empty()) {
    const WaiterId id = left.front();
    left.erase(left.begin());
    Waiter& waiter = model.waiters.at(id);
    const Request request = waiter.request;
    const SessionId session = waiter.session;
    if (model.draining || HasEnded(model, request.tenant) ||
        HoldsOtherLeaseType(model, session, request.revocable)) {
      const AdmissionControl::Admitted* admitted = told(id);
      if (admitted == nullptr) return Wrong("waiter ", ToInt(id), " should be refused");
      absl::Status code =
          ExpectCode(admitted->operation.status(),
                     model.draining ? StatusCode::kUnavailable : StatusCode::kFailedPrecondition);
      if (!code.ok()) return code;
      LeaveQueue(model, id);
      continue;
    }
    if (DeniedForUnbrokered(model, request.tenant)) {
      const AdmissionControl::Admitted* admitted = told(id);
      if (admitted == nullptr) return Wrong("waiter ", ToInt(id), " should be denied");
      absl::Status denied = ExpectUnbrokered(model, request, admitted->operation.status());
      if (!denied.ok()) return denied;
      LeaveQueue(model, id);
      continue;
    }
    const std::set<SegmentId> reused = Reusable(model, request);
    const Decision decision = Decide(model, request, reused, claims);
    if (decision.fit == Fit::kNow) {
      const AdmissionControl::Admitted* admitted = told(id);
      if (admitted == nullptr) return Wrong("waiter ", ToInt(id), " should wait no longer");
      if (auto denied =
              NoRoomForLeases(model, session, request.count, admitted->operation.status())) {
        if (!denied->ok()) return *denied;
        LeaveQueue(model, id);
        continue;
      }
      if (!admitted->operation.ok()) {
        return Wrong("waiter ", ToInt(id), " should be granted what it waits for");
      }
      LeaveQueue(model, id);
      absl::Status granted = Grant(model, session, request, reused, now, *admitted->operation);
      if (!granted.ok()) return granted;
      left = InOrder(model);
      claims.clear();
      continue;
    }
    MakeRoom(model, request, reused, decision, claims, now);
    if (decision.hopeless || (decision.fit == Fit::kBlocked && !waiter.asked_to)) {
      const AdmissionControl::Admitted* admitted = told(id);
      if (admitted == nullptr) return Wrong("waiter ", ToInt(id), " should be denied");
      absl::Status denied =
          ExpectDenial(model, admitted->operation.status(), request.tenant, decision.denial);
      if (!denied.ok()) return denied;
      LeaveQueue(model, id);
      continue;
    }
    waiter.claimed = decision.blocking;
    if (decision.fit == Fit::kRevoked) waiter.revokes = true;
    Add(decision.limits, decision.blocking, claims);
  }
  model.queue_changed = false;  // memory given up for them comes back when it is destroyed
  model.charges_checked = Charges(model);
  if (next == answer.size()) return absl::OkStatus();
  return Wrong("waiter ", ToInt(answer[next].waiter), " should go on waiting, and got ",
               answer[next].operation.status().ToString());
}

absl::Status CheckWaitersMustWait(const LedgerModel& model) {
  Claims claims;
  for (WaiterId id : InOrder(model)) {
    const Request& request = model.waiters.at(id).request;
    if (HoldsOtherLeaseType(model, model.waiters.at(id).session, request.revocable))
      continue;  // it will be told
    const Decision decision = Decide(model, request, Reusable(model, request), claims);
    if (decision.fit == Fit::kNow) {
      return Wrong("waiter ", ToInt(id), " waits for ", request.count, " x ", request.bytes, " on ",
                   model.devices[request.device].uuid, ", which is there");
    }
    Add(decision.limits, decision.blocking, claims);
  }
  return absl::OkStatus();
}

absl::Status EndWait(LedgerModel& model, WaiterId id, bool expired, const absl::Status& answer) {
  const Request request = model.waiters.at(id).request;
  const Decision decision = Decide(model, request, {}, ClaimsBefore(model, id));
  LeaveQueue(model, id);
  if (!expired) return ExpectCode(answer, StatusCode::kCancelled);
  return ExpectDenial(model, answer, request.tenant, decision.denial);
}

absl::Status CompareWaiters(const LedgerModel& model, const Ledger& ledger,
                            const std::string& tenant, const std::string& device, absl::Time now) {
  const auto views = ledger.admission().ListWaiting(tenant, device);
  if (!views.ok()) return Wrong("waiters are not listed: ", views.status().ToString());
  auto view = views->begin();
  // In the order in which they are served: what blocks each request.
  std::vector<std::pair<WaiterId, Decision>> order;
  Claims claims;
  for (WaiterId id : InOrder(model)) {
    order.emplace_back(id, Decide(model, model.waiters.at(id).request, {}, claims));
    Add(order.back().second.limits, model.waiters.at(id).claimed, claims);
  }
  for (size_t d = 0; d < model.devices.size(); ++d) {
    uint32_t position = 0;
    for (const auto& [id, decision] : order) {
      const Waiter& waiter = model.waiters.at(id);
      const Request& request = waiter.request;
      if (request.device != d) continue;
      ++position;
      if ((!tenant.empty() && request.tenant != tenant) ||
          (!device.empty() && model.devices[d].uuid != device)) {
        continue;
      }
      if (view == views->end() || view->id != id || view->session != waiter.session ||
          view->tenant != request.tenant || view->device_uuid != model.devices[d].uuid ||
          view->kind != request.kind || view->bytes != request.bytes ||
          view->count != request.count || view->revocable != request.revocable ||
          view->asked_to != waiter.asked_to || view->position != position ||
          view->age != now - waiter.since) {
        return Wrong("waiter ", ToInt(id), " is listed wrongly");
      }
      if (ledger.state().waiters.at(id).revokes != waiter.revokes) {
        return Wrong("whether memory is taken back for waiter ", ToInt(id), " is wrong");
      }
      const std::optional<Denial> blocked_by = ledger.admission().BlockedBy(id);
      if (blocked_by.has_value() != (decision.fit == Fit::kBlocked)) {
        return Wrong("whether waiter ", ToInt(id), " is blocked is wrong");
      }
      if (decision.fit == Fit::kNow) {
        if (view->blocked_by.cause != Denial::Cause::kUnspecified) {
          return Wrong("waiter ", ToInt(id), " is blocked by what is not in its way");
        }
      } else {
        absl::Status same = CheckDenial(model, view->blocked_by, request.tenant, decision.denial);
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

}  // namespace gpumemd::model
