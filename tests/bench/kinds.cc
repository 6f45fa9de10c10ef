// SPDX-License-Identifier: Apache-2.0
// Every kind beside its bare calls: two processes, an owner and an importer, with no broker.
//
// Beside the bare calls, gpumem's acquire asks, charges, and sends. It also clears memory of kinds
// ipc and mempool first, which the driver need not have done.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/unix_channel.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"
#include "tests/support/child.h"

namespace gpumem::bench {
namespace {

using testing::Child;
using testing::Eventually;

constexpr uint64_t kSizes[] = {2 * kMiB, 64 * kMiB, kGiB};

std::string Name(const char* what, Kind kind, uint64_t bytes) {
  return absl::StrCat("kinds/", std::string(KindName(kind)), "/", what, "/", SizeName(bytes));
}

// Kinds of the first device, and of the host memory that comes with it.
std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds = bed->device.kinds;
  for (const DeviceInfo& device : bed->devices) {
    if (device.kinds.front() == Kind::kPinned) kinds.push_back(Kind::kPinned);
  }
  return kinds;
}

std::unique_ptr<BareImporter> Importer(Kind kind) {
  return OrDie(BareImporter::For(kind, bed->device, *bed->owner), "importer");
}

void FloorAcquire(benchmark::State& state, Kind kind, uint64_t bytes) {
  const std::string name = Name("floor-fresh", kind, bytes);
  const auto importer = Importer(kind);
  for (auto _ : state) {
    Count(state, name, Time([&] {
            const Handed handed = OrDie(bed->owner->Make(kind, bytes, 1, true), "make");
            OrDie(importer->Open(handed, bytes), "open");
          }));
    OrDie(importer->Close(), "close");
    OrDie(bed->owner->Drop(), "drop");
  }
  Report(state, name);
}

void FloorOpen(benchmark::State& state, Kind kind, uint64_t bytes) {
  const std::string open = Name("floor-open", kind, bytes);
  const auto importer = Importer(kind);
  const Handed handed = OrDie(bed->owner->Make(kind, bytes, 1, true), "make");
  for (auto _ : state) {
    Count(state, open, Time([&] { OrDie(importer->Open(handed, bytes), "open"); }));
    Count(state, Name("floor-close", kind, bytes), Time([&] { OrDie(importer->Close(), "close"); }),
          false);
  }
  OrDie(bed->owner->Drop(), "drop");
  Report(state, open);
}

void Acquire(benchmark::State& state, Kind kind, uint64_t bytes) {
  const std::string name = Name("fresh", kind, bytes);
  // Holds a segment, so that the context of kinds ipc and mempool is not made for each call.
  const Segment holds_context =
      OrDie(bed->retained->Acquire({.bytes = 1, .kind = kind}), "acquire");
  const auto release = [&](Segment& segment) {
    Count(state, Name("release", kind, bytes), Time([&] { OrDie(segment.Release(), "release"); }),
          false);
  };
  std::vector<Segment> pooled;
  for (auto _ : state) {
    Segment segment;
    Count(state, name, Time([&] {
            segment = OrDie(bed->fresh->Acquire({.bytes = bytes, .kind = kind}), "acquire");
          }));
    if (segment.reused()) OrDie(absl::InternalError("not a fresh segment"), name);
    if (kind == Kind::kMempool) {  // the next would be this one again
      pooled.push_back(std::move(segment));
      continue;
    }
    release(segment);
    Settle(*bed->fresh);
  }
  for (Segment& segment : pooled) release(segment);
  Report(state, name);
}

void AcquireRetained(benchmark::State& state, Kind kind, uint64_t bytes) {
  const std::string name = Name("retained", kind, bytes);
  const AcquireOptions options = {.bytes = bytes, .kind = kind};
  OrDie(OrDie(bed->retained->Acquire(options), "acquire").Release(), "release");
  for (auto _ : state) {
    Segment segment;
    Count(state, name, Time([&] { segment = OrDie(bed->retained->Acquire(options), "acquire"); }));
    if (!segment.reused()) OrDie(absl::InternalError("not a retained segment"), name);
    OrDie(segment.Release(), "release");
  }
  Report(state, name);
}

void Open(benchmark::State& state, Kind kind, uint64_t bytes) {
  const std::string name = Name("open", kind, bytes);
  // In another process: opening memory that is open already costs nothing.
  const Child keeper = Child::Self({"--role", "keeper", bed->daemon->runtime_dir(),
                                    std::string(KindName(kind)), absl::StrCat(bytes)});
  const auto said =
      OrDie(ReceiveMessage(keeper.channel(), absl::Now() + absl::Seconds(60)), "keeper");
  for (auto _ : state) {
    Segment segment;
    Count(state, name, Time([&] { segment = OrDie(bed->retained->Open(said.bytes), "open"); }));
    Count(state, Name("close", kind, bytes), Time([&] { OrDie(segment.Release(), "release"); }),
          false);
  }
  Report(state, name);
}

// The first segment of such a kind on a device: the daemon starts a process with a context.
void AcquireFirst(benchmark::State& state, Kind kind) {
  const std::string name = absl::StrCat("kinds/", std::string(KindName(kind)), "/first");
  const auto client = OrDie(bed->daemon->Connect("first"), "connect");
  for (auto _ : state) {
    if (!Eventually([] { return testing::ChildrenOf(bed->daemon->pid()).empty(); })) {
      OrDie(absl::InternalError("the daemon does not give its context back"), name);
    }
    Segment segment;
    Count(state, name,
          Time([&] { segment = OrDie(client->Acquire({.bytes = 1, .kind = kind}), "acquire"); }));
    OrDie(segment.Release(), "release");
    Settle(*client);
  }
  Report(state, name);
}

}  // namespace

int RunKeeper(const std::vector<std::string>& args) {
  const auto say = [](const std::string& text) {
    SendMessage(3, text, {}, absl::Now() + absl::Seconds(10)).IgnoreError();
  };
  auto client = Client::Connect({.runtime_dir = args.at(0), .tenant = "retained"});
  if (!client.ok()) return say(client.status().ToString()), 1;
  AcquireOptions options = {.bytes = std::stoull(args.at(2))};
  for (Kind kind : {Kind::kVmm, Kind::kMempool, Kind::kIpc, Kind::kPinned}) {
    if (KindName(kind) == args.at(1)) options.kind = kind;
  }
  auto segment = (*client)->Acquire(options);
  if (!segment.ok()) return say(segment.status().ToString()), 1;
  auto ticket = segment->Share();
  say(ticket.ok() ? ticket->value : ticket.status().ToString());
  ReceiveMessage(3, absl::InfiniteFuture()).IgnoreError();  // until it is killed
  return 0;
}

void RegisterKinds() {
  // Runs first: later, segments of these kinds are kept for reuse, and a context with them. Kind
  // mempool once, and last: after that, this process has the pool open.
  for (const Kind kind : {Kind::kIpc, Kind::kMempool}) {
    if (const auto kinds = AllKinds(); std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
      continue;
    }
    Add(absl::StrCat("Kinds/AcquireFirst/", std::string(KindName(kind))),
        kind == Kind::kMempool ? 1 : 10, [=](auto& state) { AcquireFirst(state, kind); });
  }
  for (const Kind kind : AllKinds()) {
    for (const uint64_t bytes : kSizes) {
      const int iterations = bytes == kGiB ? 30 : 200;
      // All of them are there at once.
      const int fresh = kind != Kind::kMempool ? iterations : bytes == kGiB ? 8 : 40;
      const std::string rest = absl::StrCat("/", std::string(KindName(kind)), "/", SizeName(bytes));
      const auto add = [&](const char* name, int times, auto function) {
        Add(absl::StrCat("Kinds/", name, rest), times,
            [=](auto& state) { function(state, kind, bytes); });
      };
      add("FloorFresh", iterations, FloorAcquire);
      add("AcquireFresh", fresh, Acquire);
      add("FloorOpen", iterations, FloorOpen);
      add("AcquireRetained", iterations, AcquireRetained);
      add("Open", iterations, Open);
    }
  }
}

void PrintKinds() {
  auto& s = AllSamples();
  const auto median = [&](const std::string& name) { return s[name].Median(); };
  PrintTableHead("kinds");
  for (const Kind kind : AllKinds()) {
    for (const uint64_t bytes : kSizes) {
      const auto of = [&](const char* what) { return median(Name(what, kind, bytes)); };
      const std::string rest = absl::StrCat(" ", std::string(KindName(kind)), " ", SizeName(bytes));
      const double open = of("floor-open"), close = of("floor-close");
      const double trip = median("floor/socket"), rpc = median("floor/rpc");
      PrintRow("acquire fresh" + rest, of("fresh"), "make+export+send+open", of("floor-fresh"));
      PrintRow("acquire retained" + rest, of("retained"), "socket trip+open",
               open > 0 ? open + trip : 0);
      PrintRow("open" + rest, of("open"), "socket trip+open", open > 0 ? open + trip : 0);
      PrintRow("close, another holds it" + rest, of("close"), "gRPC trip+close",
               close > 0 ? close + rpc : 0);
      PrintRow("release, the last" + rest, of("release"), "gRPC trip+close",
               close > 0 ? close + rpc : 0);
    }
  }
  for (const Kind kind : AllKinds()) {
    const Samples& first = s[absl::StrCat("kinds/", std::string(KindName(kind)), "/first")];
    if (first.empty()) continue;
    std::cout << absl::StreamFormat(
        "first segment of kind %s on a device, its context's start included: median %.1f ms, "
        "worst of %d %.1f ms\n",
        KindName(kind), first.Median() / 1000, first.size(), first.Quantile(1) / 1000);
  }
}

}  // namespace gpumem::bench
