// SPDX-License-Identifier: Apache-2.0
// Restores an earlier broker's state.
#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/failpoint.h"

namespace gpumemd {

absl::StatusOr<Broker::Restored> Broker::Restore(Inheritance inheritance) {
  std::vector<std::pair<SegmentId, absl::Status>> refused;
  Survivors survivors{.sessions = std::move(inheritance.sessions)};
  Update update(this);
  // Segments in the tier have no descriptor: the tier's device has its file from the start. One
  // without holders was on its way back: another may have its place already. Scratch memory has no
  // place. Segments of kind driver have none either: their memory is of the process that holds
  // them.
  const auto keep = [&](SegmentId id) {
    auto segment = inheritance.image.segments.find(id);
    if (segment == inheritance.image.segments.end()) return;
    const journal::Segment& record = segment->second;
    const bool in_tier = record.kind == Kind::kTier && !record.scratch;
    if (record.made && (in_tier || TraitsOf(record.kind).charge_only))
      inheritance.memory.try_emplace(id);
  };
  for (const auto& [lease, record] : inheritance.image.leases) keep(record.segment);
  for (const auto& [key, exposure] : inheritance.image.exposures) keep(key.second);
  for (const auto& [key, item] : inheritance.image.publication_items) keep(item.segment);
  for (auto& [id, fd] : inheritance.memory) {
    auto record = inheritance.image.segments.find(id);
    if (record == inheritance.image.segments.end()) continue;  // it was never granted
    const journal::Segment& segment = record->second;
    const auto device = std::find_if(devices_.begin(), devices_.end(), [&](const auto& each) {
      return each->info().uuid == segment.device_uuid.view();
    });
    if (device == devices_.end()) continue;  // it is gone
    absl::StatusOr<std::unique_ptr<Allocation>> memory =
        (*device)->Adopt({.kind = segment.kind,
                          .bytes = segment.bytes,
                          .tenant = std::string(segment.tenant.view()),
                          .extents = ExtentsOf(inheritance.image, id)},
                         std::move(fd));
    if (!memory.ok()) {
      refused.emplace_back(id, memory.status());
      continue;
    }
    memory_.emplace(id, *std::move(memory));
    survivors.memory.insert(id);
  }
  for (auto& [id, fd] : inheritance.metadata) {
    auto record = inheritance.image.publications.find(id);
    if (record == inheritance.image.publications.end()) continue;
    metadata_.emplace(
        id, std::make_shared<const Metadata>(std::move(fd), record->second.metadata_bytes));
    survivors.metadata.insert(id);
  }
  for (const auto& [id, record] : inheritance.image.publications) {
    if (record.metadata_bytes > 0) continue;
    metadata_.emplace(id, std::make_shared<const Metadata>(gpumem::UniqueFd(), 0));
  }
  Restored restored{ledger_.Restore(inheritance.image, survivors), std::move(refused)};
  absl::erase_if(memory_, [this](const auto& memory) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return !ledger_.state().segments.contains(memory.first);
  });
  absl::erase_if(metadata_, [this](const auto& metadata) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return !ledger_.look().GetPublication(metadata.first).ok();
  });
  if (continuity_ != nullptr) {
    Failpoint("begin-before");
    if (absl::Status begun = continuity_->Begin(ledger_.Image()); !begun.ok()) return begun;
    Failpoint("begin-after");
    ledger_.KeepChanges();
    survivable_ = true;
  }
  return restored;
}

void Broker::Freeze() {
  // The next daemon may be of an older release, which reads an ending session's leftovers as those
  // of a live one.
  while (true) {
    Update update(this);
    if (ledger_.endings().HasAny()) {
      ledger_.endings().Continue(leases_at_once_);
      continue;
    }
    survivable_ = false;
    frozen_ = true;
    return;
  }
}

absl::StatusOr<Broker::Resumed> Broker::Resume(absl::string_view token, const PeerIdentity& peer,
                                               bool certain) {
  Update update(this);
  absl::StatusOr<SessionId> session = FindSession(token);
  if (!session.ok()) {
    return absl::NotFoundError(
        "this daemon does not know the session, or has ended it: connect for a new one");
  }
  absl::Status resumed = ledger_.sessions().Resume(*session, peer, certain);
  if (!resumed.ok()) return resumed;
  return Resumed{*session, *ledger_.look().TenantOf(*session)};
}

absl::StatusOr<std::vector<LeaseId>> Broker::Reconcile(absl::string_view token,
                                                       absl::Span<const LeaseId> leases,
                                                       absl::Span<const uint64_t> requests) {
  std::optional<Call> call;
  {
    TimedLock lock(&mutex_);
    absl::StatusOr<SessionId> session = FindSession(token);
    if (!session.ok()) return session.status();
    absl::Status few = CheckNamed(*session, leases.size(), requests.size());
    if (!few.ok()) return few;
    if (ledger_.state().sessions.at(*session)->presence == Presence::kAway) {
      return absl::UnauthenticatedError(
          "the session's client must resume it first, with a Hello on the session socket");
    }
    if (absl::Status begun = ledger_.reconciliation().Begin(*session); !begun.ok()) {
      return Denied(*session, "call", std::move(begun));
    }
    // The descriptors that it was sent went with its connection, of which no call is left.
    pools_sent_.erase(*session);
    ++calls_;
    call.emplace(Call(this, *session));
  }
  Reconciliation::Statement statement(leases, requests);
  while (true) {
    Update update(this);
    absl::StatusOr<bool> done =
        ledger_.reconciliation().Reconcile(call->session(), statement, /*steps=*/leases_at_once_);
    if (!done.ok()) return done.status();
    if (*done) return statement.TakeUnknown();
  }
}

}  // namespace gpumemd
