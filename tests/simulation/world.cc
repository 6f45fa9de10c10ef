// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/world.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/views.h"

namespace gpumemd::simulation {
namespace {

constexpr std::array<const char*, kActions> kNames = {"run",  "act",  "read",    "advance",
                                                      "die",  "tell", "lose",    "start",
                                                      "kill", "stop", "operate", "fault"};
// How often each action is chosen, in 1,000.
constexpr std::array<size_t, kActions> kWeights = {480, 300, 60, 60, 5, 30, 5, 40, 4, 1, 8, 7};

// Until all threads of a daemon wait, while nothing else happens.
constexpr size_t kMostRuns = 20'000;

constexpr std::array<const char*, 3> kTenants = {"a", "b", "a-child"};

Quota QuotaOf(const std::string& tenant, Random& random) {
  Quota quota;
  if (random.OneIn(3)) quota.limit_bytes = kGranule * (3 + random.Below(10));
  if (random.OneIn(6)) quota.total_limit_bytes = kGranule * (4 + random.Below(14));
  if (random.OneIn(4)) quota.max_retained_bytes = kGranule * random.Below(4);
  if (random.OneIn(8)) quota.max_segments = static_cast<uint32_t>(3 + random.Below(8));
  if (random.OneIn(6)) quota.tier_limit_bytes = kGranule * random.Below(6);
  if (random.OneIn(6)) quota.guarantee_bytes = kGranule * random.Below(3);
  if (random.OneIn(8)) quota.max_waiting = static_cast<uint32_t>(1 + random.Below(2));
  if (random.OneIn(8)) quota.max_publications = 1;
  if (random.OneIn(8)) quota.scrub = true;
  if (random.OneIn(8)) quota.release = ReleasePolicy::kOnExit;
  quota.priority = static_cast<int32_t>(random.Below(3));
  if (tenant == "a-child") quota.parent = "a";
  return quota;
}

}  // namespace

std::string ToString(const Step& step) {
  return absl::StrCat(kNames[static_cast<size_t>(step.action)], " ", static_cast<int>(step.actor),
                      " ", step.salt);
}

World::World(uint64_t seed, Check check)
    : check_(check), driver_([&] {
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
  surroundings_.tier_bytes = random.OneIn(4) ? 0 : kGranule * (2 + random.Below(10));
  surroundings_.secrets = Random(Mix(seed, 2));
  if (random.OneIn(8)) surroundings_.bounds.max_segments = 8;
  if (random.OneIn(8)) surroundings_.bounds.max_leases_per_session = 5;
  calm_ = std::array<size_t, 4>{1, 2, 6, 20}[random.Below(4)];
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
  for (size_t i = 2 + random.Below(5); i > 0; --i) {
    clients_.push_back(
        std::make_unique<Client>(kTenants[random.Below(kTenants.size())], &surroundings_, &hall_));
  }
}

World::~World() {
  if (daemon_ != nullptr) {
    daemon_->KillIn(0, std::nullopt);
    daemon_->Reap();
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
      *actors = clients_.size();
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
    const bool ends = static_cast<Action>(action) == Action::kKill ||
                      static_cast<Action>(action) == Action::kLose;
    if (ends && calm_ > 0 && !random.OneIn(calm_)) continue;
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
      daemon_->fibers().Run(actor);
      break;
    case Action::kAct:
      if (!clients_[actor]->alive()) {
        clients_[actor]->Begin(static_cast<uid_t>(1000 + actor));
        surroundings_.alive[clients_[actor]->pid()] = clients_[actor]->details();
      } else {
        clients_[actor]->Act(daemon_.get(), random, /*calm=*/false);
      }
      break;
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
      break;
    case Action::kKill: {
      std::optional<Tear> tear;
      if (random.OneIn(2)) tear = Tear{.counts = random.OneIn(2), .at = random.Next() % 100'000};
      daemon_->KillIn(random.Below(12), tear);
      ++kills_;
      break;
    }
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
  EndProcesses();
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

void World::EndProcesses() {
  for (const auto& [pid, kill] : std::exchange(surroundings_.to_end, {})) {
    for (const auto& client : clients_) {
      if (client->pid() != pid || !kill) continue;  // it ignores SIGTERM
      gone_.push_back(pid);
      surroundings_.alive.erase(pid);
      client->Die();
    }
  }
}

void World::Reap() {
  if (daemon_ == nullptr || !(daemon_->dead() || daemon_->stopped())) return;
  const bool dead = daemon_->dead();
  if (dead && !store_.unkept.empty()) hall_.loses_memory = true;
  if (!daemon_->Reap()) hall_.Violate("a thread of the daemon waits for ever");
  daemon_.reset();
  if (!store_.unkept.empty()) hall_.loses_memory = true;
  store_.unkept.clear();
}

void World::StartDaemon() {
  daemon_ = std::make_unique<Daemon>(&surroundings_);
  gone_.clear();  // it looks by itself
  const absl::Status started = daemon_->Start();
  if (!started.ok()) {
    hall_.Violate(absl::StrCat("the next daemon does not start: ", started.ToString()));
    daemon_->KillIn(0, std::nullopt);
    return;
  }
  if (!daemon_->dead() && !daemon_->restored().lost.empty() && !hall_.loses_memory) {
    hall_.Violate(absl::StrCat("segment ", ToInt(daemon_->restored().lost.front().segment),
                               " was lost with the daemon"));
  }
}

void World::Operate(Random& random) {
  const std::string tenant = kTenants[random.Below(kTenants.size())];
  const size_t what = random.Below(8);
  daemon_->Run([this, tenant, what, random]() mutable {
    if (daemon_->dead()) return;
    BrokerOperators operators = daemon_->broker().operators();
    switch (what) {
      case 0:
        operators.Trim(tenant, "", kGranule * random.Below(3)).IgnoreError();
        break;
      case 1:
        operators.SetDraining(random.OneIn(8));
        break;
      case 2:
        operators.Unpublish(absl::StrCat(tenant, "/w", random.Below(2))).IgnoreError();
        break;
      default: {
        const Quota quota = QuotaOf(tenant, random);
        if (!operators.CheckQuota(tenant, quota, quota).ok()) return;
        surroundings_.tenants[tenant] = quota;
        operators.OverrideQuota(tenant, quota).IgnoreError();
      }
    }
  });
}

void World::Fault(Random& random) {
  switch (random.Below(4)) {
    case 0:
      surroundings_.failures = 1 + random.Below(3);
      break;
    case 1:
      store_.places = random.OneIn(4) ? random.Below(8) : SIZE_MAX;
      break;
    case 2:
      store_.refuses = !random.OneIn(8);
      break;
    default:
      driver_.foreign = random.OneIn(4) ? kGranule * random.Below(4) : 0;
  }
}

void World::Finish() {
  surroundings_.failures = 0;
  store_.places = SIZE_MAX;
  driver_.foreign = 0;
  if (daemon_ != nullptr) {
    daemon_->CancelKill();
    daemon_->Run([this] {
      if (!daemon_->dead()) daemon_->broker().operators().SetDraining(false);
    });
  }
  Random random(digest_);
  const auto settle = [&](bool calm) {
    for (size_t turn = 0; turn < 3000 && !violation(); ++turn) {
      if (daemon_ == nullptr) StartDaemon();
      while (!gone_.empty()) {
        daemon_->ProcessGone(gone_.back());
        gone_.pop_back();
      }
      bool busy = false;
      size_t runs = 0;
      while (daemon_ != nullptr && daemon_->fibers().CountReady() > 0) {
        if (++runs > kMostRuns) return hall_.Violate("a thread of the daemon does not wait");
        daemon_->fibers().Run(runs % daemon_->fibers().CountReady());
        EndProcesses();
        Reap();
        busy = true;
      }
      for (const auto& client : clients_) {
        while (client->CanRead()) client->Read();
        if (!client->alive()) continue;
        const bool acts = client->CanHear() || !client->connected() || client->busy();
        client->Act(daemon_.get(), random, calm);
        busy |= acts;
      }
      if (!busy) return;
      surroundings_.now += absl::Milliseconds(500);
    }
    std::string left;
    for (const auto& client : clients_) absl::StrAppend(&left, "; ", client->Describe());
    hall_.Violate(absl::StrCat("calls under way do not come to an end", left));
  };
  settle(/*calm=*/true);
  if (!violation()) CheckAll(/*full=*/true);
  if (!violation()) CheckIdle();
  for (const auto& client : clients_) {
    if (!client->alive()) continue;
    gone_.push_back(client->pid());
    surroundings_.alive.erase(client->pid());
    client->Die();
  }
  if (daemon_ != nullptr && !violation()) {
    daemon_->Run([this] {
      if (daemon_->dead()) return;
      const auto views = daemon_->broker().views().ListPublications("");
      if (!views.ok()) return;
      for (const PublicationView& view : *views) {
        daemon_->broker()
            .operators()
            .Unpublish(absl::StrCat(view.tenant, "/", view.name))
            .IgnoreError();
      }
    });
  }
  settle(/*calm=*/true);
  if (!violation()) CheckEmpty();
}

}  // namespace gpumemd::simulation
