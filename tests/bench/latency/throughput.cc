// SPDX-License-Identifier: Apache-2.0
// Acquire and release of retained memory by many clients, beside as many that map and unmap without
// the broker.
//
// Each client is a process that does both, in slices of time in turn: the same processes with the
// same CUDA contexts, on the same CPUs. A client that waits for its slice sleeps.
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/cuda/device_copy.h"
#include "common/unix_channel.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/latency.h"
#include "tests/bench/latency/process_stats.h"
#include "tests/support/child.h"

namespace gpumem::bench {
namespace {

using testing::Child;
using testing::Hear;
using testing::kParentChannel;
using testing::Say;

constexpr uint64_t kBytes = 2 * kMiB;  // of each segment
constexpr size_t kToldTimes = 200;     // of a client's slice
// From the parent's word until the slice begins: all clients are awake by then.
constexpr absl::Duration kNotice = absl::Milliseconds(10);

struct Slice {
  double pairs_per_s = 0;
  double switches = 0;  // a pair, of clients and daemon
};

// So many processes, which last as long as this.
class Clients {
 public:
  explicit Clients(int count) {
    for (int i = 0; i < count; ++i) {
      children_.push_back(Child::Self({"--role", "trips", bed->daemon->runtime_dir(),
                                       bed->device.uuid, OnGpu() ? "cuda" : "host"}));
    }
    const Handed memory = OrDie(bed->owner->Make(Kind::kVmm, kBytes, count, true), "memory");
    for (int i = 0; i < count; ++i) {
      const int fd = memory.fds.at(static_cast<size_t>(i)).get();
      OrDie(SendMessage(children_[static_cast<size_t>(i)].channel(), "memory",
                        absl::MakeConstSpan(&fd, 1), absl::Now() + absl::Seconds(60)),
            "memory");
    }
    for (const Child& child : children_) {
      const std::string said = Hear(child.channel());
      if (said != "ready") OrDie(absl::InternalError(said), "a client");
    }
  }
  ~Clients() { OrDie(bed->owner->Drop(), "drop"); }

  // Runs a slice of `what` in all of them, and adds their times to `times`.
  Slice Run(const std::string& what, absl::Duration length, Samples& times) const {
    const double before = CountSwitches();
    const absl::Time begin = absl::Now() + kNotice;
    for (const Child& child : children_) {
      Say(child.channel(),
          absl::StrCat(what, " ", absl::ToUnixNanos(begin), " ", absl::ToInt64Nanoseconds(length)));
    }
    Slice slice;
    double pairs = 0;
    for (const Child& child : children_) {
      const std::string said = Hear(child.channel());
      const std::vector<absl::string_view> words = absl::StrSplit(said, ' ', absl::SkipEmpty());
      std::vector<double> values;
      for (absl::string_view word : words) {
        double value = 0;
        if (!absl::SimpleAtod(word, &value)) OrDie(absl::InternalError(said), "a client");
        values.push_back(value);
      }
      // Pairs, seconds, then some of the times.
      if (values.size() < 2) OrDie(absl::InternalError(said), "a client");
      pairs += values[0];
      slice.pairs_per_s += values[0] / values[1];
      for (size_t i = 2; i < values.size(); ++i) times.AddValue(values[i]);
    }
    if (pairs > 0) slice.switches = (CountSwitches() - before) / pairs;
    return slice;
  }

 private:
  double CountSwitches() const {
    uint64_t sum = ContextSwitches(bed->daemon->pid());
    for (const Child& child : children_) sum += ContextSwitches(child.pid());
    return static_cast<double>(sum);
  }

  std::vector<Child> children_;
};

// A way to end the lease: by Release() or by the destructor.
struct Way {
  std::string name;  // the clients' word, too
  PairSamples rates;
  Samples times, switches;
};

struct Result {
  int clients = 0;
  std::vector<Way> ways;
  Samples floor_times;
};
std::vector<Result>& Results() {
  static auto* const all = new std::vector<Result>;
  return *all;
}

void Throughput(benchmark::State& state, int clients, absl::Duration length) {
  Result result = {.clients = clients, .ways = {}, .floor_times = {}};
  result.ways.push_back({.name = "release", .rates = {}, .times = {}, .switches = {}});
  result.ways.push_back({.name = "destroy", .rates = {}, .times = {}, .switches = {}});
  const Clients processes(clients);
  for (auto _ : state) {
    Samples& floor_times = result.floor_times;
    for (Way& way : result.ways) {
      // In a row: floor, call, floor, call, with a floor for each.
      const double floor = processes.Run("floor", length, floor_times).pairs_per_s;
      const Slice call = processes.Run(way.name, length, way.times);
      way.rates.Add(floor, call.pairs_per_s);
      way.switches.AddValue(call.switches);
    }
    std::reverse(result.ways.begin(), result.ways.end());
    state.SetIterationTime(absl::ToDoubleSeconds(length));
  }
  std::sort(result.ways.begin(), result.ways.end(),
            [](const Way& a, const Way& b) { return a.name > b.name; });
  for (const Way& way : result.ways) {
    const PairSamples::Summary summary = way.rates.Summarize();
    const auto set = [&](const std::string& what, double value) {
      state.counters[absl::StrCat(way.name, "_", what)] = value;
    };
    set("pairs_per_s", summary.call_median);
    set("floor_pairs_per_s", summary.floor_median);
    set("ratio", summary.ratio);
    set("ratio_q1", summary.ratio_q1);
    set("ratio_q3", summary.ratio_q3);
    set("p50_us", way.times.Median());
    set("p99_us", way.times.Quantile(0.99));
    set("switches", way.switches.Median());
  }
  Results().push_back(std::move(result));
}

// Returns one trip of `what`.
std::function<void()> TripOf(const std::string& what, Client& client, const std::string& uuid) {
  return [&client, uuid, destroys = what == "destroy"] {
    Segment segment = OrDie(client.Acquire({.bytes = kBytes, .device = uuid}), "acquire");
    if (!destroys) OrDie(segment.Release(), "release");
  };
}

void WaitUntil(absl::Time time) {
  while (absl::Now() < time) std::this_thread::yield();
}

}  // namespace

int RunTrips(const std::vector<std::string>& args) {
  const std::string& uuid = args.at(1);
  DeviceInfo device;
  device.uuid = uuid;
  device.backend = args.at(2) == "cuda" ? Backend::kCuda : Backend::kHost;
  std::unique_ptr<DeviceCopier> context;
  if (device.backend == Backend::kCuda) context = OrDie(DeviceCopier::ForCuda(uuid), "context");
  UnixMessage memory = OrDie(ReceiveMessage(kParentChannel, absl::Now() + absl::Seconds(60)), "fd");
  if (memory.fds.empty()) OrDie(absl::InternalError("no descriptor came"), "memory");
  const std::function<void()> floor = BareTrip(device, std::move(memory.fds.front()), kBytes);
  const auto client =
      OrDie(Client::Connect({.runtime_dir = args.at(0), .tenant = "retained"}), "connect");
  for (int i = 0; i < 20; ++i) {
    floor();
    TripOf("release", *client, uuid)();
  }
  Say(kParentChannel, "ready");
  while (true) {
    // Ends with the parent, or at its end.
    absl::StatusOr<UnixMessage> order = ReceiveMessage(kParentChannel, absl::InfiniteFuture());
    if (!order.ok()) return 0;
    const std::vector<std::string> words = absl::StrSplit(order->bytes, ' ');
    int64_t begin_ns = 0, length_ns = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[1], &begin_ns) ||
        !absl::SimpleAtoi(words[2], &length_ns)) {
      return 2;
    }
    const std::function<void()> trip =
        words[0] == "floor" ? floor : TripOf(words[0], *client, uuid);
    const absl::Time begin = absl::FromUnixNanos(begin_ns);
    WaitUntil(begin);
    std::vector<double> us;
    absl::Time last = absl::Now();
    const absl::Time first = last, end = begin + absl::Nanoseconds(length_ns);
    do {
      trip();
      const absl::Time now = absl::Now();
      us.push_back(absl::ToDoubleMicroseconds(now - last));
      last = now;
    } while (last < end);
    std::string answer = absl::StrCat(us.size(), " ", absl::ToDoubleSeconds(last - first));
    std::sort(us.begin(), us.end());
    for (size_t i = 0; i < kToldTimes; ++i) {
      absl::StrAppendFormat(&answer, " %.1f", us[i * (us.size() - 1) / (kToldTimes - 1)]);
    }
    Say(kParentChannel, answer);
  }
}

void RegisterThroughput(const LatencyRun& run) {
  const std::vector<int> counts = run.quick ? std::vector<int>{1, 2} : std::vector<int>{4, 16};
  const absl::Duration length = absl::Milliseconds(run.quick ? 20 : 200);
  for (const int clients : counts) {
    Add(absl::StrCat("Latency/throughput/clients:", clients), run.quick ? 3 : 20,
        [=](benchmark::State& state) { Throughput(state, clients, length); });
  }
}

void PrintThroughput() {
  if (Results().empty()) return;
  std::cout
      << "\nPairs of acquire and release of a retained 2MiB, "
      << (OnGpu() ? "each client with a CUDA context" : "host backend, no GPU")
      << ": medians of slices in turn. The floor: import, map, access and unmap without the "
         "broker. The ratio of the rates is above 1 where pairs are faster. Switches: of "
         "clients and daemon, a pair.\n\n"
         "| clients | lease ends by | floor pairs/s | pairs/s | ratio | quartiles | to reach | "
         "p50 us | p99 us | floor p50 us | switches |\n"
         "|---:|---|---:|---:|---:|---|---|---:|---:|---:|---:|\n";
  for (const Result& result : Results()) {
    for (const Way& way : result.ways) {
      const PairSamples::Summary s = way.rates.Summarize();
      std::cout << absl::StreamFormat(
          "| %d | %s | %.0f | %.0f | %.2f | %.2f to %.2f | %s | %.1f | %.1f | %.1f | %.1f |\n",
          result.clients, way.name == "destroy" ? "destructor" : "release", s.floor_median,
          s.call_median, s.ratio, s.ratio_q1, s.ratio_q3,
          result.clients == 16  ? "0.97"
          : result.clients == 4 ? "0.8"
                                : "",
          way.times.Median(), way.times.Quantile(0.99), result.floor_times.Median(),
          way.switches.Median());
    }
  }
}

}  // namespace gpumem::bench
