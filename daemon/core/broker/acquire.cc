// SPDX-License-Identifier: Apache-2.0
// An Acquire from its beginning to its answer, in this order: Advance, Reserve, Carry, Create,
// HandOver, Taken. It may wait for its turn, for minutes if the request allows it; no thread waits
// with it. Open and Attach begin and hand over in the same way.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/trace/span.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/denial.h"
#include "daemon/core/failpoint.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

namespace trace = gpumem::trace;

namespace {

// Bounds the attempts: two requests that each get half of the driver's memory would retry forever.
constexpr int kDriverAttempts = 4;
// How long requests wait because of one refusal of the driver before one of them asks it again.
constexpr absl::Duration kElsewhereHolds = absl::Seconds(1);

}  // namespace

Broker::Progress Broker::Advance(const std::shared_ptr<Acquisition>& acquisition, bool may_block) {
  using State = Progress::State;
  Acquisition& it = *acquisition;
  while (true) {
    absl::StatusOr<bool> reserved = Reserve(acquisition);
    if (!reserved.ok()) return {State::kAnswered, reserved.status()};
    if (!*reserved) return {State::kWaits, absl::UnavailableError("it waits")};
    const bool makes = std::any_of(it.operation->items.begin(), it.operation->items.end(),
                                   [](const auto& item) { return item.fresh; });
    if (!may_block) {
      if (makes) return {State::kNeedsAThread, absl::UnavailableError("memory has to be made")};
      const Operation operation = *std::exchange(it.operation, std::nullopt);
      HandedOver handed = HandOver(
          operation, [&](const Handover& handover) { return it.deliver(handover, false); },
          may_block);
      // What was lost must be made again.
      if (handed.outcome == HandedOver::Outcome::kWouldBlock ||
          handed.outcome == HandedOver::Outcome::kLost) {
        return {State::kNeedsAThread, handed.leases.status()};
      }
      return {State::kAnswered, Taken(it, std::move(handed.leases))};
    }
    if (std::optional<absl::StatusOr<std::vector<LeaseView>>> leases = Carry(it))
      return {State::kAnswered, Taken(it, *std::move(leases))};
  }
}

absl::StatusOr<bool> Broker::Reserve(const std::shared_ptr<Acquisition>& acquisition) {
  const trace::Span span("admission");
  Acquisition& it = *acquisition;
  if (it.begun == absl::InfinitePast()) it.begun = now_();
  Update update(this);
  ledger_.swaps().Active(it.session);  // also once it is granted: the wait may have been long
  if (it.operation) return true;
  if (absl::StatusOr<bool> may = MayBegin(it); !may.ok() || !*may) return may;
  it.operation = ledger_.reconciliation().Regrant(it.session, it.spec.request_id, it.spec.count);
  if (it.operation) return true;
  absl::StatusOr<Admission> admission = ledger_.admission().BeginAcquire(it.session, it.spec);
  if (!admission.ok() && BeginsAnew(it, admission.status())) {
    if (const auto segment = ledger_.suspensions().CopyingOf(it.spec); segment) {
      awaiting_copies_.emplace(*segment, acquisition);
      return false;
    }
  }
  if (!admission.ok()) return Denied(it, admission.status());
  it.operation = std::move(admission->operation);
  if (it.operation) return true;
  it.waiter = admission->waiter;
  it.waited = true;
  it.give_up = it.spec.waits ? it.wait_until : it.release_deadline;
  it.press_again = now_();
  acquiring_.Add(*it.waiter, acquisition, it.Due());
  times_changed_ = true;
  return false;  // it may be resumed at once
}

bool Broker::BeginsAnew(const Acquisition& it, const absl::Status& refused) const {
  return it.spec.BringsBack() && absl::IsUnavailable(refused) &&
         !ledger_.state().RefusesAcquire(!it.spec.resumes.empty());
}

absl::StatusOr<bool> Broker::MayBegin(WaitingRequest& it) {
  if (!it.refused.ok()) return std::exchange(it.refused, absl::OkStatus());
  if (it.given_up) return GivenUp();
  if (parks_) {
    it.parked = true;
    ++parked_;
  }
  return !parks_;
}

std::optional<absl::StatusOr<std::vector<LeaseView>>> Broker::Carry(Acquisition& it) {
  const Operation operation = *std::exchange(it.operation, std::nullopt);
  bool refused = false;
  absl::Status created = Create(operation, &refused);
  if (created.ok() && operation.resumes) {
    created = CopyBack(operation);
    refused = !created.ok();
  }
  if (created.ok()) {
    HandedOver handed = HandOver(
        operation, [&](const Handover& handover) { return it.deliver(handover, true); },
        /*may_block=*/true);
    if (handed.outcome != HandedOver::Outcome::kLost) return std::move(handed.leases);
    created = absl::UnavailableError(handed.leases.status().message());
  } else if (absl::IsUnavailable(created)) {
    Abort(operation, /*handed_over=*/false);
  }
  // The context ended meanwhile: the next attempt gets another.
  if (absl::IsUnavailable(created)) {
    if (it.attempt++ == kDriverAttempts) return created;
    return std::nullopt;
  }

  const size_t device = operation.device;
  uint64_t asked = 0;
  bool more = false;
  bool in_context = false;
  {
    Update update(this);
    for (const Operation::Item& item : operation.items) {
      const LeaseView lease = ledger_.look().Describe(item);
      asked += lease.bytes;
      in_context |= TraitsOf(lease.kind).context_bound;
    }
    ledger_.operations().Abort(operation, /*handed_over=*/false);
  }
  if (!absl::IsResourceExhausted(created) || refused) return created;
  // The ledger had room, but the driver has none: others allocate past the broker, or the driver is
  // still clearing memory. Give up retained memory, and retry once the driver has all memory that
  // is on its way.
  {
    Update update(this);
    more = ledger_.operations().MakeRoomOnDevice(it.session, device, asked);
  }
  if (more && it.attempt++ != kDriverAttempts) {
    auto given_back = [this, device]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return ledger_.state().releasing(device) == 0;
    };
    TimedLock lock(&mutex_);
    if (mutex_.AwaitWithDeadline(absl::Condition(&given_back), it.release_deadline)) {
      return std::nullopt;
    }
  }
  Update update(this);
  // A context takes memory, too. A refusal there says little about what others can have.
  if (!it.spec.waits || it.wait_until <= now_() || in_context) {
    return Denied(it,
                  ledger_.operations().DriverDenial(it.session, device, asked, created.message()));
  }
  // It waits for memory of others, as it would if the ledger had known.
  ledger_.operations().NoteElsewhere(device, asked);
  ask_driver_again_ = now_() + kElsewhereHolds;
  times_changed_ = true;
  it.attempt = 1;
  return std::nullopt;
}

// Makes the fresh segments of an operation. Those made before a failure stay in memory_ for the
// caller's Abort.
absl::Status Broker::Create(const Operation& operation, bool* refused) {
  *refused = false;
  for (const Operation::Item& item : operation.items) {
    if (!item.fresh) continue;
    CreateSpec spec;
    {
      TimedLock lock(&mutex_);
      spec = ledger_.operations().Creation(operation, item);
    }
    trace::Span create("create", spec.bytes);
    absl::StatusOr<std::unique_ptr<Allocation>> memory = devices_[operation.device]->Create(spec);
    create.End();
    if (!memory.ok()) return memory.status();
    if (continuity_ != nullptr && (*memory)->fd() >= 0 && !Mutant(Fault::kStoreGetsNothing)) {
      const trace::Span keep("keep");
      Failpoint("keep-before");
      absl::Status kept = continuity_->Keep(item.segment, (*memory)->fd());
      Failpoint("keep-after");
      if (!kept.ok()) {
        *refused = true;
        return kept;
      }
    }
    const trace::Span enter("enter");
    Update update(this);
    memory_.emplace(item.segment, *std::move(memory));
    ledger_.operations().Created(item.segment);
  }
  return absl::OkStatus();
}

Broker::HandedOver Broker::HandOver(const Operation& operation, Deliver deliver, bool may_block) {
  using Outcome = HandedOver::Outcome;
  Handover handover;
  absl::Cleanup rollback = [&] { Abort(operation, handover.partly_sent); };
  absl::flat_hash_map<uint64_t, size_t> pools;
  const bool delivers = !(operation.resumes && operation.publication);
  for (size_t begin = 0; delivers && begin < operation.items.size(); begin += leases_at_once_) {
    const trace::Span describe("describe");
    Update update(this);  // journals that its process may map them
    absl::Status there = Describe(operation, begin, handover, pools);
    if (!there.ok()) return {Outcome::kLost, there};
  }
  if (delivers) {
    Failpoint("deliver-before");
    const trace::Span span("deliver");
    if (absl::Status sent = deliver(handover); !sent.ok() && !Mutant(Fault::kSendFailureCommits)) {
      const bool would_block = !may_block && absl::IsDeadlineExceeded(sent);
      return {would_block ? Outcome::kWouldBlock : Outcome::kFailed, sent};
    }
    Failpoint("deliver-after");
  }
  std::move(rollback).Cancel();
  std::vector<LeaseView> leases;
  for (Handover::Item& item : handover.items) leases.push_back(std::move(item.lease));
  size_t next = 0;
  for (bool done = false; !done;) {
    const trace::Span commit("commit");
    Update update(this);
    if (next == 0) {
      for (const auto& [pool, device] : pools) pools_sent_[operation.session][device] = pool;
    }
    absl::StatusOr<bool> committed = ledger_.operations().Commit(operation, next, leases_at_once_);
    if (!committed.ok()) return {Outcome::kFailed, committed.status()};
    done = *committed;
  }
  return {Outcome::kDone, std::move(leases)};
}

absl::Status Broker::Describe(const Operation& operation, size_t begin, Handover& handover,
                              absl::flat_hash_map<uint64_t, size_t>& pools) {
  const auto sent = pools_sent_.find(operation.session);
  const size_t end = std::min(begin + leases_at_once_, operation.items.size());
  for (size_t i = begin; i < end; ++i) {
    const Operation::Item& item = operation.items[i];
    const Allocation& memory = *memory_.at(item.segment);
    LeaseView lease = ledger_.look().Describe(item);
    lease.revocable = operation.revocable;
    const std::optional<ExportedPool> pool = memory.pool();
    // The session learns of later losses once it has its lease.
    if (memory.lost() || (TraitsOf(lease.kind).pooled && !pool)) {
      ledger_.segments().MarkLost({item.segment});
      return absl::FailedPreconditionError("the segment is lost: its CUDA context ended");
    }
    lease.export_data = memory.export_data();
    if (pool) {
      lease.pool_id = pool->id;
      const size_t device = ledger_.state().PlaceOf(item.segment).device;
      const bool has_it = sent != pools_sent_.end() && sent->second.contains(device) &&
                          sent->second.at(device) == pool->id;
      if (!has_it && pools.emplace(pool->id, device).second) handover.pools.push_back(*pool);
    }
    handover.items.push_back({std::move(lease), memory.fd()});
  }
  return absl::OkStatus();
}

void Broker::Abort(const Operation& operation, bool handed_over) {
  size_t next = 0;
  for (bool done = false; !done;) {
    Update update(this);
    done = ledger_.operations().Abort(operation, handed_over, next, leases_at_once_);
  }
}

absl::StatusOr<std::vector<LeaseView>> Broker::Taken(
    Acquisition& it, absl::StatusOr<std::vector<LeaseView>> leases) {
  if (!leases.ok()) return leases;
  CountGrant(it, *leases);
  // The session had them before: a client that has given up still has their contents.
  if (it.spec.BringsBack()) return leases;
  if (absl::Status kept = Keep(it, *leases); !kept.ok()) return kept;
  return leases;
}

absl::Status Broker::Keep(WaitingRequest& it, const std::vector<LeaseView>& leases) {
  {
    TimedLock lock(&mutex_);
    if (!it.given_up) return absl::OkStatus();
  }
  std::vector<LeaseId> ids;
  for (const LeaseView& lease : leases) ids.push_back(lease.lease);
  // Or they have ended with their session.
  ReleaseInParts(it.session, std::move(ids)).IgnoreError();
  return GivenUp();
}

void Broker::CountGrant(const Acquisition& acquisition, const std::vector<LeaseView>& leases) {
  const bool resumes = acquisition.spec.BringsBack();
  if (leases.empty() && !resumes) return;
  const size_t waited = acquisition.waited ? 1 : 0;
  LatencyHistogram& histogram =
      resumes ? resumes_[waited] : acquires_[IndexOf(leases.front().kind)][waited];
  histogram.Observe(now_() - acquisition.begun);
}

absl::StatusOr<std::vector<LeaseView>> Broker::Acquire(const Call& call, const AcquireSpec& spec,
                                                       absl::Time deadline, Deliver deliver) {
  bool resumed = false;  // under mutex_
  auto acquisition = std::make_shared<Acquisition>();
  acquisition->session = call.session();
  acquisition->spec = spec;
  acquisition->wait_until = acquisition->release_deadline = deadline;
  acquisition->deliver = [&](const Handover& handover, bool) { return deliver(handover); };
  acquisition->resume = [&] {
    TimedLock lock(&mutex_);
    resumed = true;
  };
  while (true) {
    Progress progress = Advance(acquisition, /*may_block=*/true);
    if (progress.state == Progress::State::kAnswered) return std::move(progress.leases);
    TimedLock lock(&mutex_);
    mutex_.Await(absl::Condition(&resumed));
    resumed = false;
  }
}

}  // namespace gpumemd
