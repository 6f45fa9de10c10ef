// SPDX-License-Identifier: Apache-2.0
// Contents of GPU memory to and from the host tier, beside the bare copies between mapped memory
// and registered host memory.
//
// Beside the floor, gpumem's process imports, maps and unmaps each segment.
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/device/devices.h"
#include "daemon/device/testing/tier_memory.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"

namespace gpumem::bench {
namespace {

struct Shape {
  int segments;
  uint64_t bytes;  // of each
  const char* reach;
};

constexpr Shape kShapes[] = {{1, kGiB, ""},
                             {1000, 2 * kMiB, "<= 100000 us"},
                             {256, 64 * kMiB, "<= 1.05x"},
                             {16, kGiB, "<= 1.05x"},
                             {64, kGiB, "<= 1.05x"}};

std::string Name(const char* what, bool out, const Shape& shape) {
  return absl::StrCat("tier/", what, out ? "/out/" : "/in/", shape.segments, "x",
                      SizeName(shape.bytes));
}

uint64_t TotalOf(const Shape& shape) { return shape.segments * shape.bytes; }

// True if the GPU and the machine have room for it, with some to spare.
bool Fits(const Shape& shape) {
  const uint64_t needed = TotalOf(shape) + 8 * kGiB;
  const auto free = static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) *
                    static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bed->device.capacity_bytes >= needed && free >= needed;
}

// Segments, and a tier with room for all.
class Contents {
 public:
  explicit Contents(const Shape& shape)
      : shape_(shape),
        device_(OrDie(gpumemd::OpenCudaDevice(bed->device.uuid), "device")),
        tier_(OrDie(gpumemd::TierMemory::Make(TotalOf(shape)), "tier")) {
    for (int i = 0; i < shape.segments; ++i) {
      segments_.push_back(
          OrDie(device_->Create({.kind = gpumemd::Kind::kVmm, .bytes = shape.bytes}), "segment"));
      places_.push_back(
          tier_->Place({{.offset = static_cast<uint64_t>(i) * shape.bytes, .bytes = shape.bytes}}));
    }
  }

  // Starts the process that copies.
  absl::Status Start() { return device_->Copy({}); }
  absl::Status Copy(bool out) {
    std::vector<gpumemd::CopyItem> items;
    for (size_t i = 0; i < segments_.size(); ++i) {
      const gpumemd::Allocation* const segment = segments_[i].get();
      const gpumemd::Allocation* const place = places_[i].get();
      items.push_back(
          {.from = out ? segment : place, .to = out ? place : segment, .bytes = shape_.bytes});
    }
    return device_->Copy(items);
  }

  std::vector<MapRequest> Requests() const {
    std::vector<MapRequest> requests;
    for (const auto& segment : segments_) {
      requests.push_back({.fd = segment->fd(), .bytes = shape_.bytes});
    }
    return requests;
  }
  char* tier() const { return tier_->data(); }

 private:
  const Shape shape_;
  const std::unique_ptr<gpumemd::Device> device_;
  const std::unique_ptr<gpumemd::TierMemory> tier_;
  std::vector<std::unique_ptr<gpumemd::Allocation>> segments_, places_;
};

void Floor(benchmark::State& state, const Shape& shape, bool out) {
  const std::string name = Name("floor", out, shape);
  Contents contents(shape);
  const Mappings mappings =
      OrDie(MapCuda(contents.Requests(), {.device_uuids = {bed->device.uuid}}), "map");
  const auto cuda = OrDie(BareCuda::On(bed->device.uuid), "CUDA");
  OrDie(cuda->Register(contents.tier(), TotalOf(shape)), "register");
  std::vector<BareCuda::HostCopy> copies;
  for (int i = 0; i < shape.segments; ++i) {
    copies.push_back(
        {.memory = reinterpret_cast<BareCuda::Address>(mappings[static_cast<size_t>(i)]->data()),
         .host = contents.tier() + static_cast<uint64_t>(i) * shape.bytes,
         .bytes = shape.bytes});
  }
  const auto copy = [&] { OrDie(out ? cuda->CopyOut(copies) : cuda->CopyIn(copies), "copy"); };
  copy();
  for (auto _ : state) Count(state, name, Time(copy));
  Report(state, name);
  OrDie(cuda->Unregister(contents.tier()), "unregister");
}

void Copy(benchmark::State& state, const Shape& shape, bool out) {
  const std::string name = Name("copy", out, shape);
  Contents contents(shape);
  OrDie(contents.Copy(out), "first copy");
  for (auto _ : state) Count(state, name, Time([&] { OrDie(contents.Copy(out), "copy"); }));
  Report(state, name);
}

// The first copy, with the process there: the tier's memory is allocated and registered.
void First(benchmark::State& state, const Shape& shape) {
  const std::string name = Name("first", true, shape);
  for (auto _ : state) {
    Contents contents(shape);
    OrDie(contents.Start(), "start");
    Count(state, name, Time([&] { OrDie(contents.Copy(true), "copy"); }));
  }
  Report(state, name);
}

}  // namespace

void RegisterTierCopy() {
  if (!OnGpu()) return;
  for (const Shape& shape : kShapes) {
    if (!Fits(shape)) continue;
    const std::string size = absl::StrCat(shape.segments, "x", SizeName(shape.bytes));
    for (const bool out : {true, false}) {
      const char* const direction = out ? "/out/" : "/in/";
      Add(absl::StrCat("FloorTierCopy", direction, size), 5,
          [&shape, out](auto& state) { Floor(state, shape, out); });
      Add(absl::StrCat("TierCopy", direction, size), 5,
          [&shape, out](auto& state) { Copy(state, shape, out); });
    }
    Add(absl::StrCat("TierCopy/first/", size), 1, [&shape](auto& state) { First(state, shape); });
  }
}

void PrintTierCopy() {
  PrintTableHead("contents to and from the host tier");
  for (const Shape& shape : kShapes) {
    for (const bool out : {true, false}) {
      PrintRow(absl::StrCat(out ? "to" : "from", " the tier, ", shape.segments, " x ",
                            SizeName(shape.bytes)),
               AllSamples()[Name("copy", out, shape)].Median(), "copies, registered memory",
               AllSamples()[Name("floor", out, shape)].Median(), shape.reach);
    }
    PrintRow(absl::StrCat("the first, to the tier, ", shape.segments, " x ", SizeName(shape.bytes)),
             AllSamples()[Name("first", true, shape)].Median(), "copies, registered memory",
             AllSamples()[Name("floor", true, shape)].Median());
  }
}

}  // namespace gpumem::bench
