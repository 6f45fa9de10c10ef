// SPDX-License-Identifier: Apache-2.0
// What a simulated client decides, and what it makes of answers. client_calls.cc sends its calls.
#include "tests/simulation/client.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumemd::simulation {
namespace {

using gpumem::internal::LeaseBook;

constexpr size_t kTicketsKept = 6;
constexpr int kMostAttempts = 4;

std::vector<uint64_t> Numbers(const std::vector<LeaseId>& ids) {
  std::vector<uint64_t> numbers;
  for (LeaseId id : ids) numbers.push_back(ToInt(id));
  return numbers;
}

// True if leases may still be held after a release with that status.
bool MayStillHold(const absl::Status& release) {
  return absl::IsDeadlineExceeded(release) || absl::IsResourceExhausted(release) ||
         absl::IsUnavailable(release);
}

}  // namespace

const char* Client::NameOf(Op::Kind kind) {
  static constexpr std::array<const char*, 12> kNames = {
      "connect", "acquire", "open",      "attach",  "resume",  "share",
      "release", "publish", "unpublish", "prepare", "suspend", "ask-revoked"};
  return kNames[static_cast<size_t>(kind)];
}

const std::map<LeaseId, Client::Held>& Client::held() const {
  static const auto* const none = new std::map<LeaseId, Held>();
  return process_ == nullptr ? *none : process_->held;
}

bool Client::connected() const {
  return process_ != nullptr && process_->connection != nullptr && !process_->connection->cut;
}

bool Client::CanHear() const {
  return busy() && process_->op->answer != nullptr &&
         (process_->op->answer->there || process_->op->connection->cut);
}

bool Client::CanRead() const {
  return process_ != nullptr && process_->connection != nullptr &&
         !process_->connection->socket.empty();
}

void Client::Begin(uid_t uid) {
  process_ = std::make_unique<Process>();
  PeerIdentity& peer = process_->details.peer;
  peer.pid = ++hall_.last_pid;
  peer.start_time = static_cast<uint64_t>(peer.pid);
  peer.uid = uid;
  process_->details.connect_id = static_cast<uint32_t>(peer.pid);
  process_->details.client_name = "simulated";
}

void Client::Die() {
  if (process_ == nullptr) return;
  if (busy() && process_->op->connection != nullptr) process_->op->connection->cut = true;
  DropConnection();
  process_.reset();
}

void Client::DropConnection() {
  if (process_->connection == nullptr) return;
  // Only the daemon's end of a session's socket ends the session: a lost connection is another's.
  process_->connection->cut = true;
  process_->connection->socket.clear();
  process_->connection.reset();
}

void Client::LoseConnection() {
  if (process_ != nullptr) DropConnection();
}

void Client::Read() {
  std::deque<Message>& socket = process_->connection->socket;
  for (Message::Item& item : socket.front().items) {
    process_->inbox[item.lease.lease] = std::move(item);
  }
  socket.pop_front();
}

void Client::Violate(const std::string& what) const {
  hall_.Violate(absl::StrCat("client ", pid(), " of tenant ", tenant_, ": ", what));
}

std::vector<uint64_t> Client::BookedLeases() const {
  std::vector<uint64_t> leases;
  for (const auto& [id, held] : held()) leases.push_back(ToInt(id));
  return leases;
}

std::string Client::Describe() const {
  if (process_ == nullptr) return "no process";
  const Op* const op = process_->op.get();
  const char* const call = op == nullptr           ? "no call"
                           : op->answer == nullptr ? "a call to be sent"
                           : op->answer->there     ? "an answer"
                           : op->connection->cut   ? "a lost call"
                                                   : "a call";
  return absl::StrCat("process ", pid(), connected() ? ", connected" : ", not connected",
                      ", session ", ToInt(session()), ", ", call,
                      op == nullptr ? "" : absl::StrCat(" to ", NameOf(op->kind)), ", ",
                      held().size(), " leases");
}

void Client::Verify() const {
  for (const auto& [id, held] : held()) {
    if (held.state == Held::State::kMapped && held.memory->contents != held.contents) {
      Violate(absl::StrCat("the contents of lease ", ToInt(id), " have changed"));
    }
  }
}

void Client::End() {
  process_->op = std::exchange(process_->again, nullptr);
  process_->inbox.clear();
}

void Client::Act(Daemon* daemon, Random& random, bool calm) {
  if (daemon == nullptr || !daemon->accepts()) return;
  Process& process = *process_;
  if (process.op != nullptr) {
    if (CanHear()) return Hear(random);
    if (process.op->answer != nullptr) return;  // it waits
    if (connected()) return Send(*daemon);      // once more
    process.again = std::move(process.op);
  }
  if (!connected()) return Connect(*daemon);
  // The memory of an earlier daemon must still be told of.
  std::vector<LeaseBook::PendingRelease> due =
      process.book.TakePending(process.connection->statement);
  if (!due.empty()) {
    for (size_t i = 1; i < due.size(); ++i) process.book.AddPending(std::move(due[i]));
    process.op = std::make_unique<Op>();
    process.op->kind = Op::Kind::kRelease;
    process.op->pending = std::move(due.front());
    return Send(*daemon);
  }
  if (!calm) Begin(*daemon, random);
}

void Client::Begin(Daemon& daemon, Random& random) {
  process_->op = Choose(random);
  if (process_->op != nullptr) Send(daemon);
}

std::vector<LeaseId> Client::Pick(Random& random, size_t most,
                                  const std::function<bool(const Held&)>& which) const {
  std::vector<LeaseId> all;
  for (const auto& [id, held] : process_->held) {
    if (which(held)) all.push_back(id);
  }
  std::vector<LeaseId> picked;
  for (size_t i = 1 + random.Below(most); i > 0 && !all.empty(); --i) {
    const size_t at = random.Below(all.size());
    picked.push_back(all[at]);
    all.erase(all.begin() + static_cast<ptrdiff_t>(at));
  }
  return picked;
}

std::unique_ptr<Client::Op> Client::Choose(Random& random) {
  Process& process = *process_;
  auto op = std::make_unique<Op>();
  using State = Held::State;
  const auto waits = [&] {
    if (random.OneIn(2)) op->wait = absl::Milliseconds(100 + random.Below(5000));
  };
  const auto name = [&] { return absl::StrCat("w", random.Below(2)); };
  if (process.connection->revoked && random.OneIn(2)) {
    op->kind = Op::Kind::kAskRevoked;
    return op;
  }
  switch (random.Below(16)) {
    case 0:
    case 1:
    case 2:
    case 3: {
      op->kind = Op::Kind::kAcquire;
      waits();
      op->acquire = {.device_uuid = random.OneIn(2)
                                        ? ""
                                        : absl::StrCat("GPU-", random.Below(surroundings_.gpus)),
                     .bytes = kGranule * (random.OneIn(3) ? 1 + random.Below(3) : 1),
                     .count = static_cast<uint32_t>(random.OneIn(4) ? 1 + random.Below(4) : 1),
                     .most_free = false,
                     .without_pressure = random.OneIn(4),
                     .revocable = revocable(),
                     .waits = op->wait > absl::ZeroDuration(),
                     .scratch = random.OneIn(8)};
      op->booked = std::make_unique<LeaseBook::Request>(&process.book);
      op->acquire.request_id = op->booked->id();
      return op;
    }
    case 4: {
      if (hall_.tickets.empty()) return nullptr;
      op->kind = Op::Kind::kOpen;
      op->ticket = hall_.tickets[random.Below(hall_.tickets.size())];
      op->booked = std::make_unique<LeaseBook::Request>(&process.book);
      return op;
    }
    case 5:
    case 6: {
      op->kind = Op::Kind::kAttach;
      waits();
      op->attach = {.name = random.OneIn(3) ? absl::StrCat("a/", name()) : name(),
                    .version = random.OneIn(3) ? random.Below(6) : 0,
                    .revocable = revocable(),
                    .waits = op->wait > absl::ZeroDuration()};
      if (random.OneIn(3)) {
        op->attach.version = 0;
        op->attach.claims = true;
        op->attach.content_id = absl::StrCat("c", random.Below(2));
      }
      op->booked = std::make_unique<LeaseBook::Request>(&process.book);
      op->attach.request_id = op->booked->id();
      return op;
    }
    case 7:
    case 8: {
      op->leases = Pick(random, 3, [](const Held& held) {
        return held.state != State::kMapped && !held.revocable;
      });
      if (op->leases.empty()) return nullptr;
      op->kind = Op::Kind::kResume;
      waits();
      op->acquire = {.waits = op->wait > absl::ZeroDuration(), .resumes = op->leases};
      return op;
    }
    case 9: {
      op->leases = Pick(random, 1, [](const Held& held) { return held.state == State::kMapped; });
      if (op->leases.empty()) return nullptr;
      op->kind = Op::Kind::kShare;
      op->scope = random.OneIn(3) ? TicketScope::kAny : TicketScope::kTenant;
      return op;
    }
    case 10:
    case 11:
    case 12: {
      op->leases = Pick(random, 4, [](const Held&) { return true; });
      if (op->leases.empty()) return nullptr;
      op->kind = Op::Kind::kRelease;
      for (LeaseId id : op->leases) process.held.erase(id);  // unmapped first
      op->pending = process.book.GiveUp(Numbers(op->leases));
      return op->pending.empty() ? nullptr : std::move(op);
    }
    case 13: {
      op->leases = Pick(random, 3, [](const Held& held) {
        return held.own && held.state == State::kMapped && !held.revocable && !held.scratch;
      });
      if (op->leases.empty()) return nullptr;
      op->kind = Op::Kind::kPublish;
      op->publish = {.name = name(),
                     .content_id = random.OneIn(2) ? absl::StrCat("c", random.Below(2)) : "",
                     .leases = op->leases,
                     .to_any = random.OneIn(2),
                     .ephemeral = random.OneIn(3)};
      if (random.OneIn(3)) op->publish.expire_after = absl::Seconds(1 + random.Below(20));
      if (random.OneIn(8)) op->metadata = "metadata";
      op->publish.request = (uint64_t{1} << 32) + ++process.last_request;
      return op;
    }
    case 14: {
      op->kind = Op::Kind::kUnpublish;
      op->attach.name = name();
      op->number = (uint64_t{1} << 32) + ++process.last_request;
      return op;
    }
    default: {
      op->leases = Pick(random, 3, [](const Held& held) {
        return held.own && held.state == State::kMapped && !held.revocable;
      });
      if (op->leases.empty()) return nullptr;
      op->kind = random.OneIn(2) ? Op::Kind::kPrepare : Op::Kind::kSuspend;
      return op;
    }
  }
}

void Client::Hear(Random& random) {
  Process& process = *process_;
  Op& op = *process.op;
  const std::shared_ptr<Answer> answer = std::exchange(op.answer, nullptr);
  if (!answer->there) {
    // The connection is lost: with the next one it asks again, or gives up.
    if (process.connection == op.connection) DropConnection();
    process.inbox.clear();
    const bool gives_up = op.kind == Op::Kind::kConnect || op.kind == Op::Kind::kPrepare ||
                          op.kind == Op::Kind::kAskRevoked || ++op.attempts > kMostAttempts ||
                          random.OneIn(4);
    if (!gives_up) return;
    if (op.kind == Op::Kind::kRelease) process.book.AddPending(std::move(op.pending));
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
  if (op.kind == Op::Kind::kConnect) return HearConnected(*answer);
  if (op.kind == Op::Kind::kRelease) return HearReleased(status);
  if (op.kind == Op::Kind::kAskRevoked) {
    op.connection->revoked = false;
    process.inbox.clear();
    auto release = std::make_unique<Op>();
    release->kind = Op::Kind::kRelease;
    for (LeaseId id : answer->ids) {
      if (process.held.erase(id) > 0) release->leases.push_back(id);
    }
    release->pending = process.book.GiveUp(Numbers(release->leases));
    process.op = std::move(release);
    if (process.op->pending.empty()) End();
    return;  // it is sent in its next turn
  }
  if (!status.ok()) {
    if (op.kind == Op::Kind::kSuspend && !absl::IsUnavailable(status)) {
      for (LeaseId id : op.leases) process.held.at(id).state = Held::State::kUnmapped;
    }
    return End();
  }
  switch (op.kind) {
    case Op::Kind::kShare:
      hall_.tickets.push_back({answer->secret, tenant_, op.scope});
      if (hall_.tickets.size() > kTicketsKept) hall_.tickets.pop_front();
      break;
    case Op::Kind::kPublish:
      process.book.Published(process.book.ClaimsOn({op.publish.name, op.publish.content_id}));
      break;
    case Op::Kind::kAcquire:
    case Op::Kind::kOpen:
    case Op::Kind::kAttach:
    case Op::Kind::kResume:
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
    if (over) {
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
  if (op.kind == Op::Kind::kAcquire && answer.leases.size() != op.acquire.count) {
    Violate(absl::StrCat("it asked for ", op.acquire.count, " segments and got ",
                         answer.leases.size()));
  }
  if (op.kind == Op::Kind::kOpen && op.ticket.scope == TicketScope::kTenant &&
      answer.leases.front().tenant != tenant_) {
    Violate("it opened a ticket that is for another tenant");
  }
  std::vector<LeaseId> ids;
  for (const LeaseView& lease : answer.leases) ids.push_back(lease.lease);
  if (op.booked != nullptr) op.booked->Granted(Numbers(ids));
  // Its Delivery came before the answer.
  while (op.connection == process.connection && CanRead()) Read();
  for (const LeaseView& lease : answer.leases) Map(lease.lease, lease);
}

void Client::Map(LeaseId id, const LeaseView& lease) {
  Process& process = *process_;
  Op& op = *process.op;
  const auto item = process.inbox.find(id);
  Held& held = process.held[id];
  if (item == process.inbox.end()) {
    // Its connection was lost after the answer, and with it the message.
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
  if (op.kind == Op::Kind::kAcquire) {
    if (op.acquire.bytes > lease.bytes || lease.tenant != tenant_) {
      Violate(absl::StrCat("lease ", ToInt(id), " is too small, or another tenant's"));
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
  } else if (op.kind == Op::Kind::kResume) {
    held.own = before.own;
    if (before.contents != 0 && !lease.scratch && memory->contents != before.contents) {
      Violate(absl::StrCat("lease ", ToInt(id), " has resumed with other contents"));
    }
    memory->tenant = tenant_;
    if (lease.scratch && before.own) memory->contents = ++hall_.last_stamp;
  }
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
