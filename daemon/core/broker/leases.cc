// SPDX-License-Identifier: Apache-2.0
// What clients do with leases: open, share and release them; and the events beside them.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/trace/span.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"

namespace gpumemd {

absl::StatusOr<std::vector<LeaseView>> Broker::Open(const Call& call,
                                                    absl::Span<const Secret> tickets,
                                                    bool revocable, uint64_t request_id,
                                                    Deliver deliver) {
  absl::StatusOr<Operation> operation = [&]() -> absl::StatusOr<Operation> {
    Update update(this);
    ledger_.swaps().Active(call.session());
    const auto count = static_cast<uint32_t>(tickets.size());
    if (auto regrant = ledger_.reconciliation().Regrant(call.session(), request_id, count))
      return *regrant;
    auto begun = ledger_.operations().BeginOpen(call.session(), tickets, revocable, request_id);
    if (!begun.ok()) return Denied(call.session(), "open", begun.status());
    return begun;
  }();
  if (!operation.ok()) return operation.status();
  return HandOver(*operation, deliver, /*may_block=*/true).leases;
}

absl::StatusOr<Secret> Broker::Share(const Call& call, LeaseId lease, TicketScope scope,
                                     bool given_away) {
  const Secret candidate = random_();
  Update update(this);
  return ledger_.leases().Share(call.session(), lease, scope, candidate, given_away);
}

absl::Status Broker::CheckNamed(SessionId session, size_t leases, size_t requests) const {
  // A session may have more than the bound, if an earlier daemon's bound was higher.
  const size_t most = std::max(max_leases_per_session_, ledger_.look().LeaseCountOf(session));
  if (leases <= most && requests <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("this request names ", leases, " leases and ", requests,
                   " requests, and the session holds at most ", most, " leases"));
}

absl::Status Broker::Release(const Call& call, absl::Span<const LeaseId> leases,
                             absl::Span<const uint64_t> requests) {
  {
    TimedLock lock(&mutex_);
    absl::Status few = CheckNamed(call.session(), leases.size(), requests.size());
    if (!few.ok()) return few;
  }
  absl::Status released = ReleaseInParts(call.session(), {leases.begin(), leases.end()});
  if (!released.ok()) return released;
  while (!requests.empty()) {
    Update update(this);
    requests.remove_prefix(
        ledger_.reconciliation().DropRegrants(call.session(), requests, leases_at_once_));
  }
  return absl::OkStatus();
}

absl::Status Broker::ReleaseInParts(SessionId session, std::vector<LeaseId> leases) {
  const gpumem::trace::Span span("release");
  std::sort(leases.begin(), leases.end());
  leases.erase(std::unique(leases.begin(), leases.end()), leases.end());
  const bool in_one = leases.size() <= leases_at_once_;
  absl::Span<const LeaseId> unchecked(leases);
  while (!in_one && !unchecked.empty()) {
    const size_t checked_at_once = 4 * leases_at_once_;
    TimedLock lock(&mutex_);
    absl::Status had = ledger_.leases().Check(session, unchecked.subspan(0, checked_at_once));
    if (!had.ok()) return had;
    unchecked.remove_prefix(std::min(unchecked.size(), checked_at_once));
  }
  absl::Span<const LeaseId> left(leases);
  do {
    Update update(this);
    absl::Status released = ledger_.leases().Release(session, left.subspan(0, leases_at_once_));
    if (!released.ok()) return released;
    left.remove_prefix(std::min(left.size(), leases_at_once_));
  } while (!left.empty());
  return absl::OkStatus();
}

absl::StatusOr<IpcEventId> Broker::RegisterEvent(const Call& call, const Events::Place& place,
                                                 absl::string_view device_uuid,
                                                 const ExportData& handle, uint64_t request_id) {
  Update update(this);
  absl::StatusOr<IpcEventId> id =
      ledger_.events().Register(call.session(), place, device_uuid, handle, request_id);
  if (!id.ok()) Denied(call.session(), "register-event", id.status()).IgnoreError();
  return id;
}

absl::StatusOr<std::vector<IpcEventView>> Broker::GetEvents(const Call& call,
                                                            const Events::Place& place) {
  Update update(this);
  return ledger_.events().Find(call.session(), place);
}

absl::StatusOr<bool> Broker::UnregisterEvent(const Call& call, IpcEventId event) {
  Update update(this);
  return ledger_.events().Unregister(call.session(), event);
}

std::vector<LeaseId> Broker::LostLeases(const Call& call) const {
  std::vector<LeaseId> lost;
  for (std::optional<LeaseId> next = LeaseId{}; next.has_value();) {
    TimedLock lock(&mutex_);
    next = ledger_.look().LostLeases(call.session(), *next, kListedAtOnce, lost);
  }
  return lost;
}

Inspector::Revoked Broker::RevokedLeases(const Call& call) const {
  Inspector::Revoked revoked;
  for (std::optional<LeaseId> next = LeaseId{}; next.has_value();) {
    TimedLock lock(&mutex_);
    next = ledger_.look().RevokedLeases(call.session(), *next, kListedAtOnce, revoked);
  }
  return revoked;
}

}  // namespace gpumemd
