// SPDX-License-Identifier: Apache-2.0
// One segment of kind vmm: acquired, released, and both.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/latency.h"

namespace gpumem::bench {
namespace {

Kind DefaultKind() { return bed->device.kinds.front(); }

std::unique_ptr<BareImporter> Importer() {
  return OrDie(BareImporter::For(DefaultKind(), bed->device, *bed->owner), "importer");
}

Handed MakeInOwner(uint64_t bytes) {
  return OrDie(bed->owner->Make(DefaultKind(), bytes, 1, true), "make");
}

// Lets the tenant retain a segment of that size.
void Retain(uint64_t bytes) {
  OrDie(OrDie(bed->retained->Acquire({.bytes = bytes}), "acquire").Release(), "release");
}

// Memory from the driver, of another process, until it is mapped.
class Fresh : public Sides {
 public:
  explicit Fresh(uint64_t bytes) : bytes_(bytes) {}

  void Floor(Stopwatch& watch) override {
    watch.Run([&] { OrDie(importer_->Open(MakeInOwner(bytes_), bytes_), "map"); });
    OrDie(importer_->Close(), "unmap");
    OrDie(bed->owner->Drop(), "drop");
  }
  void Call(Stopwatch& watch) override {
    Segment segment;
    watch.Run([&] { segment = OrDie(bed->fresh->Acquire({.bytes = bytes_}), "acquire"); });
    OrDie(segment.Release(), "release");
    SettleBusily(*bed->fresh);
  }

 private:
  const uint64_t bytes_;
  const std::unique_ptr<BareImporter> importer_ = Importer();
};

// Memory that another process has already, until it is mapped; and the end of that.
class Retained : public Sides {
 public:
  enum class Part { kAcquire, kRelease, kDestroy };
  Retained(uint64_t bytes, Part part) : bytes_(bytes), part_(part) {
    MakeInOwner(bytes);
    Retain(bytes);
  }
  ~Retained() override { OrDie(bed->owner->Drop(), "drop"); }

  void Floor(Stopwatch& watch) override {
    const auto open = [&] {
      OrDie(importer_->Open(OrDie(bed->owner->SendAgain(), "send"), bytes_), "map");
    };
    part_ == Part::kAcquire ? watch.Run(open) : open();
    const auto close = [&] {
      if (part_ == Part::kRelease) OrDie(bed->retained->GetUsage().status(), "usage");
      OrDie(importer_->Close(), "unmap");
    };
    part_ == Part::kAcquire ? close() : watch.Run(close);
  }
  void Call(Stopwatch& watch) override {
    Segment segment;
    const auto acquire = [&] {
      segment = OrDie(bed->retained->Acquire({.bytes = bytes_}), "acquire");
    };
    part_ == Part::kAcquire ? watch.Run(acquire) : acquire();
    if (!segment.reused()) OrDie(absl::InternalError("not a retained segment"), SizeName(bytes_));
    const auto release = [&] {
      part_ == Part::kDestroy ? void(segment = Segment()) : OrDie(segment.Release(), "release");
    };
    part_ == Part::kAcquire ? release() : watch.Run(release);
  }

 private:
  const uint64_t bytes_;
  const Part part_;
  const std::unique_ptr<BareImporter> importer_ = Importer();
};

// Acquire and release of retained memory, beside the driver's part of it.
class Both : public Sides {
 public:
  Both(uint64_t bytes, bool destroys)
      : bytes_(bytes),
        destroys_(destroys),
        trip_(BareTrip(bed->device, std::move(MakeInOwner(bytes).fds.at(0)), bytes)) {
    Retain(bytes);
  }
  ~Both() override { OrDie(bed->owner->Drop(), "drop"); }

  void Floor(Stopwatch& watch) override { watch.Run(trip_); }
  void Call(Stopwatch& watch) override {
    watch.Run([&] {
      Segment segment = OrDie(bed->retained->Acquire({.bytes = bytes_}), "acquire");
      if (!destroys_) OrDie(segment.Release(), "release");
    });
  }

 private:
  const uint64_t bytes_;
  const bool destroys_;
  const std::function<void()> trip_;
};

}  // namespace

void RegisterSegmentPairs(const LatencyRun& run) {
  using Part = Retained::Part;
  for (const uint64_t bytes : {2 * kMiB, 64 * kMiB, kGiB}) {
    const std::string size = SizeName(bytes);
    const bool main = bytes == 64 * kMiB;
    AddPairs(run, {.name = absl::StrCat("Latency/fresh/", size),
                   .work = absl::StrCat("acquire, fresh ", size),
                   .floor = "create + export + send + import + map",
                   .reach = bytes == kGiB ? "2"
                            : main        ? "1.5"
                                          : "",
                   .pairs = bytes == kGiB ? 60 : 200,
                   .begin = [=] { return std::make_unique<Fresh>(bytes); }});
    const auto add = [&](Part part, const char* name, const char* work, const char* floor,
                         const char* reach) {
      AddPairs(run, {.name = absl::StrCat("Latency/", name, "/", size),
                     .work = absl::StrCat(work, " ", size),
                     .floor = floor,
                     .reach = main ? reach : "",
                     .pairs = 200,
                     .begin = [=] { return std::make_unique<Retained>(bytes, part); }});
    };
    add(Part::kAcquire, "retained", "acquire, retained", "send + import + map", "1.5");
    add(Part::kRelease, "release", "release", "gRPC trip + unmap", "1.1");
    add(Part::kDestroy, "destroy", "release by the destructor", "unmap", "1.2");
  }
  for (const bool destroys : {false, true}) {
    AddPairs(run, {.name = destroys ? "Latency/pair/destroy/2MiB" : "Latency/pair/release/2MiB",
                   .work = destroys ? "acquire + destructor, retained 2MiB"
                                    : "acquire + release, retained 2MiB",
                   .floor = "import + map + access + unmap",
                   .reach = "2.2",
                   .pairs = 400,
                   .begin = [=] { return std::make_unique<Both>(2 * kMiB, destroys); }});
  }
}

}  // namespace gpumem::bench
