// SPDX-License-Identifier: Apache-2.0
// Segments of kind vmm: acquired, opened and released, one and many at a time.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gpumem/publication.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"

namespace gpumem::bench {
namespace {

Kind DefaultKind() { return bed->device.kinds.front(); }

std::unique_ptr<BareImporter> Importer() {
  return OrDie(BareImporter::For(DefaultKind(), bed->device, *bed->owner), "importer");
}

// --- Floors --------------------------------------------------------------------------

void FloorSocketRoundTrip(benchmark::State& state) {
  for (auto _ : state) {
    Count(state, "floor/socket", Time([] { OrDie(bed->owner->Ping(), "ping"); }));
  }
  Report(state, "floor/socket");
}

void FloorRpcRoundTrip(benchmark::State& state) {
  for (auto _ : state) {
    Count(state, "floor/rpc", Time([] { OrDie(bed->retained->GetUsage(), "usage"); }));
  }
  Report(state, "floor/rpc");
}

// create + export + send + import + map, with an owner that does nothing else.
void FloorFresh(benchmark::State& state, uint64_t bytes, int count) {
  const std::string name = absl::StrCat("floor/fresh/", SizeName(bytes), "x", count);
  const auto importer = Importer();
  for (auto _ : state) {
    Count(state, name, Time([&] {
            const Handed handed =
                OrDie(bed->owner->Make(DefaultKind(), bytes, count, true), "make");
            OrDie(importer->Open(handed, bytes), "map");
          }));
    OrDie(importer->Close(), "unmap");
    OrDie(bed->owner->Drop(), "drop");
    if (count > 1) WaitForDriver();
  }
  Report(state, name);
}

// import + map of memory that the owner has made before.
void FloorMap(benchmark::State& state, uint64_t bytes, int count) {
  const std::string name = absl::StrCat("floor/map/", SizeName(bytes), "x", count);
  const auto importer = Importer();
  const Handed handed = OrDie(bed->owner->Make(DefaultKind(), bytes, count, true), "make");
  for (auto _ : state) {
    Count(state, name, Time([&] { OrDie(importer->Open(handed, bytes), "map"); }));
    Count(state, absl::StrCat("floor/unmap/", SizeName(bytes), "x", count),
          Time([&] { OrDie(importer->Close(), "unmap"); }), false);
  }
  OrDie(bed->owner->Drop(), "drop");
  Report(state, name);
}

// --- The broker ----------------------------------------------------------------------

void AcquireFresh(benchmark::State& state, uint64_t bytes, int count) {
  const std::string name = absl::StrCat("acquire/fresh/", SizeName(bytes), "x", count);
  for (auto _ : state) {
    std::vector<Segment> segments;
    Count(state, name, Time([&] {
            segments = OrDie(bed->fresh->AcquireMany({.bytes = bytes}, count), "acquire");
          }));
    segments.clear();
    // The floor's loop does not sleep either.
    SettleBusily(*bed->fresh);
    if (count > 1) WaitForDriver();
  }
  Report(state, name);
}

void AcquireRetained(benchmark::State& state, uint64_t bytes) {
  const std::string name = absl::StrCat("acquire/retained/", SizeName(bytes));
  OrDie(OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire").Release(), "release");
  for (auto _ : state) {
    Segment segment;
    Count(state, name,
          Time([&] { segment = OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire"); }));
    if (!segment.reused()) OrDie(absl::InternalError("not a retained segment"), name);
    Count(state, absl::StrCat("release/", SizeName(bytes)),
          Time([&] { OrDie(segment.Release(), "release"); }), false);
  }
  Report(state, name);
  state.counters["release_p50_us"] =
      AllSamples()[absl::StrCat("release/", SizeName(bytes))].Median();
}

// Releases in turn with the bare unmap of the same size: Release(), and a destructor.
void ReleaseAsync(benchmark::State& state, uint64_t bytes) {
  const std::string size = SizeName(bytes), name = "release/async/" + size;
  const auto importer = Importer();
  const Handed handed = OrDie(bed->owner->Make(DefaultKind(), bytes, 1, true), "make");
  for (auto _ : state) {
    OrDie(importer->Open(handed, bytes), "map");
    Count(state, "release/floor/" + size, Time([&] { OrDie(importer->Close(), "unmap"); }), false);
    Segment segment = OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire");
    Count(state, "release/waits/" + size, Time([&] { OrDie(segment.Release(), "release"); }),
          false);
    segment = OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire");
    Count(state, name, Time([&] { segment = Segment(); }));
    OrDie(bed->retained->GetUsage(), "usage");  // sends it
  }
  OrDie(bed->owner->Drop(), "drop");
  Report(state, name);
}

// An acquire and the destructor of what it got, in turn with the bare map and unmap. Each sends
// the release of the one before it.
void AcquireReleasePair(benchmark::State& state, uint64_t bytes) {
  const std::string size = SizeName(bytes), name = "pair/" + size;
  const auto importer = Importer();
  const Handed handed = OrDie(bed->owner->Make(DefaultKind(), bytes, 1, true), "make");
  for (auto _ : state) {
    Count(state, "floor/pair/" + size, Time([&] {
            OrDie(importer->Open(handed, bytes), "map");
            OrDie(importer->Close(), "unmap");
          }),
          false);
    Count(state, name, Time([&] { OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire"); }));
  }
  OrDie(bed->owner->Drop(), "drop");
  Report(state, name);
}

void Open(benchmark::State& state, uint64_t bytes) {
  const std::string name = absl::StrCat("open/", SizeName(bytes));
  Segment held = OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire");
  const std::string ticket = OrDie(held.Share(), "share").value;
  for (auto _ : state) {
    Segment segment;
    Count(state, name, Time([&] { segment = OrDie(bed->retained->Open(ticket), "open"); }));
    OrDie(segment.Release(), "release");
  }
  Report(state, name);
}

// The work of a worker at its start: connects, and maps all segments that another session holds.
void ConnectAndOpen(benchmark::State& state, uint64_t bytes, int count) {
  const std::string name = absl::StrCat("connect+open/", SizeName(bytes), "x", count);
  const auto held = OrDie(bed->retained->AcquireMany({.bytes = bytes}, count), "acquire");
  std::vector<std::string> tickets;
  for (const Segment& segment : held) tickets.push_back(OrDie(segment.Share(), "share").value);
  for (auto _ : state) {
    std::unique_ptr<Client> client;
    std::vector<Segment> segments;
    Count(state, name, Time([&] {
            client = OrDie(bed->daemon->Connect("retained"), "connect");
            segments = OrDie(client->OpenMany(tickets), "open");
          }));
  }
  Report(state, name);
}

// The same by a publication, which needs no session that holds it.
void ConnectAndAttach(benchmark::State& state, uint64_t bytes, int count) {
  const std::string name = absl::StrCat("connect+attach/", SizeName(bytes), "x", count);
  {
    const auto held = OrDie(bed->retained->AcquireMany({.bytes = bytes}, count), "acquire");
    OrDie(bed->retained->Publish("model", held, {}), "publish");
  }
  for (auto _ : state) {
    std::unique_ptr<Client> client;
    Attachment attached;
    Count(state, name, Time([&] {
            client = OrDie(bed->daemon->Connect("retained"), "connect");
            attached = OrDie(client->Attach("model"), "attach");
          }));
  }
  OrDie(bed->retained->Unpublish("model"), "unpublish");
  Report(state, name);
}

}  // namespace

void RegisterSegments() {
  Add("FloorSocketRoundTrip", 2000, FloorSocketRoundTrip);
  Add("FloorRpcRoundTrip", 2000, FloorRpcRoundTrip);
  for (uint64_t bytes : {2 * kMiB, 64 * kMiB, kGiB}) {
    const int iterations = bytes == kGiB ? 60 : 300;
    const std::string size = SizeName(bytes);
    // Each next to its floor, so that both see the same machine.
    Add("FloorFresh/" + size, iterations, [=](auto& state) { FloorFresh(state, bytes, 1); });
    Add("AcquireFresh/" + size, iterations, [=](auto& state) { AcquireFresh(state, bytes, 1); });
    Add("FloorMap/" + size, iterations, [=](auto& state) { FloorMap(state, bytes, 1); });
    Add("AcquireRetained/" + size, iterations, [=](auto& state) { AcquireRetained(state, bytes); });
    Add("ReleaseAsync/" + size, iterations, [=](auto& state) { ReleaseAsync(state, bytes); });
    Add("AcquireReleasePair/" + size, iterations,
        [=](auto& state) { AcquireReleasePair(state, bytes); });
    Add("Open/" + size, iterations, [=](auto& state) { Open(state, bytes); });
  }
  // 60 segments, 1.18 GiB; 28 segments, 69.23 GiB (2.4725 GiB each, to the next 2 MiB).
  const uint64_t part = 20 * kMiB, model = 1266 * 2 * kMiB;
  Add("FloorMap/60x20MiB", 30, [=](auto& state) { FloorMap(state, part, 60); });
  Add("ConnectAndOpen/60x20MiB", 30, [=](auto& state) { ConnectAndOpen(state, part, 60); });
  Add("ConnectAndAttach/60x20MiB", 30, [=](auto& state) { ConnectAndAttach(state, part, 60); });
  Add("FloorFresh/28x2532MiB", 5, [=](auto& state) { FloorFresh(state, model, 28); });
  Add("AcquireFresh/28x2532MiB", 5, [=](auto& state) { AcquireFresh(state, model, 28); });
}

void PrintSegments() {
  auto& s = AllSamples();
  const auto median = [&](const std::string& name) { return s[name].Median(); };
  PrintTableHead("segments");
  for (uint64_t bytes : {2 * kMiB, 64 * kMiB, kGiB}) {
    const std::string size = SizeName(bytes);
    PrintRow("acquire fresh " + size, median("acquire/fresh/" + size + "x1"),
             "create+export+send+import+map", median("floor/fresh/" + size + "x1"),
             bytes == 64 * kMiB ? "<= 250 us" : "");
    const double map = median("floor/map/" + size + "x1");
    PrintRow("acquire retained " + size, median("acquire/retained/" + size),
             "socket trip+import+map", map > 0 ? median("floor/socket") + map : 0,
             bytes == 64 * kMiB ? "<= 1.5x" : "");
    PrintRow("  the same", median("acquire/retained/" + size), "gRPC trip+import+map",
             map > 0 ? median("floor/rpc") + map : 0);
    PrintRow("open " + size, median("open/" + size), "socket trip+import+map",
             map > 0 ? median("floor/socket") + map : 0);
    PrintRow("release " + size, median("release/" + size), "gRPC trip+unmap",
             median("floor/unmap/" + size + "x1") + median("floor/rpc"));
    PrintRow("  the same, in turn", median("release/waits/" + size), "gRPC trip+unmap",
             median("release/floor/" + size) + median("floor/rpc"), "<= 1.1x");
    PrintRow("release async " + size, median("release/async/" + size), "unmap",
             median("release/floor/" + size), "<= 1.2x");
    PrintRow("acquire + release async " + size, median("pair/" + size), "import+map+unmap",
             median("floor/pair/" + size), "<= 2.2x");
  }
  for (const auto& [name, samples] : std::map<std::string, Samples>(s)) {
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, "acquire/fresh/") && !absl::EndsWith(rest, "x1")) {
      PrintRow(absl::StrCat("acquire ", rest), samples.Median(), "create+export+send+import+map",
               median(absl::StrCat("floor/fresh/", rest)), "<= 1.2x");
    } else if (absl::ConsumePrefix(&rest, "connect+open/")) {
      PrintRow(absl::StrCat("connect + open ", rest), samples.Median(), "import+map",
               median(absl::StrCat("floor/map/", rest)), "<= 8 ms, <= 1.3x");
    } else if (absl::ConsumePrefix(&rest, "connect+attach/")) {
      PrintRow(absl::StrCat("connect + attach ", rest), samples.Median(), "import+map",
               median(absl::StrCat("floor/map/", rest)), "<= 8 ms, <= 1.3x");
    }
  }
}

}  // namespace gpumem::bench
