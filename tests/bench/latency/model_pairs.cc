// SPDX-License-Identifier: Apache-2.0
// As many segments as a model has: acquired, opened and attached to in one call.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpumem/publication.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/latency.h"

namespace gpumem::bench {
namespace {

constexpr char kModel[] = "latency-model";

Kind DefaultKind() { return bed->device.kinds.front(); }

std::unique_ptr<BareImporter> Importer() {
  return OrDie(BareImporter::For(DefaultKind(), bed->device, *bed->owner), "importer");
}

class FreshMany : public Sides {
 public:
  FreshMany(uint64_t bytes, int count) : bytes_(bytes), count_(count) {}

  void Floor(Stopwatch& watch) override {
    watch.Run([&] {
      const Handed handed = OrDie(bed->owner->Make(DefaultKind(), bytes_, count_, true), "make");
      OrDie(importer_->Open(handed, bytes_), "map");
    });
    OrDie(importer_->Close(), "unmap");
    OrDie(bed->owner->Drop(), "drop");
    WaitForDriver();
  }
  void Call(Stopwatch& watch) override {
    std::vector<Segment> segments;
    watch.Run(
        [&] { segments = OrDie(bed->fresh->AcquireMany({.bytes = bytes_}, count_), "acquire"); });
    segments.clear();
    Settle(*bed->fresh);
    WaitForDriver();
  }

 private:
  const uint64_t bytes_;
  const int count_;
  const std::unique_ptr<BareImporter> importer_ = Importer();
};

// Another process's memory is mapped: by a new session or by one that is there.
class Open : public Sides {
 public:
  enum class Way { kConnectAndAttach, kConnectAndOpen, kAttach };
  Open(uint64_t bytes, int count, Way way)
      : bytes_(bytes),
        way_(way),
        handed_(OrDie(bed->owner->Make(DefaultKind(), bytes, count, true), "make")),
        held_(OrDie(bed->retained->AcquireMany({.bytes = bytes}, count), "acquire")) {
    for (const Segment& segment : held_) {
      tickets_.push_back(OrDie(segment.Share(), "share").value);
    }
    OrDie(bed->retained->Publish(kModel, held_, {}), "publish");
    client_ = OrDie(bed->daemon->Connect("retained"), "connect");
  }
  ~Open() override {
    OrDie(bed->retained->Unpublish(kModel), "unpublish");
    OrDie(bed->owner->Drop(), "drop");
  }

  void Floor(Stopwatch& watch) override {
    watch.Run([&] { OrDie(importer_->Open(handed_, bytes_), "map"); });
    OrDie(importer_->Close(), "unmap");
  }
  void Call(Stopwatch& watch) override {
    // In this order: the segments end before their session.
    std::unique_ptr<Client> client;
    std::vector<Segment> segments;
    Attachment attached;
    watch.Run([&] {
      if (way_ != Way::kAttach) client = OrDie(bed->daemon->Connect("retained"), "connect");
      if (way_ == Way::kConnectAndOpen) {
        segments = OrDie(client->OpenMany(tickets_), "open");
      } else {
        attached = OrDie((client != nullptr ? client : client_)->Attach(kModel), "attach");
      }
    });
  }

 private:
  const uint64_t bytes_;
  const Way way_;
  const Handed handed_;
  const std::vector<Segment> held_;
  std::vector<std::string> tickets_;
  std::unique_ptr<Client> client_;
  const std::unique_ptr<BareImporter> importer_ = Importer();
};

}  // namespace

void RegisterModelPairs(const LatencyRun& run) {
  // 28 segments, 69.23 GiB (2.4725 GiB each, to the next 2 MiB); 60 segments, 1.18 GiB.
  const uint64_t model = 1266 * 2 * kMiB, part = 20 * kMiB;
  AddPairs(run, {.name = "Latency/fresh/28x2532MiB",
                 .work = "acquire, fresh, 28 of 2532MiB",
                 .floor = "create + export + send + import + map",
                 .reach = "1.1",
                 .pairs = 20,
                 .begin = [=] { return std::make_unique<FreshMany>(model, 28); }});
  const auto add = [&](Open::Way way, const char* name, const char* work, const char* reach) {
    AddPairs(run, {.name = absl::StrCat("Latency/", name, "/60x20MiB"),
                   .work = absl::StrCat(work, ", 60 of 20MiB"),
                   .floor = "import + map",
                   .reach = reach,
                   .pairs = 30,
                   .begin = [=] { return std::make_unique<Open>(part, 60, way); }});
  };
  add(Open::Way::kConnectAndAttach, "connect+attach", "connect and attach", "1.15");
  add(Open::Way::kConnectAndOpen, "connect+open", "connect and open", "1.15");
  add(Open::Way::kAttach, "attach", "attach", "");
}

}  // namespace gpumem::bench
