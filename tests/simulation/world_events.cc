// SPDX-License-Identifier: Apache-2.0
// What happens around a simulated daemon: its starts and ends, its operator, faults, and how a world
// ends.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/views.h"
#include "tests/simulation/world.h"

namespace gpumemd::simulation {
namespace {

// Until all threads of a daemon wait, while nothing else happens.
constexpr size_t kMostRuns = 20'000;

}  // namespace

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
