// SPDX-License-Identifier: Apache-2.0
// What happens around a simulated daemon: its starts and ends, its operator, faults, and how a
// world ends.
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/suspension/suspensions.h"
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
  if (dead) {
    ++kills_;
    ++hall_.counts[daemon_->has_served() ? "daemon killed" : "daemon killed while it starts"];
    if (daemon_->died_at_allocation()) ++hall_.counts["daemon killed at an allocation"];
  }
  if (!daemon_->Reap()) {
    hall_.Violate("a thread of the daemon waits for ever");
    static_cast<void>(daemon_.release());  // its threads refer to it
    return;
  }
  daemon_.reset();
  if (!store_.unkept.empty()) hall_.loses_memory = true;
  store_.unkept.clear();
}

void World::KillSoon(Random& random, size_t moments) {
  if (random.OneIn(3) && allocations_kill_) {
    // Few: hash tables grow by the addresses of their memory, so distant numbers are not repeated.
    const uint64_t most = random.OneIn(2) ? 16 : 64;
    surroundings_.fatal_allocation = surroundings_.allocations + 1 + random.Below(most);
    return;
  }
  std::optional<Tear> tear;
  if (random.OneIn(2)) tear = Tear{.counts = random.OneIn(2), .at = random.Next() % 100'000};
  daemon_->KillIn(random.Below(moments), tear);
}

void World::StartDaemon() {
  daemon_ = std::make_unique<Daemon>(&surroundings_);
  gone_.clear();  // it looks by itself
  daemon_->Start();
}

void World::HearOfStart() {
  if (daemon_ == nullptr) return;
  const std::optional<absl::Status> started = daemon_->TakeStarted();
  if (!started) return;
  if (!started->ok()) {
    hall_.Violate(absl::StrCat("the next daemon does not start: ", started->ToString()));
    daemon_->KillIn(0, std::nullopt);
    return;
  }
  ++hall_.counts["daemon started"];
  if (!daemon_->restored().lost.empty() && !hall_.loses_memory) {
    hall_.Violate(absl::StrCat("segment ", ToInt(daemon_->restored().lost.front().segment),
                               " was lost with the daemon"));
  }
}

void World::Operate(Random& random) {
  const std::string tenant = kTenants[random.Below(kTenants.size())];
  // One that there has been, or not.
  std::string publication = absl::StrCat(tenant, "/w", random.Below(2));
  if (!hall_.published.empty() && !random.OneIn(4)) {
    const auto any = std::next(hall_.published.begin(),
                               static_cast<ptrdiff_t>(random.Below(hall_.published.size())));
    publication = absl::StrCat(std::get<0>(any->first), "/", std::get<1>(any->first));
  }
  const size_t what = random.Below(12);
  if (what == 5 || what == 6) {
    // Programs that share memory go to sleep and wake up together.
    hall_.fashion = hall_.fashion == CallKind::kSuspend ? CallKind::kResume : CallKind::kSuspend;
    if (random.OneIn(3)) hall_.fashion.reset();
    return;
  }
  daemon_->Run([this, tenant, publication, what, random]() mutable {
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
        operators.Unpublish(publication).IgnoreError();
        break;
      case 3: {
        BrokerSuspensions::PublicationMoved moved;
        daemon_->broker().suspensions().SuspendPublication(publication, moved).IgnoreError();
        break;
      }
      case 4: {
        BrokerSuspensions::PublicationMoved moved;
        daemon_->broker()
            .suspensions()
            .ResumePublication(
                publication, surroundings_.now + absl::Seconds(random.Below(4)),
                [this] { return daemon_->dead(); }, moved)
            .IgnoreError();
        break;
      }
      default: {
        const Quota quota = QuotaOf(tenant, random);
        if (!operators.CheckQuota(tenant, quota, quota).ok()) return;
        surroundings_.tenants[tenant] = quota;
        operators.OverrideQuota(tenant, {quota}).IgnoreError();
      }
    }
  });
}

void World::Fault(Random& random) {
  switch (random.Below(6)) {
    case 4:
    case 5: {
      Client& client = *clients_[random.Below(clients_.size())];
      const absl::Duration time =
          absl::Milliseconds(100 + random.Below(random.OneIn(3) ? 4000 : 800));
      client.FillSocket(surroundings_.now + time);
      break;
    }
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
  surroundings_.fatal_allocation = 0;
  if (daemon_ != nullptr) {
    daemon_->CancelKill();
    daemon_->fibers().EndStalls();
  }
  Random random(digest_);
  const auto settle = [&](bool calm) {
    for (size_t turn = 0; turn < 3000 && !violation(); ++turn) {
      if (daemon_ == nullptr) StartDaemon();
      while (daemon_->accepts() && !gone_.empty()) {
        daemon_->ProcessGone(gone_.back());
        gone_.pop_back();
      }
      // Operators' calls that had begun have ended by then.
      if (turn == 1) {
        daemon_->Run([this] {
          daemon_->AwaitStart();
          if (!daemon_->dead()) daemon_->broker().operators().SetDraining(false);
        });
      }
      bool busy = turn == 0 || !gone_.empty();
      size_t runs = 0;
      while (daemon_ != nullptr && daemon_->fibers().CountReady() > 0) {
        if (++runs > kMostRuns) return hall_.Violate("a thread of the daemon does not wait");
        daemon_->fibers().Run(runs % daemon_->fibers().CountReady());
        EndProcesses();
        HearOfStart();
        Reap();
        if (violation()) return;
        busy = true;
      }
      for (const auto& client : clients_) {
        while (client->CanRead()) client->Read();
        if (!client->alive()) continue;
        const bool acts = client->CanHear() || !client->connected() || client->busy();
        client->Act(daemon_.get(), random, calm);
        busy |= acts;
      }
      EndProcesses();
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
