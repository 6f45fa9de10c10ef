// SPDX-License-Identifier: Apache-2.0
// One daemon of a simulation, from its start to its death: a real Broker on simulated devices, and
// a stand-in for the servers of sockets and gRPC.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/observer.h"
#include "tests/simulation/driver.h"
#include "tests/simulation/fibers.h"
#include "tests/simulation/random.h"
#include "tests/simulation/store.h"

namespace gpumemd::simulation {

// One Delivery on its way to a client, or in its socket.
struct Message {
  struct Item {
    LeaseView lease;
    MemoryPtr memory;
  };
  std::vector<Item> items;
};

// A client's two sockets. A client drops it to lose it; a daemon cuts it at its end.
struct Connection {
  static constexpr size_t kRoom = 3;  // messages in the socket

  SessionId session{};
  pid_t pid = 0;
  absl::Time full_until = absl::InfinitePast();  // the kernel takes no message before
  bool cut = false;                              // no call or answer passes any more
  bool closed = false;                           // by the daemon, together with its session
  bool reconciled = true;
  bool revoked = false;  // a watch has told of revocations
  uint64_t statement = 0;
  std::deque<Message> socket;
};
using ConnectionPtr = std::shared_ptr<Connection>;

// What the world around a daemon has for it.
struct Surroundings {
  absl::Time now = absl::FromUnixSeconds(1'000'000'000);
  Driver* driver = nullptr;
  Store* store = nullptr;
  size_t gpus = 1;
  uint64_t tier_bytes = 0;
  std::map<std::string, Quota> tenants;
  Bounds bounds;
  // Of the present step.
  Random random{0};
  Random secrets{0};
  // Driver calls that fail next.
  size_t failures = 0;
  // Until when processes of sessions are to be ended by the daemon's request.
  std::vector<std::pair<pid_t, bool>> to_end;
  std::map<pid_t, SessionDetails> alive;  // processes
  // Allocations of daemons so far, and the number of the one at which the daemon dies; 0: none.
  uint64_t allocations = 0;
  uint64_t fatal_allocation = 0;
};

class Daemon final : public StoreHost, public BrokerObserver, public AllocationListener {
 public:
  explicit Daemon(Surroundings* surroundings);
  ~Daemon() override;

  // Begins to take over what the last daemon left, on a thread.
  void Start();
  // Returns how that has ended, once; nullopt: it has not, or was asked before.
  std::optional<absl::Status> TakeStarted() { return std::exchange(started_, std::nullopt); }
  // True if it has a whole state: it has started and is not dead.
  bool serves() const { return serves_ && !dead_; }
  // Waits until it serves or is dead.
  void AwaitStart() {
    fibers_.WaitUntil([this] { return serves_ || dead_; });
  }
  // Its pidfds tell it that a process has gone.
  void ProcessGone(pid_t pid);
  // Kills it in the given number of moments; 0: now. `tear`: if that is a write, within it.
  void KillIn(size_t moments, std::optional<Tear> tear);
  void CancelKill();
  bool dead() const { return dead_; }
  bool has_served() const { return serves_; }
  bool died_at_allocation() const { return at_allocation_; }
  // True once it has stopped in order.
  bool stopped() const { return stopped_; }
  // True once its journal is complete: from then on it writes none, and only ends.
  bool frozen() const { return frozen_; }
  // Begins an orderly stop.
  void Stop();
  // Removes all that is left of a daemon that is dead or stopped. False if a thread of it waits
  // forever.
  bool Reap();

  Fibers& fibers() { return fibers_; }
  Broker& broker() { return *broker_; }
  const Restored& restored() const { return restored_; }
  // True if new connections are served.
  bool accepts() const { return serves() && !stopping_; }

  // Runs `body` on a new thread, as a call that came by this connection. `body` gets the
  // session's call, unless `why` is an error.
  void Serve(const ConnectionPtr& connection, const Secret& token,
             absl::AnyInvocable<void(absl::StatusOr<Broker::Call>)> body);
  // Runs `body` on a new thread.
  void Run(absl::AnyInvocable<void()> body);
  // Sends a Delivery, as SessionServer::Deliver.
  absl::Status Deliver(const ConnectionPtr& connection, const Handover& handover, bool may_block);
  // Waits for an answer of `advance`, for a request that may wait.
  template <typename Request, typename Progress>
  Progress Await(const ConnectionPtr& connection, const std::shared_ptr<Request>& request);
  // The session's sockets are these from now on.
  void Connect(const ConnectionPtr& connection);
  ConnectionPtr Find(SessionId session) const;

  // --- StoreHost
  bool Pause(const char* where) override;
  bool Moment(const char* where) override;
  bool Fails() override;
  std::optional<Tear> TearsWrite() override;

  // --- AllocationListener
  void Allocates() override;

  // --- BrokerObserver
  void SessionForgotten(SessionId) override {}
  void QuotaChanged(absl::string_view) override {}
  void DrainingChanged(bool) override {}
  void SegmentsLost(SessionId) override {}
  void Pressed(const Pressure&) override {}
  void Revoked(SessionId session) override;
  void SuspensionRequested(SessionId) override {}
  void EndProcess(SessionId session, bool kill) override;
  void ContextLost(const std::string&, size_t) override {}

 private:
  absl::Status Restore();
  void Die();

  Surroundings& surroundings_;
  Fibers fibers_;
  Devices devices_;
  StoreLink link_;
  std::map<SessionId, ConnectionPtr> connections_;
  std::multimap<pid_t, SessionId> watched_;
  std::optional<size_t> kill_in_;
  std::optional<Tear> tear_;
  std::optional<absl::Status> started_;
  bool serves_ = false;
  bool dead_ = false;
  bool at_allocation_ = false;
  bool may_yield_ = true;
  bool stopping_ = false;
  bool leaves_ = false;  // its sessions to the next daemon
  bool frozen_ = false;
  bool stopped_ = false;
  size_t serving_ = 0;
  Restored restored_;
  std::unique_ptr<Broker> broker_;
};

template <typename Request, typename Progress>
Progress Daemon::Await(const ConnectionPtr& connection, const std::shared_ptr<Request>& request) {
  auto resumed = std::make_shared<bool>(false);
  request->resume = [resumed] { *resumed = true; };
  bool may_block = false;
  bool given_up = false;
  while (true) {
    Progress progress = broker_->Advance(request, may_block);
    if (progress.state == Broker::Progress::State::kAnswered) return progress;
    may_block = true;
    if (progress.state == Broker::Progress::State::kNeedsAThread) {
      Pause("worker");
      continue;
    }
    fibers_.WaitUntil([&] { return *resumed || ((connection->cut || dead_) && !given_up); });
    if (!*resumed) {
      given_up = true;
      broker_->GiveUp(request);
      fibers_.WaitUntil([&] { return *resumed; });
    }
    *resumed = false;
  }
}

}  // namespace gpumemd::simulation
