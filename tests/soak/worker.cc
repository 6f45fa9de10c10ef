// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/worker.h"

#include <poll.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "gpumem/suspend.h"
#include "tests/soak/mixed.h"
#include "tests/soak/tally.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"

namespace gpumem::soak {
namespace {

using testing::kParentChannel;
using testing::Say;

constexpr absl::Duration kTell = absl::Seconds(1);
// A daemon that restarts, or is under attack, may refuse a few times.
constexpr absl::Duration kConnects = absl::Seconds(30);
constexpr uint64_t kServedBytes = 2 * kMiB;
constexpr int kServed = 3;

// Runs `step` until the parent says something, with a pause after each.
void RunUntilTold(absl::Duration pause, Tally& tally, const std::function<void()>& step,
                  const std::function<uint64_t()>& held) {
  absl::Time told = absl::Now();
  while (true) {
    pollfd parent = {.fd = kParentChannel, .events = POLLIN, .revents = 0};
    if (poll(&parent, 1, static_cast<int>(absl::ToInt64Milliseconds(pause))) != 0) break;
    step();
    if (absl::Now() - told < kTell) continue;
    tally.Tell(held());
    told = absl::Now();
  }
}

// Memory that operators suspend and demote. They lock it meanwhile.
void Serve(Client& client, absl::Duration pause, Tally& tally) {
  std::vector<Segment> segments;
  for (int i = 0; i < kServed; ++i) {
    auto segment = client.Acquire({.bytes = kServedBytes, .wait = absl::Minutes(1), .tag = "kv"});
    if (tally.Count("acquire", segment.status())) segments.push_back(*std::move(segment));
  }
  std::vector<uint64_t> seeds;
  for (const Segment& segment : segments) {
    seeds.push_back(segment.lease_id());
    if (!FillBeginning(segment, seeds.back()).ok()) tally.Wrong("served memory cannot be filled");
  }
  absl::Mutex mutex;
  bool locked = false;  // by the thread of the watch, which alone uses it
  const auto all = [&] {
    mutex.Lock();
    locked = true;
    std::vector<Segment*> pointers;
    for (Segment& segment : segments) pointers.push_back(&segment);
    return pointers;
  };
  auto watch = client.ServeSuspensions(
      {.segments = all,
       .suspended = [&](SuspensionCause) { tally.Add("suspended-by-operator"); },
       .resumed = [&] { tally.Add("resumed-by-operator"); },
       .failed =
           [&](const absl::Status& status) {
             tally.Count("served", status, {absl::StatusCode::kFailedPrecondition});
           },
       .pause = [] { return absl::OkStatus(); },
       .proceed = [&] { tally.Add("moved-by-operator"); },
       .done =
           [&] {
             if (std::exchange(locked, false)) mutex.Unlock();
           }});
  tally.Count("serve", watch.status());
  RunUntilTold(
      pause * 10, tally,
      [&] {
        client.ReportActivity();
        if (!mutex.TryLock()) return;
        for (size_t i = 0; i < segments.size(); ++i) {
          if (segments[i].suspended() || segments[i].demoted()) continue;
          const absl::Status same = CheckBeginning(segments[i], seeds[i]);
          if (!same.ok()) tally.Wrong(absl::StrCat("served memory: ", same.ToString()));
          tally.Add("check");
        }
        mutex.Unlock();
      },
      [&] { return segments.size() * kServedBytes; });
}

// Revocable memory: gives revoked segments back in time.
void TakeSpot(Client& client, absl::Duration pause, uint64_t seed, Tally& tally) {
  std::mt19937_64 random(seed);
  absl::Mutex mutex;
  std::vector<Segment> segments;
  auto watch = client.StartWatch({.revocation = [&](const Revocation& revocation) {
    absl::MutexLock lock(&mutex);
    for (const uint64_t lease : revocation.lease_ids) {
      std::erase_if(segments, [lease](const Segment& each) { return each.lease_id() == lease; });
    }
    tally.Add("revoked");
  }});
  tally.Count("watch", watch.status());
  RunUntilTold(
      pause, tally,
      [&] {
        absl::MutexLock lock(&mutex);
        if (random() % 3 == 0 && !segments.empty()) {
          tally.Count("release", segments.back().Release());
          segments.pop_back();
          return;
        }
        auto segment = client.Acquire({.bytes = kMiB, .revocable = true});
        if (tally.Count("acquire-revocable", segment.status())) {
          segments.push_back(*std::move(segment));
        }
      },
      [&] {
        absl::MutexLock lock(&mutex);
        return segments.size() * kMiB;
      });
}

}  // namespace

const std::vector<std::string>& WorkerOperations() {
  static const auto* const names = [] {
    auto* const all = new std::vector<std::string>(MixedOperations());
    all->insert(all->end(), {"suspended-by-operator", "resumed-by-operator", "moved-by-operator",
                             "acquire-revocable", "revoked"});
    return all;
  }();
  return *names;
}

int RunWorker(const std::vector<std::string>& args) {
  if (args.size() != 6) return 2;
  const std::string& role = args[0];
  const uint64_t seed = std::strtoull(args[4].c_str(), nullptr, 10);
  const absl::Duration pause = absl::Milliseconds(std::atoi(args[5].c_str()));
  Tally tally;
  ConnectOptions options = testing::PatientOptions(args[1]);
  options.tenant = args[3];
  options.name = "soak-" + role;
  if (role == "mixed") {
    Mixed mixed({.connect = options, .mailbox = args[2], .seed = seed}, tally);
    if (!testing::Eventually([&] { return mixed.Connect(); }, kConnects)) {
      tally.Tell(0);
      return 1;
    }
    Say(kParentChannel, "ready");
    RunUntilTold(
        pause, tally, [&] { mixed.Step(); }, [&] { return mixed.held_bytes(); });
    mixed.End();
  } else {
    absl::StatusOr<std::unique_ptr<Client>> client;
    const bool connected = testing::Eventually(
        [&] {
          client = Client::Connect(options);
          return tally.Count("connect", client.status());
        },
        kConnects);
    if (!connected) {
      tally.Tell(0);
      return 1;
    }
    Say(kParentChannel, "ready");
    if (role == "served") Serve(**client, pause, tally);
    if (role == "spot") TakeSpot(**client, pause, seed, tally);
  }
  tally.Tell(0);
  Say(kParentChannel, "ended");
  return 0;
}

}  // namespace gpumem::soak
