// SPDX-License-Identifier: Apache-2.0
// An operator suspends a publication that no session uses, or resumes it.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/core/broker/suspensions.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/denial.h"

namespace gpumemd {
namespace {

// How often a wait for room looks again.
constexpr absl::Duration kLook = absl::Milliseconds(200);

}  // namespace

absl::StatusOr<PublicationId> BrokerSuspensions::Find(absl::string_view name,
                                                      PublicationMoved& moved) const {
  absl::StatusOr<Publications::Name> parsed = Publications::ParseName(name, "");
  if (!parsed.ok()) return parsed.status();
  const LedgerState& state = broker_.ledger_.state();
  auto found = state.by_name.find(*parsed);
  if (found == state.by_name.end()) return NoSuchPublication(parsed->first, parsed->second);
  moved.tenant = parsed->first;
  moved.version = state.publications.at(found->second).version;
  return found->second;
}

absl::StatusOr<BrokerSuspensions::PublicationMoved> BrokerSuspensions::SuspendPublication(
    absl::string_view name) {
  PublicationMoved moved;
  std::vector<Move> moves;
  {
    Broker::Update update(&broker_);
    absl::StatusOr<PublicationId> id = Find(name, moved);
    if (!id.ok()) return id.status();
    auto begun = broker_.ledger_.suspensions().BeginPublication(*id);
    if (!begun.ok()) return begun.status();
    moves = *std::move(begun);
  }
  if (absl::Status copied = Carry(moves); !copied.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the publication stays as it was: its memory could not be copied to the host "
                     "tier: ",
                     copied.message()));
  }
  std::vector<SegmentId> left;
  for (const Move& move : moves) {
    moved.bytes += move.bytes;
    ++moved.segments;
    left.push_back(move.from);
  }
  if (!AwaitFree(left, absl::Now() + Broker::kDisposalWait)) {
    return absl::DeadlineExceededError(
        "the memory is in the host tier, and the driver has not yet taken that of the device back");
  }
  return moved;
}

absl::StatusOr<BrokerSuspensions::PublicationMoved> BrokerSuspensions::ResumePublication(
    absl::string_view name, absl::Time deadline, absl::FunctionRef<bool()> cancelled) {
  PublicationMoved moved;
  std::optional<PublicationId> id;
  while (true) {
    absl::StatusOr<Operation> operation;
    {
      Broker::Update update(&broker_);
      if (!id) {
        absl::StatusOr<PublicationId> found = Find(name, moved);
        if (!found.ok()) return found.status();
        id = *found;
      }
      operation = broker_.ledger_.admission().BeginResume(*id);
    }
    if (operation.ok()) {
      absl::StatusOr<uint64_t> bytes = BringBack(*operation);
      if (!bytes.ok()) return bytes.status();
      if (*bytes == 0) return moved;
      moved.bytes += *bytes;
      moved.segments += operation->items.size();
      continue;
    }
    TimedLock lock(&broker_.mutex_);
    const bool may_come =
        DenialOf(operation.status()).has_value() ||
        (absl::IsUnavailable(operation.status()) && !broker_.ledger_.state().draining);
    if (!may_come || absl::Now() >= deadline) return operation.status();
    if (cancelled()) return absl::CancelledError("the operator does not wait any more");
    broker_.mutex_.AwaitWithDeadline(absl::Condition(&broker_.stopping_),
                                     std::min(deadline, absl::Now() + kLook));
  }
}

absl::StatusOr<uint64_t> BrokerSuspensions::BringBack(const Operation& operation) {
  bool refused = false;
  absl::Status made = broker_.Create(operation, &refused);
  if (made.ok()) made = broker_.CopyBack(operation);
  if (!made.ok()) {
    broker_.Abort(operation, /*handed_over=*/false);
    return made;
  }
  uint64_t bytes = 0;
  {
    TimedLock lock(&broker_.mutex_);
    for (const Operation::Item& item : operation.items) {
      bytes += broker_.ledger_.state().segments.at(item.segment)->charge.bytes();
    }
  }
  const auto none = [](const Handover&) { return absl::OkStatus(); };
  Broker::HandedOver handed = broker_.HandOver(operation, none, /*may_block=*/true);
  if (!handed.leases.ok()) return handed.leases.status();
  return bytes;
}

}  // namespace gpumemd
