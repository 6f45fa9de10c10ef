// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/attachments.h"

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/claims.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/publications.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

using absl::StatusCode;

absl::Status BeginAttach(LedgerModel& model, SessionId id, const AttachSpec& spec,
                         const absl::StatusOr<Admission>& answer) {
  const auto refused = [&](StatusCode code) { return ExpectCode(answer.status(), code); };
  if (model.draining) return refused(StatusCode::kUnavailable);
  if (!Live(model, id)) return refused(StatusCode::kAborted);
  Session& session = model.sessions.at(id);
  const auto name = ParsePublication(spec.name, session.tenant);
  if (!name) return refused(StatusCode::kInvalidArgument);
  const Publication* found = FindPublication(model, name->first, name->second);
  if (found != nullptr && !found->to_any && found->tenant != session.tenant) found = nullptr;
  if (spec.claims) {
    const StatusCode code = ContentsCode(model, id, spec);
    if (code != StatusCode::kOk) return refused(code);
    if (found == nullptr || found->content_id != spec.content_id ||
        HasClaim(model, id, spec.request_id)) {
      return BeginClaim(model, id, spec, name->first, name->second, answer);
    }
  } else if (spec.version == 0 && found == nullptr) {
    return refused(StatusCode::kNotFound);
  }
  if (found == nullptr || found->version < spec.version) {
    if (auto denied = NoRoomToWait(model, session.tenant, answer.status())) return *denied;
    if (!answer.ok() || !answer->waiter || ToInt(*answer->waiter) <= model.last_waiter) {
      return Wrong("expected a wait for the version, got ", answer.status().ToString());
    }
    model.last_waiter = ToInt(*answer->waiter);
    model.attach_waiters[*answer->waiter] = {id, name->first, name->second, spec.version, "", 0};
    --session.calls;
    return absl::OkStatus();
  }
  if (auto denied = NoRoomForLeases(model, id, found->segments.size(), answer.status())) {
    return *denied;
  }
  const bool revocable = spec.revocable || QuotaOf(model, session.tenant).revocable;
  if (HoldsOtherLeaseType(model, id, revocable)) return refused(StatusCode::kFailedPrecondition);
  if (!answer.ok() || !answer->operation) {
    return Wrong("expected an attachment, got ", answer.status().ToString());
  }
  const Operation& operation = *answer->operation;
  if (ToInt(operation.id) <= model.last_operation || operation.session != id ||
      operation.publication != found->id || operation.revocable != revocable ||
      operation.request_id != spec.request_id || operation.regrant ||
      operation.items.size() != found->segments.size()) {
    return Wrong("the operation is not what was asked for");
  }
  model.last_operation = ToInt(operation.id);
  for (size_t i = 0; i < operation.items.size(); ++i) {
    const Operation::Item& item = operation.items[i];
    if (item.segment != found->segments[i] || item.fresh || item.reused ||
        ToInt(item.lease) <= model.last_lease) {
      return Wrong("segment ", i, " of the publication is another one");
    }
    model.last_lease = ToInt(item.lease);
    model.mappings.push_back({id, item.segment, revocable});
    if (found->tenant != session.tenant) model.segments.at(item.segment).shared_out = true;
  }
  model.operations.emplace(operation.id, operation);
  model.queue_changed = true;
  return absl::OkStatus();
}

void LeaveAttachQueue(LedgerModel& model, WaiterId id) {
  ++model.sessions.at(model.attach_waiters.at(id).session).calls;
  model.attach_waiters.erase(id);
}

void EndAttachWaitsOf(LedgerModel& model, std::optional<SessionId> session) {
  for (const auto& [id, waiter] : std::map(model.attach_waiters)) {
    if (session && waiter.session != *session) continue;
    LeaveAttachQueue(model, id);
    model.attachable.insert(id);
  }
}

absl::Status TakeAttachable(LedgerModel& model, const std::vector<WaiterId>& answer) {
  const std::set<WaiterId> expected = std::exchange(model.attachable, {});
  if (answer.size() == expected.size() &&
      std::set<WaiterId>(answer.begin(), answer.end()) == expected) {
    return absl::OkStatus();
  }
  return Wrong("expected ", expected.size(), " who wait to attach to be called, got ",
               answer.size());
}

absl::Status EndAttachWait(LedgerModel& model, WaiterId id, bool expired,
                           const absl::Status& answer) {
  LeaveAttachQueue(model, id);
  return ExpectCode(answer, expired ? StatusCode::kDeadlineExceeded : StatusCode::kCancelled);
}

}  // namespace gpumemd::model
