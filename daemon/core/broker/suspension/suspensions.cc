// SPDX-License-Identifier: Apache-2.0
// Moves the contents of suspended segments between their devices and the host tier.
#include "daemon/core/broker/suspension/suspensions.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/suspension/copies.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/failpoint.h"

namespace gpumemd {

absl::StatusOr<Suspensions::Reservation> BrokerSuspensions::Prepare(
    const BrokerCall& call, absl::Span<const LeaseId> leases) {
  absl::StatusOr<Suspensions::Reservation> reserved;
  {
    Broker::Update update(&broker_);
    broker_.ledger_.swaps().Active(call.session());
    reserved = broker_.ledger_.suspensions().Prepare(call.session(), leases);
    if (absl::IsResourceExhausted(reserved.status())) {
      broker_.ledger_.swaps().Refused(call.session());
    }
    if (!reserved.ok()) return broker_.Denied(call.session(), "suspend", reserved.status());
  }
  // While the program stops its work.
  for (const size_t device : reserved->devices) broker_.devices_[device]->PrepareCopies();
  return reserved;
}

void BrokerSuspensions::Cancel(const BrokerCall& call, uint64_t reservation) {
  Broker::Update update(&broker_);
  broker_.ledger_.suspensions().Cancel(call.session(), reservation);
}

absl::StatusOr<BrokerSuspensions::Suspended> BrokerSuspensions::Suspend(
    const BrokerCall& call, absl::Span<const LeaseId> leases, uint64_t reservation) {
  const absl::Time began = broker_.now_();
  Suspensions::Begun begun;
  {
    Broker::Update update(&broker_);
    broker_.ledger_.swaps().Active(call.session());
    auto result = broker_.ledger_.suspensions().Begin(call.session(), leases, reservation);
    if (!result.ok()) return broker_.Denied(call.session(), "suspend", result.status());
    begun = *std::move(result);
  }
  std::vector<SegmentId> left = LeftBy(begun.moves);
  const absl::Status copied = Carry(begun.moves);
  {
    Broker::Update update(&broker_);
    broker_.ledger_.swaps().Suspended(call.session());
    broker_.ledger_.suspensions().Audit(call.session(), leases, begun, copied);
    if (copied.ok()) broker_.suspends_.Observe(broker_.now_() - began);
  }
  if (!copied.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the leases are suspended, and their memory is still on its device: it could "
                     "not be copied to the host tier: ",
                     copied.message()));
  }
  Suspended suspended{.resident_bytes = begun.resident_bytes + AwaitCopies(begun.copying)};
  for (const Move& move : begun.moves) {
    (move.dropped ? suspended.dropped_bytes : suspended.moved_bytes) += move.bytes;
  }
  left.insert(left.end(), begun.copying.begin(), begun.copying.end());
  if (!AwaitFree(left, broker_.now_() + Broker::kDisposalWait)) {
    return absl::DeadlineExceededError(
        "the memory is in the host tier, and the driver has not yet taken that of the device back");
  }
  return suspended;
}

absl::Status BrokerSuspensions::Exchange(const BrokerCall& call,
                                         absl::Span<const Exchanges::Pair> pairs, bool check_only) {
  Broker::Update update(&broker_);
  broker_.ledger_.swaps().Active(call.session());
  return broker_.ledger_.exchanges().Exchange(call.session(), pairs, check_only);
}

void BrokerSuspensions::ReportActivity(const BrokerCall& call) {
  Broker::Update update(&broker_);
  broker_.ledger_.swaps().Reported(call.session());
}

std::optional<SuspensionRequests::Request> BrokerSuspensions::Requested(
    const BrokerCall& call) const {
  TimedLock lock(&broker_.mutex_);
  const SuspensionRequests::Request* const request =
      broker_.ledger_.suspension_requests().Find(call.session());
  if (request == nullptr) return std::nullopt;
  return *request;
}

std::vector<SegmentId> BrokerSuspensions::LeftBy(const std::vector<Move>& moves) {
  std::vector<SegmentId> left;
  for (const Move& move : moves) left.push_back(move.from);
  return left;
}

absl::Status BrokerSuspensions::Carry(std::vector<Move>& moves) {
  absl::Status copied = CopyOut(moves);
  Failpoint("suspend-copied");
  std::vector<Move> moved;
  for (size_t next = 0; next < moves.size();) {
    Broker::Update update(&broker_);
    for (size_t steps = 0; next < moves.size() && steps < broker_.leases_at_once_; ++next) {
      const auto leases = broker_.ledger_.suspensions().Finish(moves[next], copied.ok());
      if (leases) moved.push_back(moves[next]);
      steps += 1 + leases.value_or(0);
    }
  }
  if (copied.ok()) moves = std::move(moved);
  return copied;
}

void BrokerSuspensions::MoveLater() {
  // Stale ones are passed over, a few under each hold of the mutex.
  constexpr size_t kLookedAt = 64;
  std::optional<Move> move;
  {
    Broker::Update update(&broker_);
    move = broker_.ledger_.suspensions().BeginLater(kLookedAt);
    if (!move) return;
    ++broker_.calls_;  // the end of this daemon awaits it
  }
  std::vector<Move> moves = {*move};
  const absl::Status copied = Carry(moves);
  Broker::Update update(&broker_);
  broker_.ledger_.suspensions().AuditLater(*move, copied);
  --broker_.calls_;
}

void Broker::MoveLoop() {
  const auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (!ledger_.state().to_move.empty() && !parks_ && !frozen_);
  };
  while (true) {
    {
      TimedLock lock(&mutex_);
      mutex_.Await(absl::Condition(&wake));
      if (stopping_) return;
    }
    suspensions().MoveLater();
  }
}

absl::Status BrokerSuspensions::CopyOut(const std::vector<Move>& moves) {
  Copies copies(
      [this](size_t device, const std::vector<CopyItem>& items) {
        return broker_.devices_[device]->Copy(items);
      },
      broker_.copy_hold_, broker_.now_);
  for (const Move& move : moves) {
    if (move.dropped) {
      Broker::Update update(&broker_);
      broker_.ledger_.suspensions().Made(move, {});
      continue;
    }
    CreateSpec spec{.kind = Kind::kTier, .bytes = move.bytes};
    Device* tier = nullptr;
    {
      TimedLock lock(&broker_.mutex_);
      const records::Segment& segment = *broker_.ledger_.state().segments.at(move.to);
      spec.tenant = segment.tenant->name;
      tier = broker_.devices_[segment.device].get();
    }
    absl::StatusOr<std::unique_ptr<Allocation>> memory = tier->Create(spec);
    if (!memory.ok()) return memory.status();
    CopyItem item{.to = memory->get(), .bytes = move.bytes};
    {
      Broker::Update update(&broker_);
      // Only a move that no call awaits is under way then.
      if (broker_.stopping_) return absl::CancelledError("the daemon ends");
      item.from = broker_.memory_.at(move.from).get();
      broker_.ledger_.suspensions().Made(move, (*memory)->tier_place()->extents);
      broker_.memory_.emplace(move.to, *std::move(memory));
    }
    copies.Add(move.device, item);
  }
  Failpoint("suspend-made");
  return copies.Finish();
}

bool BrokerSuspensions::AwaitFree(const std::vector<SegmentId>& moved, absl::Time deadline) const {
  TimedLock lock(&broker_.mutex_);
  for (SegmentId id : moved) {
    const auto gone = [this, id]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(broker_.mutex_) {
      const auto& segments = broker_.ledger_.state().segments;
      auto segment = segments.find(id);
      // It stays if its leases ended meanwhile, and the tenant keeps it for its next request.
      return segment == segments.end() ||
             segment->second->charge.state() != SegmentState::kReleasing;
    };
    if (!broker_.mutex_.AwaitWithDeadline(absl::Condition(&gone), deadline)) return false;
  }
  return true;
}

uint64_t BrokerSuspensions::AwaitCopies(const std::vector<SegmentId>& copying) const {
  uint64_t resident = 0;
  TimedLock lock(&broker_.mutex_);
  for (SegmentId id : copying) {
    const auto& segments = broker_.ledger_.state().segments;
    const auto copied = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(broker_.mutex_) {
      auto segment = segments.find(id);
      return segment == segments.end() || !segment->second->copying;
    };
    broker_.mutex_.Await(absl::Condition(&copied));
    auto segment = segments.find(id);
    const bool stays = segment != segments.end() && segment->second->kind != Kind::kTier &&
                       segment->second->charge.state() == SegmentState::kLeased;
    if (stays) resident += segment->second->charge.bytes();
  }
  return resident;
}

absl::Status Broker::CopyBack(const Operation& operation) {
  std::vector<CopyItem> items;
  {
    TimedLock lock(&mutex_);
    for (const Operation::Item& item : operation.items) {
      if (!item.fresh || ledger_.state().segments.at(item.segment)->scratch) continue;
      items.push_back({.from = memory_.at(*item.tier).get(),
                       .to = memory_.at(item.segment).get(),
                       .bytes = ledger_.state().segments.at(item.segment)->charge.bytes()});
    }
  }
  if (items.empty()) return absl::OkStatus();
  Failpoint("resume-made");
  absl::Status copied = devices_[operation.device]->Copy(items);
  Failpoint("resume-copied");
  if (copied.ok()) return copied;
  return absl::UnavailableError(absl::StrCat(
      "the leases stay suspended: their memory could not be copied out of the host tier: ",
      copied.message()));
}

void Broker::ResumeCopied() {
  for (SegmentId segment : Drain(ledger_.effects().copied)) {
    const auto [begin, end] = awaiting_copies_.equal_range(segment);
    for (auto it = begin; it != end; ++it) Resume(it->second, absl::OkStatus());
    awaiting_copies_.erase(begin, end);
  }
}

}  // namespace gpumemd
