// SPDX-License-Identifier: Apache-2.0
// A client process of a simulation, with the real book of its leases (client/session/lease_book.h).
// It is honest: it unmaps what it releases. But it reads late, dies, and loses its connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/session/lease_book.h"
#include "daemon/core/broker/broker.h"
#include "tests/simulation/daemon.h"
#include "tests/simulation/random.h"

namespace gpumemd::simulation {

// What clients call.
enum class CallKind {
  kConnect,
  kAcquire,
  kOpen,
  kAttach,
  kResume,
  kShare,
  kRelease,
  kPublish,
  kUnpublish,
  kPrepare,
  kSuspend,
  kAskRevoked,
};
inline constexpr size_t kCallKinds = 12;

// What clients tell each other, and the world.
struct Hall {
  struct Ticket {
    Secret secret{};
    std::string tenant;
    TicketScope scope = TicketScope::kTenant;
  };
  std::deque<Ticket> tickets;  // the last few
  // Contents of publications, by tenant, name and version.
  std::map<std::tuple<std::string, std::string, uint64_t>, std::vector<uint64_t>> published;
  // How often clients think of each kind of call, in proportion to the others.
  std::array<size_t, kCallKinds> weights{};
  // What half of their calls are at present, with all their leases.
  std::optional<CallKind> fashion;
  uint64_t last_stamp = 0;
  pid_t last_pid = 0;
  // The first thing that must not be.
  std::optional<std::string> violation;
  // How many processes but this map the memory.
  std::function<size_t(const Memory*, pid_t)> mapped_by_others;
  std::map<std::string, uint64_t> counts;  // of answers, by call and status
  bool loses_memory = false;               // a daemon died whose store had not all memory

  void Violate(std::string what) {
    if (!violation) violation = std::move(what);
  }
};

class Client {
 public:
  struct Held {
    SegmentId segment{};
    MemoryPtr memory;       // null: not mapped
    uint64_t contents = 0;  // that were there
    bool own = false;       // acquired, not opened
    bool revocable = false;
    bool scratch = false;
    enum class State { kMapped, kSuspended, kUnmapped } state = State::kMapped;
  };

  Client(std::string tenant, Surroundings* surroundings, Hall* hall)
      : tenant_(std::move(tenant)), surroundings_(*surroundings), hall_(*hall) {}

  bool alive() const { return process_ != nullptr; }
  bool gone() const { return process_ == nullptr; }
  pid_t pid() const { return process_ == nullptr ? 0 : process_->details.peer.pid; }
  const SessionDetails& details() const { return process_->details; }
  SessionId session() const { return process_ == nullptr ? SessionId{} : process_->session; }
  const std::map<LeaseId, Held>& held() const;
  // A process has firm leases or revocable ones.
  bool revocable() const { return pid() % 4 == 0; }
  bool busy() const { return process_ != nullptr && process_->op != nullptr; }
  bool connected() const;
  // Its answer is there, or will never come.
  bool CanHear() const;
  // It does not only wait for an answer.
  bool CanAct() const { return !busy() || process_->op->answer == nullptr || CanHear(); }
  bool CanRead() const;

  void Begin(uid_t uid);  // starts a process
  void Die();
  void Read();  // a message from its socket
  void LoseConnection();
  // The kernel takes no message for it until then, also by another connection.
  void FillSocket(absl::Time until);
  // Does one thing that it can do now. Null: there is no daemon. `calm`: begins no call but those
  // that end the call under way.
  void Act(Daemon* daemon, Random& random, bool calm);
  // What a LeaseBook and the daemon agree about, while nothing is under way.
  std::vector<uint64_t> BookedLeases() const;
  // Returns what it is about, for people.
  std::string Describe() const;
  // Checks that all contents are as they were left.
  void Verify() const;

 private:
  struct Answer {
    bool there = false;
    absl::Status status;
    std::vector<LeaseView> leases;
    std::vector<LeaseId> ids;
    Secret secret{};
    bool claimed = false;
    std::string tenant;  // and version: of the publication
    uint64_t version = 0;
    ConnectionPtr connection;
  };
  struct Op {
    CallKind kind = CallKind::kConnect;
    std::unique_ptr<gpumem::internal::LeaseBook::Request> booked;
    AcquireSpec acquire;
    AttachSpec attach;
    PublishSpec publish;
    std::string metadata;
    Hall::Ticket ticket;
    std::vector<LeaseId> leases;
    TicketScope scope = TicketScope::kTenant;
    gpumem::internal::LeaseBook::PendingRelease pending;
    absl::Duration wait;
    uint64_t number = 0;  // of the statement, or of the request
    std::vector<LeaseId> stated;
    std::vector<uint64_t> requests;
    std::shared_ptr<Answer> answer;
    ConnectionPtr connection;
    int attempts = 0;
  };
  // All that ends with the process.
  struct Process {
    SessionDetails details;
    gpumem::internal::LeaseBook book;
    SessionId session{};  // 0: it has none
    Secret token{};
    ConnectionPtr connection;
    std::map<LeaseId, Held> held;
    std::map<LeaseId, Message::Item> inbox;
    std::unique_ptr<Op> op;
    std::unique_ptr<Op> again;  // to be sent once it is connected
    uint64_t last_request = 0;  // numbered, of publications
    absl::Time full_until = absl::InfinitePast();
    bool over = false;  // the daemon has closed its socket: the session has ended
  };

  static const char* NameOf(CallKind kind);
  CallKind ChooseKind(Random& random) const;
  void Connect(Daemon& daemon);
  void Begin(Daemon& daemon, Random& random);
  std::unique_ptr<Op> Choose(Random& random);
  // Returns so many of its leases that `which` accepts, or all of these.
  std::vector<LeaseId> Pick(Random& random, size_t count,
                            const std::function<bool(const Held&)>& which) const;
  void Send(Daemon& daemon);
  void Hear(Random& random);
  void HearConnected(const Answer& answer);
  void HearLeases(const Answer& answer);
  void HearReleased(const absl::Status& status);
  void Map(LeaseId id, const LeaseView& lease);
  void End();  // of the op
  void DropConnection();
  void Violate(const std::string& what) const;

  const std::string tenant_;
  Surroundings& surroundings_;
  Hall& hall_;
  std::unique_ptr<Process> process_;
};

}  // namespace gpumemd::simulation
