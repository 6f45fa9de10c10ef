// SPDX-License-Identifier: Apache-2.0
// The parts common to all requests: a broker's beginning and end, the authentication of calls, and
// how a change of the ledger ends.
#include "daemon/core/broker/broker.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/time/clock.h"
#include "common/trace/span.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/failpoint.h"
#include "daemon/core/mutant.h"

namespace gpumemd {
namespace {

bool MakesContextBound(const DeviceInfo& info) {
  return std::any_of(info.kinds.begin(), info.kinds.end(), IsContextBound);
}

// Bound how long a queue of thousands holds the mutex.
constexpr size_t kGrantsAtOnce = 16;
constexpr size_t kWaitersCheckedAtOnce = 128;

std::vector<DeviceInfo> InfosOf(const std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<DeviceInfo> infos;
  for (const auto& device : devices) infos.push_back(device->info());
  return infos;
}

}  // namespace

Broker::Broker(BrokerOptions options)
    : devices_(std::move(options.devices)),
      random_(std::move(options.random)),
      observer_(options.observer),
      continuity_(options.continuity),
      audit_(options.audit),
      max_leases_per_session_(options.bounds.max_leases_per_session),
      leases_at_once_(options.bounds.leases_at_once),
      now_(options.now),
      heartbeat_(std::move(options.heartbeat)),
      heartbeat_interval_(options.heartbeat_interval),
      heartbeat_pause_(options.heartbeat_pause),
      copy_hold_(options.copy_hold),
      threads_(options.threads),
      driver_free_(devices_.size(), 0),
      ledger_(InfosOf(devices_), options.bounds, std::move(options.now),
              std::move(options.usage_clock)),
      doomed_(1 + devices_.size()) {
  {
    TimedLock lock(&mutex_);
    ledger_.revocations().SetTimes(options.revocation);
    ledger_.swaps().SetTimes(options.swaps);
    ledger_.SetAudit(audit_);
  }
  clock_ = BrokerThread(threads_, [this] { TimerLoop(); });
  ending_ = BrokerThread(threads_, [this] { EndLoop(); });
  moving_ = BrokerThread(threads_, [this] { MoveLoop(); });
  paging_ = BrokerThread(threads_, [this] { PageLoop(); });
  for (size_t lane = 0; lane < 1 + devices_.size(); ++lane) {
    const bool needed = lane == 0 || MakesContextBound(devices_[lane - 1]->info());
    if (needed) disposal_.emplace_back(threads_, [this, lane] { DisposeLoop(lane); });
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    devices_[i]->OnContextLost([this, i] { CollectLost(i); });
  }
}

Broker::~Broker() {
  absl::flat_hash_map<SegmentId, std::unique_ptr<Allocation>> memory;
  {
    TimedLock lock(&mutex_);
    stopping_ = true;
    memory.swap(memory_);
  }
  // Clients keep the memory that they have open: nothing is freed under them. After this no hanging
  // context can block the steps below.
  for (const auto& device : devices_) device->EndContext();
  for (BrokerThread& lane : disposal_) lane.join();
  clock_.join();
  ending_.join();
  moving_.join();
  paging_.join();
  memory.clear();
  devices_.clear();  // no thread calls CollectLost after this
}

// --- Calls -----------------------------------------------------------------------------

absl::StatusOr<SessionId> Broker::FindSession(absl::string_view token) const {
  Secret secret;
  if (token.size() != secret.size()) {
    return absl::UnauthenticatedError(
        token.empty() ? "this call carries no session token; connect to the session socket first"
                      : "this is not a session token");
  }
  std::memcpy(secret.data(), token.data(), secret.size());
  absl::StatusOr<SessionId> session = ledger_.state().FindByToken(secret);
  if (session.ok()) return session;
  return absl::UnauthenticatedError(
      "no live session has this token: the session has ended; connect again");
}

absl::StatusOr<Broker::Call> Broker::Authenticate(absl::string_view token) {
  TimedLock lock(&mutex_);
  absl::StatusOr<SessionId> session = FindSession(token);
  if (!session.ok()) return session.status();
  if (ledger_.state().sessions.at(*session)->presence != Presence::kHere) {
    return absl::UnauthenticatedError(
        "the session began with a previous daemon: its client must resume it first, with a Hello "
        "on the session socket and a Reconcile");
  }
  if (absl::Status begun = ledger_.sessions().BeginCall(*session); !begun.ok()) {
    return Denied(*session, "call", std::move(begun));
  }
  ++calls_;
  return Call(this, *session);
}

BrokerCall::~BrokerCall() {
  if (broker_ == nullptr) return;
  Broker::Update update(broker_);
  if (!watch_) --broker_->calls_;
  broker_->pages_.Touch(session_);
  if (accepts_suspension_) {
    broker_->ledger_.suspension_requests().RemoveWatch(session_, swappable_, demotes_);
  }
  watch_ ? broker_->ledger_.sessions().EndWatch(session_)
         : broker_->ledger_.sessions().EndCall(session_);
}

absl::Status BrokerCall::BecomeWatch(bool accepts_suspension, std::optional<bool> swappable,
                                     bool demotes) {
  Broker::Update update(broker_);
  absl::Status become = broker_->ledger_.sessions().BecomeWatch(session_);
  watch_ = become.ok();
  if (watch_) --broker_->calls_;
  accepts_suspension_ = watch_ && accepts_suspension;
  swappable_ = swappable;
  demotes_ = demotes;
  if (accepts_suspension_) {
    broker_->ledger_.suspension_requests().AddWatch(session_, swappable_, demotes_);
  }
  return broker_->Denied(session_, "watch", std::move(become));
}

// --- Changes ---------------------------------------------------------------------------

void Broker::Record() {
  if (!survivable_) return;
  const std::vector<journal::Change> changes = ledger_.TakeChanges();
  if (changes.empty()) return;
  if (Mutant(Fault::kWritesNotAll) && changes.size() == 5) return;
  const gpumem::trace::Span span("journal");
  Failpoint("record-before");
  continuity_->Write(changes);
  Failpoint("record-after");
}

Broker::Update::~Update() {
  if (std::uncaught_exceptions() > exceptions_) std::abort();
  broker_->Settle();
  const std::vector<std::shared_ptr<WaitingRequest>> resumed = std::exchange(broker_->resumed_, {});
  broker_->mutex_.Unlock();
  for (const auto& request : resumed) {
    if (!Mutant(Fault::kResumesNone)) request->resume();
  }
}

void Broker::Settle() {
  // Segments that were never made are gone at once, which may admit waiters.
  bool moved = true;
  while (std::exchange(moved, false)) {
    for (AdmissionControl::Admitted& admitted :
         ledger_.admission().AdmitWaiting(kGrantsAtOnce, kWaitersCheckedAtOnce)) {
      const std::shared_ptr<Acquisition> waited = acquiring_.Take(admitted.waiter);
      absl::Status refused;
      if (admitted.operation.ok()) {
        waited->operation = *std::move(admitted.operation);
      } else if (!BeginsAnew(*waited, admitted.operation.status())) {
        refused = Denied(waited->session, NameOf(*waited), admitted.operation.status());
      }
      Resume(waited, std::move(refused));
    }
    for (SegmentId id : Drain(ledger_.effects().doomed)) {
      auto it = memory_.find(id);
      if (it == memory_.end()) {
        ledger_.Destroyed(id);
        moved = true;
        continue;
      }
      doomed_[LaneOf(id)].push_back({id, std::move(it->second)});
      memory_.erase(it);
    }
  }
  ResumeCopied();
  ResumeAttaches();
  DropEndedPublications();
  ledger_.swaps().Refresh();
  // The clock's thread goes on with it, after other threads have had the mutex.
  times_changed_ |=
      ledger_.admission().QueueMoves() || ledger_.admission().NextSwap() < watched_swap_;
  for (SessionId id : Drain(ledger_.effects().asked)) {
    if (observer_ != nullptr) observer_->SuspensionRequested(id);
  }
  for (SessionId id : Drain(ledger_.effects().revoked)) {
    times_changed_ = true;
    if (observer_ != nullptr) observer_->Revoked(id);
  }
  for (SessionId id : Drain(ledger_.effects().orphaned)) {
    if (observer_ != nullptr) observer_->SegmentsLost(id);
  }
  for (SessionId id : Drain(ledger_.effects().forgotten)) {
    pools_sent_.erase(id);
    pages_.Forget(id);
    if (observer_ != nullptr) observer_->SessionForgotten(id);
  }
  pages_.Settle(ledger_.state());  // wakes its thread
  Record();
  if (heartbeat_ != nullptr && !std::exchange(changed_, true)) times_changed_ = true;
}

}  // namespace gpumemd
