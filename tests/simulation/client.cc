// SPDX-License-Identifier: Apache-2.0
// What a simulated client decides to do. client_calls.cc sends its calls, and client_answers.cc has
// what it makes of the answers.
#include "tests/simulation/client.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumemd::simulation {
namespace {

using gpumem::internal::LeaseBook;

std::vector<uint64_t> Numbers(const std::vector<LeaseId>& ids) {
  std::vector<uint64_t> numbers;
  for (LeaseId id : ids) numbers.push_back(ToInt(id));
  return numbers;
}

}  // namespace

const char* Client::NameOf(CallKind kind) {
  static constexpr std::array<const char*, kCallKinds> kNames = {
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
  process_->over |= process_->connection->closed;
  process_->connection->socket.clear();
  process_->connection.reset();
}

void Client::FillSocket(absl::Time until) {
  if (process_ == nullptr) return;
  process_->full_until = until;
  if (connected()) process_->connection->full_until = until;
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
    // The owner of scratch memory writes it anew after each resumption, also under other leases.
    if (held.scratch && !held.own) continue;
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
    process.op->kind = CallKind::kRelease;
    process.op->pending = std::move(due.front());
    return Send(*daemon);
  }
  if (!calm) Begin(*daemon, random);
}

void Client::Begin(Daemon& daemon, Random& random) {
  // Not all that it thinks of can be done.
  for (int i = 0; i < 4 && process_->op == nullptr; ++i) process_->op = Choose(random);
  if (process_->op != nullptr) Send(daemon);
}

std::vector<LeaseId> Client::Pick(Random& random, size_t count,
                                  const std::function<bool(const Held&)>& which) const {
  std::vector<LeaseId> all;
  for (const auto& [id, held] : process_->held) {
    if (which(held)) all.push_back(id);
  }
  std::vector<LeaseId> picked;
  for (; count > 0 && !all.empty(); --count) {
    const size_t at = random.Below(all.size());
    picked.push_back(all[at]);
    all.erase(all.begin() + static_cast<ptrdiff_t>(at));
  }
  return picked;
}

CallKind Client::ChooseKind(Random& random) const {
  if (hall_.fashion && random.OneIn(2)) return *hall_.fashion;
  size_t all = 0;
  for (const size_t weight : hall_.weights) all += weight;
  size_t dice = random.Below(all);
  size_t kind = 0;
  while (dice >= hall_.weights[kind]) dice -= hall_.weights[kind++];
  return static_cast<CallKind>(kind);
}

std::unique_ptr<Client::Op> Client::Choose(Random& random) {
  Process& process = *process_;
  auto op = std::make_unique<Op>();
  using State = Held::State;
  const auto waits = [&] {
    if (random.OneIn(2)) op->wait = absl::Milliseconds(100 + random.Below(5000));
  };
  const auto few = [&] { return 1 + random.Below(3); };
  const auto few_or_all = [&] { return hall_.fashion || random.OneIn(4) ? SIZE_MAX : few(); };
  const auto name = [&] { return absl::StrCat("w", random.Below(2)); };
  // Mostly for a name that there has been.
  const auto asks_for = [&](const std::string& tenant, const std::string& of) {
    const auto known = hall_.published.lower_bound({tenant, of, 0});
    return random.OneIn(8) ||
           (known != hall_.published.end() && std::get<0>(known->first) == tenant &&
            std::get<1>(known->first) == of);
  };
  if (process.connection->revoked && random.OneIn(2)) {
    op->kind = CallKind::kAskRevoked;
    return op;
  }
  op->kind = ChooseKind(random);
  switch (op->kind) {
    case CallKind::kAcquire: {
      if (process.held.size() > 6 && !random.OneIn(4)) return nullptr;
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
    case CallKind::kOpen: {
      if (hall_.tickets.empty()) return nullptr;
      // Often the same one, so that many have leases of one segment.
      op->ticket = random.OneIn(2) ? hall_.tickets.back()
                                   : hall_.tickets[random.Below(hall_.tickets.size())];
      const bool for_it = op->ticket.scope == TicketScope::kAny || op->ticket.tenant == tenant_;
      if (!for_it && !random.OneIn(8)) return nullptr;
      op->booked = std::make_unique<LeaseBook::Request>(&process.book);
      return op;
    }
    case CallKind::kAttach: {
      const std::string of = random.OneIn(3) ? "a" : tenant_, what = name();
      const bool claims = random.OneIn(3);
      if (!claims && !asks_for(of, what)) return nullptr;
      waits();
      const bool short_name = of == tenant_ && !random.OneIn(4);
      op->attach = {.name = short_name ? what : absl::StrCat(of, "/", what),
                    .version = random.OneIn(3) ? random.Below(6) : 0,
                    .revocable = revocable(),
                    .waits = op->wait > absl::ZeroDuration()};
      if (claims) {
        op->attach.version = 0;
        op->attach.claims = true;
        op->attach.content_id = absl::StrCat("c", random.Below(2));
      }
      op->booked = std::make_unique<LeaseBook::Request>(&process.book);
      op->attach.request_id = op->booked->id();
      return op;
    }
    case CallKind::kResume: {
      op->leases = Pick(random, few_or_all(), [](const Held& held) {
        return held.state != State::kMapped && !held.revocable;
      });
      if (op->leases.empty()) return nullptr;
      waits();
      op->acquire = {.waits = op->wait > absl::ZeroDuration(), .resumes = op->leases};
      return op;
    }
    case CallKind::kShare: {
      op->leases = Pick(random, 1, [](const Held& held) { return held.state == State::kMapped; });
      if (op->leases.empty()) return nullptr;
      op->scope = random.OneIn(3) ? TicketScope::kAny : TicketScope::kTenant;
      return op;
    }
    case CallKind::kRelease: {
      const bool suspended = random.OneIn(3);
      op->leases = Pick(random, 1 + random.Below(4), [&](const Held& held) {
        return !suspended || held.state != State::kMapped;
      });
      if (op->leases.empty()) return nullptr;
      for (LeaseId id : op->leases) process.held.erase(id);  // unmapped first
      op->pending = process.book.GiveUp(Numbers(op->leases));
      return op->pending.empty() ? nullptr : std::move(op);
    }
    case CallKind::kPublish: {
      op->leases = Pick(random, few(), [](const Held& held) {
        return held.own && held.state == State::kMapped && !held.revocable && !held.scratch;
      });
      if (op->leases.empty()) return nullptr;
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
    case CallKind::kUnpublish: {
      op->attach.name = name();
      if (!asks_for(tenant_, op->attach.name)) return nullptr;
      op->number = (uint64_t{1} << 32) + ++process.last_request;
      return op;
    }
    default: {
      if (surroundings_.tier_bytes == 0 && !random.OneIn(32)) return nullptr;
      op->leases = Pick(random, few_or_all(), [](const Held& held) {
        return held.state == State::kMapped && !held.revocable;
      });
      // Rather one of several leases of a segment, of which the others stay.
      std::map<SegmentId, size_t> mapped;
      for (const auto& [id, held] : process.held) {
        mapped[held.segment] += held.state == State::kMapped;
      }
      const std::vector<LeaseId> one_of_several = Pick(random, 1, [&](const Held& held) {
        return held.state == State::kMapped && !held.revocable && mapped[held.segment] > 1;
      });
      if (!one_of_several.empty() && random.OneIn(2)) op->leases = one_of_several;
      if (op->leases.empty()) return nullptr;
      return op;
    }
  }
}

}  // namespace gpumemd::simulation
