// One course of random calls of a ledger, with the model beside it: the common part of the model
// test's episodes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model.h"
#include "daemon/core/ledger/testing/model_chance.h"

namespace gpumemd {

// Counts the cases that the episodes have met, so that a run that tests nothing does not pass.
using Coverage = std::map<std::string, uint64_t, std::less<>>;

class ModelCourse {
 public:
  ModelCourse(uint64_t seed, Coverage* coverage)
      : chance_(seed),
        devices_(chance_.Devices()),
        bounds_(chance_.DaemonBounds()),
        ledger_(devices_, bounds_, [this] { return now_; }),
        model_(devices_, bounds_),
        coverage_(*coverage) {
    ledger_.KeepChanges();
  }

  uint64_t calls() const { return calls_; }
  std::string LastCalls() const { return absl::StrJoin(log_, "\n  "); }

 protected:
  // --- Choices -----------------------------------------------------------------------

  // Returns a session of the model, mostly a live one; now and then one that is gone or never
  // existed.
  SessionId AnySession() {
    if (model_.sessions().empty() || chance_.In100(1)) return SessionId{chance_.Below(40)};
    SessionId chosen{};
    for (int tries = 0; tries < 5; ++tries) {
      const auto& [id, session] = chance_.Of(model_.sessions());
      chosen = id;
      if (session.live) break;
    }
    return chosen;
  }
  // Returns mostly a session that has leases.
  SessionId AnyHolder() {
    if (model_.leases().empty() || chance_.In100(5)) return AnySession();
    return chance_.Of(model_.leases()).second.session;
  }
  // Returns a session that has ended, if there is any.
  SessionId SessionOver() {
    for (const auto& [id, session] : model_.sessions()) {
      if (!session.live && !session.process_gone) return id;
    }
    return SessionToEnd();
  }
  SessionId SessionToEnd() {
    return model_.sessions().empty() || chance_.In100(3) ? SessionId{chance_.Below(40)}
                                                         : chance_.Of(model_.sessions()).first;
  }
  LeaseId AnyLeaseOf(SessionId session) {
    std::vector<LeaseId> own;
    for (const auto& [id, lease] : model_.leases()) {
      if (lease.session == session) own.push_back(id);
    }
    if (!own.empty() && !chance_.In100(4)) return chance_.Of(own);
    if (!model_.leases().empty() && chance_.In100(60)) return chance_.Of(model_.leases()).first;
    return LeaseId{chance_.Below(1000)};
  }

  // --- One call ----------------------------------------------------------------------

  // Call after every call. `verdict` is the model's status for the answer. Then compares
  // everything.
  template <typename... What>
  absl::Status After(const absl::Status& verdict, const What&... what) {
    ++calls_;
    if (log_.size() == 30) log_.pop_front();
    log_.push_back(absl::StrCat(calls_, ": ", what...));
    if (!verdict.ok()) return verdict;
    if (absl::Status same = AdmitWaiting(); !same.ok()) return same;
    if (absl::Status same = model_.TakeRevoked(ledger_.TakeRevoked()); !same.ok()) return same;
    if (absl::Status same = model_.TakeForgotten(ledger_.TakeForgotten()); !same.ok()) return same;
    if (absl::Status same = model_.TakeBereaved(ledger_.TakeBereaved()); !same.ok()) return same;
    model_.NoteAttached(now_);
    const auto attachable = ledger_.TakeAttachable();
    if (!attachable.empty()) Met("waited to attach, and is called");
    if (absl::Status same = model_.TakeAttachable(attachable); !same.ok()) return same;
    absl::Status ended = model_.TakeEndedPublications(ledger_.TakeEndedPublications());
    if (!ended.ok()) return ended;
    if (absl::Status right = ledger_.CheckInvariants(); !right.ok()) return right;
    if (absl::Status same = model_.Compare(ledger_, now_); !same.ok()) return same;
    now_ += absl::Milliseconds(1);
    // Now and then one batch of the journal has the changes of several calls.
    if (chance_.In100(75)) Record();
    return chance_.In100(4) ? CheckImage() : absl::OkStatus();
  }
  void Record() {
    for (const journal::Change& change : ledger_.TakeChanges()) image_.Apply(change);
  }
  // Checks that the recorded changes add up to the present state.
  absl::Status CheckImage() {
    Record();
    if (image_ != ledger_.Image()) return absl::InternalError("the journal says something else");
    return image_.CheckReferences();
  }
  // As after each call of the broker.
  absl::Status AdmitWaiting() {
    std::vector<Ledger::Admitted> admitted = AdmitInSlices();
    for (const Ledger::Admitted& each : admitted) {
      const absl::Status& status = each.operation.status();
      const std::string told = status.ok() ? "granted" : Tell(status);
      Met(absl::StrCat("waited, then ", told));
      absl::StrAppend(&log_.back(), "; waiter ", ToInt(each.waiter), " -> ", told);
      if (status.ok()) granted_waiters_.insert(each.waiter);
    }
    if (absl::Status same = model_.AdmitWaiting(admitted, now_); !same.ok()) return same;
    return model_.NobodyWaitsInVain();
  }
  // Admits at once, or judging only a few at a time, which has the same result.
  std::vector<Ledger::Admitted> AdmitInSlices() {
    if (chance_.In100(60)) return ledger_.AdmitWaiting();
    std::vector<Ledger::Admitted> admitted;
    do {
      for (Ledger::Admitted& each : ledger_.AdmitWaiting(SIZE_MAX, 1 + chance_.Below(3))) {
        admitted.push_back(std::move(each));
      }
      if (ledger_.QueueMoves()) Met("judged in slices");
    } while (ledger_.QueueMoves());
    return admitted;
  }
  void Met(absl::string_view what) { ++coverage_[std::string(what)]; }
  std::string Tell(const absl::Status& status) {
    const auto denial = DenialOf(status);
    std::string told = denial ? NameOf(denial->cause) : absl::StatusCodeToString(status.code());
    Met(told);
    return told;
  }

  Chance chance_;
  const std::vector<DeviceInfo> devices_;
  const Bounds bounds_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  Ledger ledger_;
  JournalImage image_;  // what the next daemon would know
  LedgerModel model_;
  Coverage& coverage_;
  std::vector<Secret> old_tickets_;
  std::set<WaiterId> granted_waiters_;
  std::deque<std::string> log_;
  uint64_t calls_ = 0;
};

}  // namespace gpumemd
