// SPDX-License-Identifier: Apache-2.0
// What a simulated client makes of answers, and what must be true of them.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/client.h"

namespace gpumemd::simulation {
namespace {

using gpumem::internal::LeaseBook;
using gpumem::internal::MayStillHold;

constexpr size_t kTicketsKept = 6;
constexpr int kMostAttempts = 4;

std::vector<uint64_t> Numbers(const std::vector<LeaseId>& ids) {
  std::vector<uint64_t> numbers;
  for (LeaseId id : ids) numbers.push_back(ToInt(id));
  return numbers;
}

}  // namespace

void Client::Hear(Random& random) {
  Process& process = *process_;
  Op& op = *process.op;
  const std::shared_ptr<Answer> answer = std::exchange(op.answer, nullptr);
  if (!answer->there) {
    // The connection is lost: with the next one it asks again, or gives up.
    if (process.connection == op.connection) DropConnection();
    process.inbox.clear();
    const bool gives_up = op.kind == CallKind::kConnect || op.kind == CallKind::kPrepare ||
                          op.kind == CallKind::kAskRevoked || ++op.attempts > kMostAttempts ||
                          random.OneIn(4);
    if (!gives_up) return;
    if (op.kind == CallKind::kRelease) process.book.AddPending(std::move(op.pending));
    return End();
  }
  const absl::Status& status = answer->status;
  ++hall_.counts[absl::StrCat(NameOf(op.kind), " ", absl::StatusCodeToString(status.code()))];
  switch (status.code()) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      Violate(absl::StrCat("the answer to ", NameOf(op.kind), " is ", status.ToString()));
      break;
    case absl::StatusCode::kUnauthenticated:
      if (connected() && op.connection == process.connection) {
        Violate(absl::StrCat("its session is gone: ", status.ToString()));
      }
      break;
    default:
      break;
  }
  if (op.kind == CallKind::kConnect) return HearConnected(*answer);
  if (op.kind == CallKind::kRelease) return HearReleased(status);
  if (op.kind == CallKind::kAskRevoked) {
    op.connection->revoked = false;
    process.inbox.clear();
    auto release = std::make_unique<Op>();
    release->kind = CallKind::kRelease;
    for (LeaseId id : answer->ids) {
      if (process.held.erase(id) > 0) release->leases.push_back(id);
    }
    release->pending = process.book.GiveUp(Numbers(release->leases));
    process.op = std::move(release);
    if (process.op->pending.empty()) End();
    return;  // it is sent in its next turn
  }
  if (!status.ok()) {
    if (op.kind == CallKind::kOpen && absl::IsNotFound(status)) {
      std::erase_if(hall_.tickets,
                    [&](const Hall::Ticket& each) { return each.secret == op.ticket.secret; });
    }
    if (op.kind == CallKind::kSuspend && !absl::IsUnavailable(status)) {
      for (LeaseId id : op.leases) {
        const auto held = process.held.find(id);  // it may have been lost meanwhile
        if (held != process.held.end()) held->second.state = Held::State::kUnmapped;
      }
    }
    return End();
  }
  switch (op.kind) {
    case CallKind::kShare:
      hall_.tickets.push_back({answer->secret, tenant_, op.scope});
      if (hall_.tickets.size() > kTicketsKept) hall_.tickets.pop_front();
      break;
    case CallKind::kPublish: {
      std::vector<uint64_t> contents;
      for (LeaseId id : op.leases) {
        const auto held = process.held.find(id);
        contents.push_back(held == process.held.end() ? 0 : held->second.contents);
      }
      hall_.published[{tenant_, op.publish.name, answer->version}] = std::move(contents);
      process.book.Published(process.book.ClaimsOn({op.publish.name, op.publish.content_id}));
      break;
    }
    case CallKind::kAcquire:
    case CallKind::kOpen:
    case CallKind::kAttach:
    case CallKind::kResume:
      HearLeases(*answer);
      break;
    default:
      break;
  }
  End();
}

void Client::HearConnected(const Answer& answer) {
  Process& process = *process_;
  const Op& op = *process.op;
  if (!answer.status.ok()) {
    const bool over = process.session != SessionId{} && absl::IsNotFound(answer.status);
    DropConnection();
    End();
    // A client whose session is over ends: it would have to connect for a new one.
    if (over && process.over) {
      ++hall_.counts["session ended, as its client did not read"];
      surroundings_.to_end.emplace_back(pid(), true);
    } else if (over) {
      Violate(absl::StrCat("the daemon does not know its session: ", answer.status.ToString()));
    }
    return;
  }
  if (process.session == SessionId{}) {
    process.session = answer.connection->session;
    process.token = answer.secret;
  }
  process.connection = answer.connection;
  if (op.number != 0) {
    process.book.Lost(Numbers(answer.ids));
    process.connection->statement = op.number;
    for (LeaseId id : answer.ids) {
      if (!process.held.contains(id)) continue;
      if (!hall_.loses_memory) Violate(absl::StrCat("lease ", ToInt(id), " was lost"));
      process.held.erase(id);
    }
  }
  End();
}

void Client::HearLeases(const Answer& answer) {
  Process& process = *process_;
  Op& op = *process.op;
  if (answer.claimed) {
    op.booked->Claimed({op.attach.name, op.attach.content_id});
    return;
  }
  if (op.kind == CallKind::kAcquire && answer.leases.size() != op.acquire.count) {
    Violate(absl::StrCat("it asked for ", op.acquire.count, " segments and got ",
                         answer.leases.size()));
  }
  if (op.kind == CallKind::kOpen && op.ticket.scope == TicketScope::kTenant &&
      answer.leases.front().tenant != tenant_) {
    Violate("it opened a ticket that is for another tenant");
  }
  std::vector<LeaseId> ids;
  for (const LeaseView& lease : answer.leases) ids.push_back(lease.lease);
  if (op.booked != nullptr) op.booked->Granted(Numbers(ids));
  // Its Delivery came before the answer.
  while (op.connection == process.connection && CanRead()) Read();
  for (const LeaseView& lease : answer.leases) Map(lease.lease, lease);
  if (op.kind != CallKind::kAttach) return;
  const std::string name = op.attach.name.substr(op.attach.name.find('/') + 1);
  const auto published = hall_.published.find({answer.tenant, name, answer.version});
  if (published == hall_.published.end()) return;  // its publisher did not hear the answer
  for (size_t i = 0; i < ids.size(); ++i) {
    const Held& held = process.held.at(ids[i]);
    if (i >= published->second.size()) {
      return Violate(absl::StrCat(answer.tenant, "/", name, " has more segments"));
    }
    const uint64_t contents = published->second[i];
    if (held.memory != nullptr && contents != 0 && held.contents != contents) {
      Violate(absl::StrCat("a segment of ", answer.tenant, "/", name, " has other contents"));
    }
  }
}

void Client::Map(LeaseId id, const LeaseView& lease) {
  Process& process = *process_;
  Op& op = *process.op;
  const auto item = process.inbox.find(id);
  Held& held = process.held[id];
  if (item == process.inbox.end()) {
    // If its connection was lost after the answer, so was the message.
    if (op.connection == process.connection && connected()) {
      Violate(absl::StrCat("the memory of lease ", ToInt(id), " did not come"));
    }
    held = {
        .segment = lease.segment, .revocable = lease.revocable, .state = Held::State::kUnmapped};
    return;
  }
  MemoryPtr memory = std::move(item->second.memory);
  if (item->second.lease.segment != lease.segment || memory->bytes < lease.bytes) {
    return Violate(absl::StrCat("lease ", ToInt(id), " came with memory of another"));
  }
  const Held before = held;
  held = {.segment = lease.segment,
          .memory = memory,
          .revocable = lease.revocable,
          .scratch = lease.scratch};
  if (op.kind == CallKind::kAcquire) {
    if (op.acquire.bytes > lease.bytes || lease.tenant != tenant_) {
      Violate(absl::StrCat("lease ", ToInt(id), " is too small, or another tenant's"));
    }
    if (memory->shown) {
      Violate(absl::StrCat("another tenant has had the memory of lease ", ToInt(id)));
    }
    if (hall_.mapped_by_others(memory.get(), pid()) > 0) {
      Violate(absl::StrCat("the memory of lease ", ToInt(id), " is mapped by another process"));
    }
    const bool foreign = !memory->tenant.empty() && memory->tenant != tenant_;
    if (foreign || (memory->contents != 0 && !lease.reused && op.attempts == 0)) {
      Violate(absl::StrCat("lease ", ToInt(id), " has contents of another"));
    }
    memory->tenant = tenant_;
    memory->contents = ++hall_.last_stamp;
    held.own = true;
  } else if (op.kind == CallKind::kResume) {
    held.own = before.own;
    if (before.contents != 0 && !lease.scratch && memory->contents != before.contents) {
      Violate(absl::StrCat("lease ", ToInt(id), " has resumed with other contents"));
    }
    memory->tenant = tenant_;
    if (lease.scratch && before.own) memory->contents = ++hall_.last_stamp;
  }
  memory->shown |= lease.tenant != tenant_;
  held.contents = memory->contents;
}

void Client::HearReleased(const absl::Status& status) {
  Process& process = *process_;
  LeaseBook::PendingRelease pending = std::move(process.op->pending);
  End();
  if (status.ok()) return;
  if (MayStillHold(status)) return process.book.AddPending(std::move(pending));
  // With the session all has ended. Leases of an earlier daemon are asked for one by one.
  if (absl::IsNotFound(status)) Violate(absl::StrCat("a lease is unknown: ", status.ToString()));
}

}  // namespace gpumemd::simulation
