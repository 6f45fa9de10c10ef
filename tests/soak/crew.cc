// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/crew.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "tests/hostile/attacks.h"

namespace gpumem::soak {
namespace {

using testing::Child;

constexpr absl::Duration kAttack = absl::Seconds(1);
constexpr absl::Duration kEnd = absl::Minutes(2);
constexpr size_t kMostWrong = 20;

}  // namespace

const std::vector<std::string>& SoakAttacks() {
  static const auto* const names = new std::vector<std::string>{"bad-greetings",
                                                                "call-storm",
                                                                "claim-storm",
                                                                "exchange",
                                                                "garbage",
                                                                "compressed-requests",
                                                                "endless-headers",
                                                                "wrong-headers",
                                                                "half-sent",
                                                                "leases",
                                                                "never-read",
                                                                "page-storm",
                                                                "ping-flood",
                                                                "rapid-reset",
                                                                "reconcile",
                                                                "release",
                                                                "resume",
                                                                "say-nothing",
                                                                "suspend",
                                                                "take-sessions",
                                                                "publication-storm",
                                                                "settings-flood",
                                                                "tenant-storm",
                                                                "view-storm",
                                                                "wait"};
  return *names;
}

int RunAttacker(const std::vector<std::string>& args) {
  const hostile::Attack attack = args.size() == 2 ? hostile::FindAttack(args[0]) : nullptr;
  if (attack == nullptr) return 2;
  setpriority(PRIO_PROCESS, 0, 19);
  attack({.runtime_dir = args[1], .deadline = absl::Now() + kAttack});
  return 0;
}

Child Crew::Start(const Worker& worker, uint64_t seed) const {
  return Child::Self({"--role", "worker", worker.role, options_.runtime_dir, options_.mailbox,
                      worker.tenant, absl::StrCat(seed),
                      absl::StrCat(absl::ToInt64Milliseconds(options_.pause))});
}

void Crew::Hire(const std::string& role, const std::string& tenant, uint64_t seed) {
  Worker& worker = workers_.emplace_back(Worker{.role = role, .tenant = tenant});
  worker.child = Start(worker, seed);
}

void Crew::Attack(const std::string& name) {
  attackers_.push_back(Child::Self({"--role", "attacker", name, options_.runtime_dir}));
  attacks_end_.push_back(absl::Now() + 3 * kAttack);
}

void Crew::Kill(Worker& worker) {
  worker.child.Signal(SIGKILL);
  const absl::Time deadline = absl::Now() + kEnd;
  while (absl::Now() < deadline && Hear(worker, deadline)) continue;  // what it had said
  worker.child.Wait();
  worker = {.role = worker.role, .tenant = worker.tenant};
}

void Crew::Kill(size_t which, uint64_t seed) {
  Worker& worker = workers_.at(which);
  Kill(worker);
  worker.child = Start(worker, seed);
}

void Crew::Rest() {
  attackers_.clear();
  attacks_end_.clear();
  for (Worker& worker : workers_) Kill(worker);
}

void Crew::Resume(uint64_t seed) {
  for (Worker& worker : workers_) worker.child = Start(worker, seed++);
}

void Crew::Stop(size_t which, absl::Duration length) {
  workers_.at(which).child.Signal(SIGSTOP);
  workers_.at(which).stopped_until = absl::Now() + length;
}

bool Crew::Hear(Worker& worker, absl::Time deadline) {
  const auto message = ReceiveMessage(worker.child.channel(), deadline);
  if (!message.ok()) return message.status().code() == absl::StatusCode::kDeadlineExceeded;
  absl::string_view words = message->bytes;
  if (absl::ConsumePrefix(&words, "did ")) {
    for (const auto& [what, count] : CountsOf(words)) {
      if (what == "held") {
        worker.held = count;
        continue;
      }
      counts_[what] += count;
      operations_ += count;
    }
  } else if (absl::ConsumePrefix(&words, "wrong ")) {
    if (wrong_.size() < kMostWrong) {
      wrong_.push_back(absl::StrCat(worker.role, " of ", worker.tenant, ", ", words));
    }
  } else if (words == "ended") {
    worker.ended = true;
  }
  return true;
}

void Crew::Listen(uint64_t seed) {
  const absl::Time now = absl::Now();
  for (Worker& worker : workers_) {
    if (worker.stopped_until > absl::InfinitePast() && now >= worker.stopped_until) {
      worker.child.Signal(SIGCONT);
      worker.stopped_until = absl::InfinitePast();
    }
    const bool had_ended = worker.child.HasEnded();
    for (bool more = true; more;) {
      pollfd ready = {.fd = worker.child.channel(), .events = POLLIN, .revents = 0};
      more = poll(&ready, 1, 0) > 0 && Hear(worker, now + absl::Seconds(1));
    }
    if (!had_ended) continue;
    const int code = worker.child.Wait();
    ++counts_["worker-ended"];
    // gpumemd ends by a signal who does not give revoked memory back in time.
    const bool revoked = worker.role == "spot" && (code == 128 + SIGTERM || code == 128 + SIGKILL);
    if (!revoked && wrong_.size() < kMostWrong) {
      wrong_.push_back(absl::StrCat(worker.role, " of ", worker.tenant, " ended with ", code));
    }
    worker = {.role = worker.role, .tenant = worker.tenant};
    worker.child = Start(worker, seed++);
  }
  while (!attackers_.empty()) {
    const bool ended = attackers_[0].HasEnded();
    if (!ended && now <= attacks_end_[0]) break;
    // One that takes too long is killed.
    const int code = ended ? attackers_[0].Wait() : 0;
    if (code != 0 && wrong_.size() < kMostWrong) {
      wrong_.push_back(absl::StrCat("an attacker ended with ", code));
    }
    attackers_.erase(attackers_.begin());
    attacks_end_.erase(attacks_end_.begin());
  }
}

void Crew::End() {
  attackers_.clear();
  const absl::Time deadline = absl::Now() + kEnd;
  for (Worker& worker : workers_) {
    worker.child.Signal(SIGCONT);
    testing::Say(worker.child.channel(), "end");
  }
  for (Worker& worker : workers_) {
    while (!worker.ended && absl::Now() < deadline && Hear(worker, deadline)) continue;
    const int code = worker.ended ? worker.child.Wait() : -1;
    if (code == 0) continue;
    wrong_.push_back(absl::StrCat(worker.role, " of ", worker.tenant,
                                  worker.ended ? " ended with " : " did not end: ", code));
  }
  workers_.clear();
}

uint64_t Crew::held_bytes() const {
  uint64_t bytes = 0;
  for (const Worker& worker : workers_) bytes += worker.held;
  return bytes;
}

}  // namespace gpumem::soak
