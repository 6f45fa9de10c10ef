// SPDX-License-Identifier: Apache-2.0
// GPU-to-GPU: one copies out of the other's memory, brokered and mapped for it, beside the same
// copy between two plain allocations.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"

namespace gpumem::bench {
namespace {

constexpr uint64_t kBytes = kGiB;
constexpr int kCopies = 20;  // in one measurement: their start costs nothing then

struct Pair {
  DeviceInfo reader, owner;
};

// Returns the first device, and another whose memory it can use.
std::optional<Pair> FindPair() {
  for (const PeerAccess& peer : bed->device.peers) {
    if (!peer.access) continue;
    for (const DeviceInfo& device : bed->devices) {
      if (device.uuid == peer.uuid) return Pair{.reader = bed->device, .owner = device};
    }
  }
  return std::nullopt;
}

std::unique_ptr<BareCuda> On(const DeviceInfo& device) {
  return OrDie(BareCuda::On(device.uuid), "CUDA");
}

// Copies plain memory: by a peer copy, or as an ordinary copy with peer access.
void FloorCopy(benchmark::State& state, const Pair& pair, bool by_peer_copy) {
  const std::string name = by_peer_copy ? "peers/floor/peer copy" : "peers/floor/peer access";
  const auto reader = On(pair.reader), owner = On(pair.owner);
  const auto from = OrDie(owner->Alloc(kBytes), "cuMemAlloc");
  const auto to = OrDie(reader->Alloc(kBytes), "cuMemAlloc");
  OrDie(reader->EnablePeer(*owner), "peer access");
  const auto copy = [&](int times) {
    OrDie(by_peer_copy ? reader->CopyFromPeer(to, from, *owner, kBytes, times)
                       : reader->Copy(to, from, kBytes, times),
          "copy");
  };
  copy(1);
  for (auto _ : state) Count(state, name, Time([&] { copy(kCopies); }));
  Report(state, name);
  OrDie(reader->Free(to), "cuMemFree");
  OrDie(owner->Free(from), "cuMemFree");
}

void Copy(benchmark::State& state, const Pair& pair, Kind kind) {
  const std::string name = absl::StrCat("peers/", std::string(KindName(kind)));
  const auto reader = On(pair.reader);
  const auto to = OrDie(reader->Alloc(kBytes), "cuMemAlloc");
  std::vector<DeviceName> users = {pair.reader.uuid};
  if (kind != Kind::kIpc) users.push_back(pair.owner.uuid);  // which one device has at a time
  const Segment segment =
      OrDie(bed->fresh->Acquire(
                {.bytes = kBytes, .device = pair.owner.uuid, .kind = kind, .map_devices = users}),
            "acquire");
  const auto from = reinterpret_cast<BareCuda::Address>(segment.data());
  OrDie(reader->Copy(to, from, kBytes, 1), "copy");
  for (auto _ : state) {
    Count(state, name, Time([&] { OrDie(reader->Copy(to, from, kBytes, kCopies), "copy"); }));
  }
  Report(state, name);
  OrDie(reader->Free(to), "cuMemFree");
}

double GigabytesPerSecond(const std::string& name) {
  const Samples& samples = AllSamples()[name];
  return samples.empty() ? 0 : kCopies * static_cast<double>(kBytes) / samples.Median() / 1000;
}

}  // namespace

void RegisterPeers() {
  const std::optional<Pair> pair = FindPair();
  if (!pair.has_value()) return;
  Add("Peers/FloorPeerCopy", 10, [pair](auto& state) { FloorCopy(state, *pair, true); });
  Add("Peers/FloorPeerAccess", 10, [pair](auto& state) { FloorCopy(state, *pair, false); });
  for (const Kind kind : pair->owner.kinds) {
    Add(absl::StrCat("Peers/Copy/", std::string(KindName(kind))), 10,
        [pair, kind](auto& state) { Copy(state, *pair, kind); });
  }
}

void PrintPeers() {
  const double peer_copy = GigabytesPerSecond("peers/floor/peer copy");
  const double access = GigabytesPerSecond("peers/floor/peer access");
  if (peer_copy <= 0 || access <= 0) return;
  std::cout << absl::StreamFormat(
      "\ncopy of %s out of the other GPU's memory: plain, by cuMemcpyPeerAsync %.1f GB/s, by peer "
      "access %.1f GB/s\n%-24s %11s %20s %20s\n",
      SizeName(kBytes), peer_copy, access, "brokered (to reach: 0.98x)", "GB/s", "of peer copy",
      "of peer access");
  for (const Kind kind : bed->device.kinds) {
    const double speed = GigabytesPerSecond(absl::StrCat("peers/", std::string(KindName(kind))));
    if (speed <= 0) continue;
    std::cout << absl::StreamFormat("%-24s %13.1f %19.3fx %19.3fx\n", KindName(kind), speed,
                                    speed / peer_copy, speed / access);
  }
}

}  // namespace gpumem::bench
