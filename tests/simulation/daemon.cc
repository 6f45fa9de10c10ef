// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/daemon.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/core/broker/operators.h"

namespace gpumemd::simulation {
namespace {

// How long a Delivery waits for a client that does not read.
constexpr absl::Duration kSendTimeout = absl::Seconds(2);
constexpr absl::Duration kDrain = absl::Seconds(8);

}  // namespace

Daemon::Daemon(Surroundings* surroundings)
    : surroundings_(*surroundings),
      fibers_(&surroundings->now, this),
      devices_(surroundings->driver, this),
      link_(surroundings->store, this) {
  link_.driver = surroundings->driver;
}

Daemon::~Daemon() = default;

void Daemon::Start() {
  Run([this] {
    absl::Status started = Restore();
    if (dead_) return;
    started_ = std::move(started);
    serves_ = started_->ok();
  });
}

absl::Status Daemon::Restore() {
  const auto dead = [] { return absl::UnavailableError("dead"); };
  if (!Pause("start")) return dead();
  absl::StatusOr<JournalImage> image = link_.Open();
  if (!image.ok()) return image.status();
  if (!Pause("start-opened")) return dead();
  BrokerOptions options;
  for (size_t i = 0; i < surroundings_.gpus; ++i) options.devices.push_back(devices_.MakeGpu(i));
  if (surroundings_.tier_bytes > 0) {
    options.devices.push_back(devices_.MakeTier(surroundings_.tier_bytes));
  }
  options.bounds = surroundings_.bounds;
  options.revocation = {.grace = absl::Seconds(1), .kill_after = absl::Seconds(1)};
  options.now = [this] { return surroundings_.now; };
  options.usage_clock = [this] { return surroundings_.now - absl::UnixEpoch(); };
  options.random = [this] {
    Secret secret{};
    for (size_t i = 0; i < secret.size(); i += 8) {
      const uint64_t bits = surroundings_.secrets.Next();
      std::memcpy(&secret[i], &bits, 8);
    }
    return secret;
  };
  options.observer = this;
  options.continuity = &link_;
  options.threads = &fibers_;
  options.copy_hold = absl::InfiniteDuration();
  broker_ = std::make_unique<Broker>(std::move(options));
  broker_->operators().Configure(surroundings_.tenants, Quota());

  Inheritance inheritance;
  for (const auto& [id, session] : image->sessions) {
    const auto process = surroundings_.alive.find(session.pid);
    if (process == surroundings_.alive.end()) continue;
    inheritance.sessions[id] = process->second;
    watched_.emplace(session.pid, id);
  }
  for (const auto& [segment, memory] : surroundings_.store->memory) {
    inheritance.memory.emplace(segment, gpumem::UniqueFd(memory->fd));
  }
  for (const auto& [publication, fd] : surroundings_.store->metadata) {
    inheritance.metadata.emplace(publication, gpumem::UniqueFd(dup(fd.get())));
  }
  if (!Pause("start-looked")) return dead();
  may_yield_ = false;  // it holds the broker's mutex
  inheritance.image = *std::move(image);
  absl::StatusOr<Broker::Restored> restored = broker_->Restore(std::move(inheritance));
  may_yield_ = true;
  if (!restored.ok()) return restored.status();
  if (!Pause("started")) return dead();
  if (!restored->refused.empty()) return restored->refused.front().second;
  restored_ = *std::move(restored);
  return absl::OkStatus();
}

void Daemon::KillIn(size_t moments, std::optional<Tear> tear) {
  tear_ = tear;
  if (moments == 0) return Die();
  kill_in_ = moments;
}

void Daemon::CancelKill() {
  kill_in_.reset();
  surroundings_.fatal_allocation = 0;
}

// The real daemon has std::bad_alloc end it. Here the thread runs on to its next stop, without
// effect: what it held is taken from it there (Reap).
void Daemon::Allocates() {
  if (dead_ || ++surroundings_.allocations != surroundings_.fatal_allocation) return;
  dead_ = at_allocation_ = true;
  link_.Died();
}

void Daemon::Die() {
  dead_ = true;
  kill_in_.reset();
  devices_.Abandon();
  for (const auto& [session, connection] : connections_) connection->cut = true;
}

bool Daemon::Moment(const char*) {
  if (!dead_ && kill_in_ && --*kill_in_ == 0) Die();
  return !dead_;
}

bool Daemon::Pause(const char* where) {
  if (Moment(where) && may_yield_) fibers_.Yield();
  return !dead_;
}

bool Daemon::Fails() {
  if (surroundings_.failures == 0) return false;
  --surroundings_.failures;
  return true;
}

std::optional<Tear> Daemon::TearsWrite() {
  if (dead_ || !kill_in_ || *kill_in_ != 1 || !tear_) return std::nullopt;
  *kill_in_ = 2;  // dead after the write, in its next moment
  Tear tear = *tear_;
  return tear;
}

void Daemon::Stop() {
  stopping_ = true;
  Run([this] {
    broker_->Park();
    Pause("stop-parked");
    broker_->AwaitCalls(surroundings_.now + kDrain);
    Pause("stop-answered");
    leaves_ = true;
    for (const auto& [session, connection] : connections_) connection->cut = true;
    fibers_.WaitUntil([this] { return serving_ <= 1 || dead_; });
    if (dead_) return;
    broker_->Freeze();
    frozen_ = true;
    Pause("stop-frozen");
    stopped_ = true;
  });
}

bool Daemon::Reap() {
  if (dead_) Die();
  may_yield_ = true;
  fibers_.Start([this] {
    fibers_.WaitUntil([this] { return serving_ == 0; });
    broker_.reset();
  });
  return fibers_.Drain();
}

void Daemon::Run(absl::AnyInvocable<void()> body) {
  ++serving_;
  auto shared = std::make_shared<absl::AnyInvocable<void()>>(std::move(body));
  fibers_.Start([this, shared] {
    (*shared)();
    *shared = nullptr;
    --serving_;
  });
}

void Daemon::Serve(const ConnectionPtr& connection, const Secret& token,
                   absl::AnyInvocable<void(absl::StatusOr<Broker::Call>)> body) {
  Run([this, connection, token, body = std::move(body)]() mutable {
    if (connection->cut || dead_) return;
    body(broker_->Authenticate(
        absl::string_view(reinterpret_cast<const char*>(token.data()), token.size())));
  });
}

absl::Status Daemon::Deliver(const ConnectionPtr& connection, const Handover& handover,
                             bool may_block) {
  if (!Pause("deliver-before")) return absl::UnavailableError("dead");
  const auto gone = [&] { return connection->cut || connection->closed; };
  if (gone()) return absl::UnavailableError("the session's socket is closed");
  if (!connection->reconciled) return absl::UnavailableError("it is not reconciled");
  const auto has_room = [&] {
    return connection->socket.size() < Connection::kRoom &&
           surroundings_.now >= connection->full_until;
  };
  if (!has_room() && !may_block) return absl::DeadlineExceededError("it would block");
  fibers_.WaitUntil([&] { return has_room() || gone() || dead_; },
                    surroundings_.now + kSendTimeout);
  if (dead_ || gone()) return absl::UnavailableError("the session's socket is closed");
  if (!has_room()) {
    connection->closed = true;
    connection->cut = true;
    broker_->SocketClosed(connection->session);
    return absl::ResourceExhaustedError("the client does not read its session socket");
  }
  Message message;
  for (const Handover::Item& item : handover.items) {
    MemoryPtr memory = surroundings_.driver->Find(item.fd);
    if (memory == nullptr) return absl::InternalError("a descriptor without memory is sent");
    if (memory->segment && *memory->segment != item.lease.segment) {
      return absl::InternalError("a descriptor of another segment is sent");
    }
    message.items.push_back({item.lease, std::move(memory)});
  }
  connection->socket.push_back(std::move(message));
  Pause("deliver-after");
  return absl::OkStatus();
}

void Daemon::ProcessGone(pid_t pid) {
  const auto [begin, end] = watched_.equal_range(pid);
  for (auto each = begin; each != end; ++each) {
    Run([this, session = each->second] {
      if (!dead_) broker_->ProcessGone(session);
    });
  }
  watched_.erase(begin, end);
}

void Daemon::Connect(const ConnectionPtr& connection) {
  ConnectionPtr& place = connections_[connection->session];
  if (place != nullptr) place->cut = true;
  place = connection;
  connection->cut |= leaves_;
  const auto [begin, end] = watched_.equal_range(connection->pid);
  const bool known =
      std::any_of(begin, end, [&](const auto& each) { return each.second == connection->session; });
  if (!known) watched_.emplace(connection->pid, connection->session);
  if (!surroundings_.alive.contains(connection->pid)) ProcessGone(connection->pid);
}

ConnectionPtr Daemon::Find(SessionId session) const {
  const auto found = connections_.find(session);
  return found == connections_.end() ? nullptr : found->second;
}

void Daemon::Revoked(SessionId session) {
  if (const ConnectionPtr connection = Find(session); connection != nullptr) {
    connection->revoked = true;
  }
}

void Daemon::EndProcess(SessionId session, bool kill) {
  for (const auto& [pid, watched] : watched_) {
    if (watched == session && !dead_) surroundings_.to_end.emplace_back(pid, kill);
  }
}

}  // namespace gpumemd::simulation
