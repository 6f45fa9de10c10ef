// SPDX-License-Identifier: Apache-2.0
// The daemon under many clients, each in a separate process.
//
// A pair is an Acquire of a retained segment until it is mapped, and its Release. There are two
// floors, each of as many processes in the same run:
//
//   Load/floor   two calls that the daemon answers from its books (GetUsage)
//   Load/driver  the mapping alone, without the broker: import, map, access, unmap
//
// On a GPU every process of all three keeps a CUDA context, as processes do that use their
// mappings. A process without one sets the device up for its first mapping and down with its last,
// some 0.9 ms a pair. On the host backend a mapping costs next to nothing: there this measures the
// daemon and gRPC.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "common/cuda/device_copy.h"
#include "common/mapping/mapping.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"
#include "tests/support/child.h"

namespace gpumem::bench {
namespace {

using testing::Child;
using testing::Hear;
using testing::kParentChannel;
using testing::Say;

constexpr absl::Duration kLoad = absl::Seconds(3);
constexpr uint64_t kLoadBytes = 2 * kMiB;  // of each segment
constexpr int kCrowdTenants = 1000;
constexpr int kCrowdSegments = 10;  // of each

struct Rates {
  double pairs = 0;  // a second, of all clients together
  double p50_us = 0, p99_us = 0, p999_us = 0;
};
std::vector<std::pair<std::string, Rates>>& AllRates() {
  static auto* const all = new std::vector<std::pair<std::string, Rates>>;
  return *all;
}

// Gives each child a descriptor of separate memory, which the bare owner keeps.
void HandOutMemory(absl::Span<const Child> children) {
  const Handed memory = OrDie(
      bed->owner->Make(Kind::kVmm, kLoadBytes, static_cast<int>(children.size()), true), "memory");
  for (size_t i = 0; i < children.size(); ++i) {
    const int fd = memory.fds.at(i).get();
    OrDie(SendMessage(children[i].channel(), "memory", absl::MakeConstSpan(&fd, 1),
                      absl::Now() + absl::Seconds(60)),
          "memory");
  }
}

// Runs so many clients at once for a while, each doing pairs of `what`: "segments", "floor" or
// "driver".
Rates Load(const std::string& runtime_dir, const std::string& tenant, int clients,
           const std::string& what) {
  std::vector<Child> children;
  for (int i = 0; i < clients; ++i) {
    children.push_back(Child::Self({"--role", "loader", runtime_dir, tenant, what, bed->device.uuid,
                                    OnGpu() ? "cuda" : "host"}));
  }
  if (what == "driver") HandOutMemory(children);
  for (Child& child : children) {
    if (Hear(child.channel()) != "ready") OrDie(absl::InternalError("it does not start"), "loader");
  }
  for (Child& child : children) {
    Say(child.channel(), "go");
  }
  Rates rates;
  std::vector<double> us;
  for (Child& child : children) {
    for (absl::string_view each : absl::StrSplit(Hear(child.channel()), ' ')) {
      double value = 0;
      if (each.empty() || !absl::SimpleAtod(each, &value)) continue;
      us.push_back(value);
    }
    rates.pairs += OrDie(
        [&]() -> absl::StatusOr<double> {
          double pairs = 0;
          if (absl::SimpleAtod(Hear(child.channel()), &pairs)) return pairs;
          return absl::InternalError("a loader said nonsense");
        }(),
        "loader");
  }
  if (what == "driver") OrDie(bed->owner->Drop(), "memory");
  // Each client has sent a thousand of its times, evenly from the fastest to the slowest.
  std::sort(us.begin(), us.end());
  const auto at = [&](double q) {
    return us.empty() ? 0 : us[std::min(us.size() - 1, static_cast<size_t>(q * us.size()))];
  };
  rates.p50_us = at(0.5);
  rates.p99_us = at(0.99);
  rates.p999_us = at(0.999);
  return rates;
}

void Run(benchmark::State& state, const std::string& name, const std::string& runtime_dir,
         const std::string& tenant, int clients, const std::string& what) {
  for (auto _ : state) {
    const Rates rates = Load(runtime_dir, tenant, clients, what);
    state.SetIterationTime(1 / std::max(rates.pairs, 1.0));
    state.counters["pairs_per_s"] = rates.pairs;
    state.counters["p50_us"] = rates.p50_us;
    state.counters["p99_us"] = rates.p99_us;
    state.counters["p999_us"] = rates.p999_us;
    AllRates().emplace_back(name, rates);
  }
}

// A daemon with a thousand tenants, each of which holds ten segments.
class Crowd {
 public:
  explicit Crowd(const std::string& backend) {
    std::string config = "[host]\ndevice_bytes = \"256GiB\"\n";
    const auto add = [&config](const std::string& tenant) {
      absl::StrAppend(&config, "[[tenant]]\nname = \"", tenant, "\"\n");
    };
    const auto admit = [&config](const std::string& tenant) {
      absl::StrAppend(&config, "[[rule]]\ntenant = \"", tenant, "\"\ndefault = true\n");
    };
    add("retained");
    for (int i = 0; i < kCrowdTenants; ++i) add(absl::StrCat("t", i));
    admit("retained");
    for (int i = 0; i < kCrowdTenants; ++i) admit(absl::StrCat("t", i));
    daemon_ = OrDie(testing::DaemonProcess::Start({.backend = backend, .config = config}), "crowd");
    for (int i = 0; i < kCrowdTenants; ++i) {
      auto& client = clients_.emplace_back(OrDie(daemon_->Connect(absl::StrCat("t", i)), "crowd"));
      for (Segment& segment : OrDie(client->AcquireMany({.bytes = 1}, kCrowdSegments), "crowd")) {
        segments_.push_back(std::move(segment));
      }
    }
  }
  const std::string& runtime_dir() const { return daemon_->runtime_dir(); }

 private:
  std::unique_ptr<testing::DaemonProcess> daemon_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Segment> segments_;
};

// Made by the first benchmark that needs it, ended by PrintLoad.
std::unique_ptr<Crowd>& TheCrowd() {
  static auto* const crowd = new std::unique_ptr<Crowd>;
  return *crowd;
}

// Measures from a release until a request that waits for just that memory has it.
void GrantAfterRelease(benchmark::State& state) {
  auto holder = OrDie(bed->daemon->Connect("waiting"), "connect");
  auto waiter = OrDie(bed->daemon->Connect("waiting"), "connect");
  for (auto _ : state) {
    auto held = OrDie(holder->Acquire({.bytes = 1}), "hold");
    absl::Time granted;
    std::thread waits([&] {
      auto segment = OrDie(waiter->Acquire({.bytes = 1, .wait = absl::Seconds(60)}), "wait");
      granted = absl::Now();
    });
    // It waits, by the daemon's own word.
    while (OrDie(waiter->GetUsage(), "usage").waiting == 0) std::this_thread::yield();
    const absl::Time released = absl::Now();
    OrDie(held.Release(), "release");
    waits.join();
    Count(state, "grant after release", granted - released);
  }
  Report(state, "grant after release");
}

// Returns a function that maps and unmaps the memory that the parent sends.
std::function<void()> TripOfSentMemory(const DeviceInfo& device) {
  absl::StatusOr<UnixMessage> message =
      ReceiveMessage(kParentChannel, absl::Now() + absl::Seconds(60));
  OrDie(message.status(), "memory");
  if (message->fds.empty()) OrDie(absl::InternalError("no descriptor came"), "memory");
  return BareTrip(device, std::move(message->fds.front()), kLoadBytes);
}

// Returns a pair of `what` with the daemon.
std::function<void()> BrokeredTrip(Client& client, const std::string& what,
                                   const std::string& device_uuid) {
  if (what == "floor") {
    return [&client] {
      OrDie(client.GetUsage().status(), "usage");
      OrDie(client.GetUsage().status(), "usage");
    };
  }
  return [&client, device_uuid] {
    Segment segment =
        OrDie(client.Acquire({.bytes = kLoadBytes, .device = device_uuid}), "acquire");
    OrDie(segment.Release(), "release");
  };
}

}  // namespace

int RunLoader(const std::vector<std::string>& args) {
  const std::string& what = args.at(2);
  const std::string& device_uuid = args.at(3);
  const bool cuda = args.at(4) == "cuda";
  std::unique_ptr<DeviceCopier> context;
  if (cuda) context = OrDie(DeviceCopier::ForCuda(device_uuid), "context");
  std::unique_ptr<Client> client;
  std::function<void()> pair;
  if (what == "driver") {
    DeviceInfo device;
    device.uuid = device_uuid;
    device.backend = cuda ? Backend::kCuda : Backend::kHost;
    pair = TripOfSentMemory(device);
  } else {
    client = OrDie(Client::Connect({.runtime_dir = args.at(0), .tenant = args.at(1)}), "connect");
    pair = BrokeredTrip(*client, what, device_uuid);
  }
  for (int i = 0; i < 20; ++i) pair();
  Say(kParentChannel, "ready");
  Hear(kParentChannel);
  std::vector<double> us;
  const absl::Time begin = absl::Now();
  absl::Time last = begin;
  while (last - begin < kLoad) {
    pair();
    const absl::Time now = absl::Now();
    us.push_back(absl::ToDoubleMicroseconds(now - last));
    last = now;
  }
  const double pairs = static_cast<double>(us.size()) / absl::ToDoubleSeconds(last - begin);
  std::sort(us.begin(), us.end());
  std::string sample;
  constexpr size_t kTold = 1000;
  for (size_t i = 0; i < kTold && i < us.size(); ++i) {
    const size_t index = us.size() <= kTold ? i : i * (us.size() - 1) / (kTold - 1);
    absl::StrAppend(&sample, absl::StrFormat("%.1f ", us[index]));
  }
  Say(kParentChannel, sample);
  Say(kParentChannel, absl::StrCat(pairs));
  return 0;
}

void RegisterLoad(const std::string& backend) {
  for (const int clients : {1, 4, 16, 64}) {
    for (const std::string what : {"floor", "driver", "segments"}) {
      const std::string name = absl::StrCat("Load/", what, "/clients:", clients);
      Add(name, 1, [=](benchmark::State& state) {
        Run(state, name, bed->daemon->runtime_dir(), "retained", clients, what);
      });
    }
  }
  for (const int clients : {1, 16}) {
    const std::string name = absl::StrCat("Load/crowd/clients:", clients);
    Add(name, 1, [=](benchmark::State& state) {
      std::unique_ptr<Crowd>& crowd = TheCrowd();
      if (crowd == nullptr) crowd = std::make_unique<Crowd>(backend);
      Run(state, name, crowd->runtime_dir(), "retained", clients, "segments");
    });
  }
  Add("GrantAfterRelease", 200, GrantAfterRelease);
}

void PrintLoad() {
  TheCrowd().reset();
  const auto find = [](const std::string& name) {
    for (const auto& [each, rates] : AllRates()) {
      if (each == name) return rates;
    }
    return Rates{};
  };
  const bool host = bed->device.backend == Backend::kHost;
  bool headed = false;
  for (const auto& [name, rates] : AllRates()) {
    const bool is_floor = absl::StrContains(name, "/floor/") || absl::StrContains(name, "/driver/");
    if (is_floor) continue;
    const std::string clients = name.substr(name.rfind('/'));
    const Rates calls = find(absl::StrCat("Load/floor", clients));
    const Rates driver = find(absl::StrCat("Load/driver", clients));
    if (!std::exchange(headed, true)) {
      std::cout << (host ? "\nthe host backend, no GPU\n"
                         : "\non a GPU, each with a CUDA context\n")
                << absl::StreamFormat("%-28s %10s %9s %9s %9s %10s %7s %11s %7s\n",
                                      "acquire + release, retained", "pairs/s", "p50 us", "p99 us",
                                      "p999 us", "calls/2 /s", "ratio", "mappings/s", "ratio");
    }
    const auto ratio = [&rates = rates](const Rates& floor) {
      return rates.pairs > 0 ? floor.pairs / rates.pairs : 0;
    };
    std::cout << absl::StreamFormat("%-28s %10.0f %9.1f %9.1f %9.1f %10.0f %6.2fx %11.0f %6.2fx\n",
                                    name, rates.pairs, rates.p50_us, rates.p99_us, rates.p999_us,
                                    calls.pairs, ratio(calls), driver.pairs, ratio(driver));
  }
  if (headed && host) {
    std::cout << "to reach on 16 cores: 30,000 pairs a second; p99 1 ms of 64 clients\n";
  }
  for (const std::string clients : {"/clients:1", "/clients:16"}) {
    const Rates crowd = find("Load/crowd" + clients), plain = find("Load/segments" + clients);
    if (crowd.pairs == 0 || plain.pairs == 0) continue;
    std::cout << absl::StreamFormat(
        "%d tenants, %d segments, %s: %.2f times the cost (to reach: 1.2)\n", kCrowdTenants,
        kCrowdTenants * kCrowdSegments, clients.substr(1), plain.pairs / crowd.pairs);
  }
  const Samples& grant = AllSamples()["grant after release"];
  if (!grant.empty()) {
    std::cout << absl::StreamFormat(
        "released until granted to a waiter: median %.1f us, p99 %.1f us\n", grant.Median(),
        grant.Quantile(0.99));
  }
}

}  // namespace gpumem::bench
