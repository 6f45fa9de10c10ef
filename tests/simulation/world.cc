// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/world.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumemd::simulation {
namespace {

constexpr std::array<const char*, kActions> kNames = {"run",  "act",  "read",    "advance",
                                                      "die",  "tell", "lose",    "start",
                                                      "kill", "stop", "operate", "fault"};
// How often each action is chosen, in 1,000.
constexpr std::array<size_t, kActions> kWeights = {446, 300, 60, 60, 5, 30, 14, 40, 4, 1, 20, 20};
// How often clients think of each kind of call, in the order of CallKind. kConnect and kAskRevoked
// come by themselves.
constexpr std::array<size_t, kCallKinds> kCallWeights = {0, 4, 3, 2, 3, 2, 3, 1, 1, 1, 2, 0};
// In steps.
constexpr size_t kLongestStall = 150;

}  // namespace

std::string ToString(const Step& step) {
  return absl::StrCat(kNames[static_cast<size_t>(step.action)], " ", static_cast<int>(step.actor),
                      " ", step.salt);
}

World::World(uint64_t seed, Check check, bool allocations_kill)
    : check_(check), allocations_kill_(allocations_kill), driver_([&] {
        Random random(seed);
        std::vector<uint64_t> capacity;
        for (size_t i = 1 + random.Below(2); i > 0; --i) {
          capacity.push_back(kGranule * (8 + random.Below(16)));
        }
        return capacity;
      }()) {
  Random random(Mix(seed, 1));
  surroundings_.driver = &driver_;
  surroundings_.store = &store_;
  surroundings_.gpus = driver_.capacities();
  surroundings_.tier_bytes = random.OneIn(6) ? 0 : kGranule * (2 + random.Below(30));
  surroundings_.secrets = Random(Mix(seed, 2));
  if (random.OneIn(8)) surroundings_.bounds.max_segments = 8;
  if (random.OneIn(8)) surroundings_.bounds.max_leases_per_session = 5;
  surroundings_.bounds.leases_at_once =
      std::array<size_t, 4>{1, 2, 4, kLeasesAtOnce}[random.Below(4)];
  calm_ = std::array<size_t, 4>{1, 4, 20, 100}[random.Below(4)];
  steady_ = std::array<size_t, 2>{1, 6}[random.Below(2)];
  slow_ = std::array<size_t, 3>{0, 12, 40}[random.Below(3)];
  for (const char* tenant : kTenants) {
    surroundings_.tenants[tenant] = QuotaOf(tenant, random);
    surroundings_.tenants[tenant].guarantee_bytes.reset();
  }
  hall_.mapped_by_others = [this](const Memory* memory, pid_t pid) {
    size_t count = 0;
    for (const auto& client : clients_) {
      if (client->pid() == pid) continue;
      for (const auto& [id, held] : client->held()) count += held.memory.get() == memory;
    }
    return count;
  };
  // Each world leaves some kinds of calls out and makes others often, so that what needs several
  // calls of a few kinds comes about in some of them (Groce et al., "Swarm Testing", 2012).
  for (size_t i = 0; i < kCallKinds; ++i) {
    hall_.weights[i] = kCallWeights[i] * std::array<size_t, 5>{0, 1, 1, 2, 5}[random.Below(5)];
  }
  size_t& acquires = hall_.weights[static_cast<size_t>(CallKind::kAcquire)];
  acquires = std::max(acquires, size_t{1});
  // In some worlds all are of one tenant, and share more.
  const size_t tenants = random.OneIn(3) ? 1 : kTenants.size();
  for (size_t i = 2 + random.Below(5); i > 0; --i) {
    clients_.push_back(
        std::make_unique<Client>(kTenants[random.Below(tenants)], &surroundings_, &hall_));
  }
}

World::~World() {
  if (daemon_ != nullptr) {
    daemon_->KillIn(0, std::nullopt);
    if (!daemon_->Reap()) static_cast<void>(daemon_.release());  // its threads refer to it
  }
  clients_.clear();
  daemon_.reset();
  store_.memory.clear();
}

std::vector<size_t> World::Those(bool (Client::*which)() const) const {
  std::vector<size_t> those;
  for (size_t i = 0; i < clients_.size(); ++i) {
    if ((clients_[i].get()->*which)()) those.push_back(i);
  }
  return those;
}

bool World::Can(Action action, size_t* actors) {
  *actors = 1;
  const bool up = daemon_ != nullptr;
  switch (action) {
    case Action::kRun:
      *actors = up ? daemon_->fibers().CountReady() : 0;
      break;
    case Action::kAct:
      *actors = Those(up && daemon_->accepts() ? &Client::CanAct : &Client::gone).size();
      break;
    case Action::kRead:
      *actors = Those(&Client::CanRead).size();
      break;
    case Action::kDie:
      *actors = Those(&Client::alive).size();
      break;
    case Action::kTell:
      *actors = up && daemon_->accepts() ? gone_.size() : 0;
      break;
    case Action::kLose:
      *actors = Those(&Client::connected).size();
      break;
    case Action::kStart:
      return !up;
    case Action::kKill:
      return up;
    case Action::kStop:
    case Action::kOperate:
      return up && daemon_->accepts();
    default:
      break;
  }
  return *actors > 0;
}

Step World::Choose(Random& random) {
  while (true) {
    size_t dice = random.Below(1000);
    size_t action = 0;
    while (dice >= kWeights[action]) dice -= kWeights[action++];
    size_t actors = 0;
    if (!Can(static_cast<Action>(action), &actors)) continue;
    // In most worlds daemons live longer, so that more happens between two deaths.
    if (static_cast<Action>(action) == Action::kKill && !random.OneIn(calm_)) continue;
    if (static_cast<Action>(action) == Action::kLose && !random.OneIn(steady_)) continue;
    return {static_cast<Action>(action), static_cast<uint8_t>(random.Below(actors)),
            static_cast<uint32_t>(random.Next())};
  }
}

bool World::Do(const Step& step) {
  size_t actors = 0;
  if (!Can(step.action, &actors)) return false;
  ++steps_;
  Random random(step.salt);
  const size_t actor = step.actor % actors;
  switch (step.action) {
    case Action::kRun:
      if (slow_ > 0 && random.OneIn(slow_)) {
        daemon_->fibers().Stall(actor, 2 + random.Below(kLongestStall));  // this step passes, too
      } else {
        daemon_->fibers().Run(actor);
      }
      break;
    case Action::kAct: {
      const bool accepts = daemon_ != nullptr && daemon_->accepts();
      const size_t which = Those(accepts ? &Client::CanAct : &Client::gone)[actor];
      Client& client = *clients_[which];
      if (client.gone()) {
        client.Begin(static_cast<uid_t>(1000 + which));
        surroundings_.alive[client.pid()] = client.details();
      } else {
        client.Act(daemon_.get(), random, /*calm=*/false);
      }
      break;
    }
    case Action::kRead:
      clients_[Those(&Client::CanRead)[actor]]->Read();
      break;
    case Action::kAdvance: {
      const absl::Time next =
          daemon_ == nullptr ? absl::InfiniteFuture() : daemon_->fibers().NextDeadline();
      absl::Duration passes = absl::Milliseconds(1 + random.Below(random.OneIn(8) ? 20000 : 200));
      if (next < absl::InfiniteFuture() && next > surroundings_.now && random.OneIn(2)) {
        passes = next - surroundings_.now;
      }
      surroundings_.now += passes;
      break;
    }
    case Action::kDie: {
      Client& client = *clients_[Those(&Client::alive)[actor]];
      gone_.push_back(client.pid());
      surroundings_.alive.erase(client.pid());
      client.Die();
      break;
    }
    case Action::kTell:
      daemon_->ProcessGone(gone_[actor]);
      gone_.erase(gone_.begin() + static_cast<ptrdiff_t>(actor));
      break;
    case Action::kLose:
      clients_[Those(&Client::connected)[actor]]->LoseConnection();
      break;
    case Action::kStart:
      StartDaemon();
      if (random.OneIn(4)) KillSoon(random, random.OneIn(2) ? 6 : 24);
      break;
    case Action::kKill:
      KillSoon(random, 12);
      break;
    case Action::kStop:
      daemon_->Stop();
      break;
    case Action::kOperate:
      Operate(random);
      break;
    case Action::kFault:
      Fault(random);
      break;
  }
  if (daemon_ != nullptr) daemon_->fibers().Pass();
  EndProcesses();
  HearOfStart();
  Reap();
  digest_ = Mix(digest_, (uint64_t{step.salt} << 16) | (uint64_t{step.actor} << 8) |
                             static_cast<uint64_t>(step.action));
  AddToDigest();
  if (check_ == Check::kFull || (check_ == Check::kIncremental && steps_ % 64 == 0)) {
    CheckAll(/*full=*/true);
  } else if (check_ == Check::kIncremental) {
    CheckAll(/*full=*/false);
  }
  return true;
}

}  // namespace gpumemd::simulation
