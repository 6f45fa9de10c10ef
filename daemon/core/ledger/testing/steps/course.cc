// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/course.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/testing/model/attachments.h"
#include "daemon/core/ledger/testing/model/compare.h"
#include "daemon/core/ledger/testing/model/publications.h"
#include "daemon/core/ledger/testing/model/queue.h"
#include "daemon/core/ledger/testing/model/revocation.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::steps {

Course::Course(uint64_t seed, Coverage* counts)
    : chance(seed),
      devices(chance.Devices()),
      bounds(chance.DaemonBounds()),
      ledger(devices, bounds, [this] { return now; }),
      model(devices, bounds),
      coverage(*counts) {
  ledger.SetAudit(&audit);
  ledger.KeepChanges();
  model.noted = now;
}

std::string Course::LastCalls() const { return absl::StrJoin(log, "\n  "); }

SessionId Course::AnySession() {
  if (model.sessions.empty() || chance.In100(1)) return SessionId{chance.Below(40)};
  SessionId chosen{};
  for (int tries = 0; tries < 5; ++tries) {
    const auto& [id, session] = chance.Of(model.sessions);
    chosen = id;
    if (session.live) break;
  }
  return chosen;
}

SessionId Course::AnyHolder() {
  if (model.leases.empty() || chance.In100(5)) return AnySession();
  return chance.Of(model.leases).second.session;
}

SessionId Course::SessionOver() {
  for (const auto& [id, session] : model.sessions) {
    if (!session.live && !session.process_gone) return id;
  }
  return SessionToEnd();
}

SessionId Course::SessionToEnd() {
  return model.sessions.empty() || chance.In100(3) ? SessionId{chance.Below(40)}
                                                   : chance.Of(model.sessions).first;
}

LeaseId Course::AnyLeaseOf(SessionId session) {
  std::vector<LeaseId> own;
  for (const auto& [id, lease] : model.leases) {
    if (lease.session == session) own.push_back(id);
  }
  if (!own.empty() && !chance.In100(4)) return chance.Of(own);
  if (!model.leases.empty() && chance.In100(60)) return chance.Of(model.leases).first;
  return LeaseId{chance.Below(1000)};
}

absl::Status Course::AfterCall(const absl::Status& result, const std::string& call) {
  ++calls;
  if (log.size() == 30) log.pop_front();
  log.push_back(absl::StrCat(calls, ": ", call));
  if (!result.ok()) return result;
  if (!audit.status().ok()) return audit.status();
  if (absl::Status same = AdmitWaiting(); !same.ok()) return same;
  if (absl::Status same = model::TakeRevoked(model, Drain(ledger.effects().revoked)); !same.ok())
    return same;
  if (absl::Status same = model::TakeForgotten(model, Drain(ledger.effects().forgotten));
      !same.ok()) {
    return same;
  }
  if (absl::Status same = model::TakeBereaved(model, Drain(ledger.effects().orphaned));
      !same.ok()) {
    return same;
  }
  model::NoteAttached(model, now);
  const auto attachable = Drain(ledger.effects().attachable);
  if (!attachable.empty()) Cover("waited to attach, and is called");
  if (absl::Status same = model::TakeAttachable(model, attachable); !same.ok()) return same;
  absl::Status ended =
      model::TakeEndedPublications(model, Drain(ledger.effects().ended_publications));
  if (!ended.ok()) return ended;
  if (absl::Status right = ledger.CheckInvariants(); !right.ok()) return right;
  model::NoteUses(model, now);
  if (absl::Status same = model::Compare(model, ledger, now); !same.ok()) return same;
  now += absl::Milliseconds(1);
  // Now and then one batch of the journal has the changes of several calls.
  if (chance.In100(75)) Record();
  return chance.In100(4) ? CheckImage() : absl::OkStatus();
}

void Course::Record() {
  for (const journal::Change& change : ledger.TakeChanges()) image.Apply(change);
}

absl::Status Course::CheckImage() {
  Record();
  if (image != ledger.Image()) return absl::InternalError("the journal says something else");
  return image.CheckReferences();
}

absl::Status Course::AdmitWaiting() {
  std::vector<AdmissionControl::Admitted> admitted = AdmitInSlices();
  for (const AdmissionControl::Admitted& each : admitted) {
    const absl::Status& status = each.operation.status();
    const std::string told = status.ok() ? "granted" : Describe(status);
    Cover(absl::StrCat("waited, then ", told));
    absl::StrAppend(&log.back(), "; waiter ", ToInt(each.waiter), " -> ", told);
    if (status.ok()) granted_waiters.insert(each.waiter);
  }
  if (absl::Status same = model::AdmitWaiting(model, admitted, now); !same.ok()) return same;
  return model::CheckWaitersMustWait(model);
}

std::vector<AdmissionControl::Admitted> Course::AdmitInSlices() {
  if (chance.In100(60)) return ledger.admission().AdmitWaiting();
  std::vector<AdmissionControl::Admitted> admitted;
  do {
    for (AdmissionControl::Admitted& each :
         ledger.admission().AdmitWaiting(SIZE_MAX, 1 + chance.Below(3))) {
      admitted.push_back(std::move(each));
    }
    if (ledger.admission().QueueMoves()) Cover("checked in slices");
  } while (ledger.admission().QueueMoves());
  return admitted;
}

std::string Course::Describe(const absl::Status& status) {
  const auto denial = DenialOf(status);
  std::string told = denial ? NameOf(denial->cause) : absl::StatusCodeToString(status.code());
  Cover(told);
  return told;
}

}  // namespace gpumemd::steps
