// SPDX-License-Identifier: Apache-2.0
// A brokered call and its floor after a pause: by sleeping CPUs, or while the driver still clears
// memory that was freed before.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/latency.h"

namespace gpumem::bench {
namespace {

Kind DefaultKind() { return bed->device.kinds.front(); }

struct Pause {
  const char* name;
  absl::Duration length;
  bool spins = false;
};

class Paused : public Sides {
 public:
  Paused(uint64_t bytes, bool fresh, const Pause& pause)
      : bytes_(bytes),
        fresh_(fresh),
        pause_(pause),
        importer_(OrDie(BareImporter::For(DefaultKind(), bed->device, *bed->owner), "importer")) {
    if (fresh) return;
    OrDie(bed->owner->Make(DefaultKind(), bytes, 1, false).status(), "make");
    OrDie(OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire").Release(), "release");
  }
  ~Paused() override { OrDie(bed->owner->Drop(), "drop"); }

  void Floor(Stopwatch& watch) override {
    Wait();
    watch.Run([&] {
      const Handed handed =
          OrDie(fresh_ ? bed->owner->Make(DefaultKind(), bytes_, 1, true) : bed->owner->SendAgain(),
                "make");
      OrDie(importer_->Open(handed, bytes_), "map");
    });
    OrDie(importer_->Close(), "unmap");
    if (fresh_) OrDie(bed->owner->Drop(), "drop");
  }
  void Call(Stopwatch& watch) override {
    Client& client = fresh_ ? *bed->fresh : *bed->retained;
    Wait();
    Segment segment;
    watch.Run([&] { segment = OrDie(client.Acquire({.bytes = bytes_}), "acquire"); });
    OrDie(segment.Release(), "release");
    if (fresh_) SettleBusily(client);
  }

 private:
  void Wait() const {
    const absl::Time end = absl::Now() + pause_.length;
    if (!pause_.spins) absl::SleepFor(pause_.length);
    while (absl::Now() < end) {
    }
  }

  const uint64_t bytes_;
  const bool fresh_;
  const Pause pause_;
  const std::unique_ptr<BareImporter> importer_;
};

}  // namespace

void RegisterExplainCalls(const LatencyRun& run) {
  const Pause pauses[] = {
      {"no pause", absl::ZeroDuration()},      {"1ms spinning", absl::Milliseconds(1), true},
      {"1ms asleep", absl::Milliseconds(1)},   {"5ms asleep", absl::Milliseconds(5)},
      {"20ms asleep", absl::Milliseconds(20)}, {"200ms asleep", absl::Milliseconds(200)}};
  for (const bool fresh : {true, false}) {
    for (const uint64_t bytes : {64 * kMiB, kGiB}) {
      for (const Pause& pause : pauses) {
        const std::string what = fresh ? "fresh" : "retained";
        AddPairs(
            run,
            {.name = absl::StrCat("Explain/call/", what, "/", SizeName(bytes), "/", pause.name),
             .work = absl::StrCat("acquire, ", what, " ", SizeName(bytes), ", after ", pause.name),
             .floor = fresh ? "create + export + send + import + map" : "send + import + map",
             .reach = "",
             .pairs = pause.length > absl::Milliseconds(100) ? 10 : 40,
             .begin = [=] { return std::make_unique<Paused>(bytes, fresh, pause); }});
      }
    }
  }
}

}  // namespace gpumem::bench
