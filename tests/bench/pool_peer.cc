// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/pool_peer.h"

#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_format.h"
#include "tests/bench/bed.h"
#include "tests/bench/pool_cuda.h"

namespace gpumem::bench {
namespace {

class PoolItself : public PoolPeer {
 public:
  PoolItself()
      : pool_(OrDie(Pool::Create(OrDie(bed->daemon->Connect("fresh"), "connect"),
                                 {.device = bed->device.uuid}),
                    "pool")) {}

  Block Allocate(uint64_t bytes, Stream stream) override {
    absl::StatusOr<Block> block = pool_->Allocate(bytes, stream);
    if (!block.ok()) OrDie(block.status(), "allocate");
    return *block;
  }
  void Free(const Block& block, Stream stream) override {
    const absl::Status status = pool_->Free(block, stream);
    if (!status.ok()) OrDie(status, "free");
  }
  uint64_t Reserved() const override { return pool_->Stats().reserved_bytes; }
  uint64_t ReservedPeak() const override { return pool_->Stats().reserved_peak_bytes; }
  void Tell(benchmark::State& state) const override {
    const PoolStats stats = pool_->Stats();
    state.counters["growths"] = static_cast<double>(stats.growths);
    state.counters["moves"] = static_cast<double>(stats.moves);
    state.counters["after_event"] = static_cast<double>(stats.reused_after_event);
    state.counters["dependencies"] = static_cast<double>(stats.dependencies);
  }

 private:
  const std::unique_ptr<Pool> pool_;
};

class Malloc : public PoolPeer {
 public:
  Block Allocate(uint64_t bytes, Stream) override {
    void* const data = std::malloc(bytes);
    if (data == nullptr) OrDie(absl::ResourceExhaustedError("malloc"), "allocate");
    return {.data = data, .bytes = bytes};
  }
  void Free(const Block& block, Stream) override { std::free(block.data); }
};

class IdlePeer : public PoolPeer {
 public:
  Block Allocate(uint64_t bytes, Stream) override { return {.data = this, .bytes = bytes}; }
  void Free(const Block& block, Stream) override { benchmark::DoNotOptimize(block.data); }
};

class CheckedPeer : public PoolPeer {
 public:
  CheckedPeer(std::unique_ptr<PoolPeer> peer, uint64_t alignment)
      : peer_(std::move(peer)), alignment_(alignment) {}

  Block Allocate(uint64_t bytes, Stream stream) override {
    const Block block = peer_->Allocate(bytes, stream);
    const auto begin = reinterpret_cast<uintptr_t>(block.data);
    if (block.bytes < bytes) Die("is smaller than asked for", begin, block.bytes);
    if (begin % alignment_ != 0) Die("is not aligned", begin, block.bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto after = ends_.lower_bound(begin);
    if ((after != ends_.end() && after->first < begin + block.bytes) ||
        (after != ends_.begin() && std::prev(after)->second > begin)) {
      Die("overlaps another", begin, block.bytes);
    }
    ends_.emplace_hint(after, begin, begin + block.bytes);
    return block;
  }
  void Free(const Block& block, Stream stream) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_.erase(reinterpret_cast<uintptr_t>(block.data));
    }
    peer_->Free(block, stream);
  }
  uint64_t Reserved() const override { return peer_->Reserved(); }
  uint64_t ReservedPeak() const override { return peer_->ReservedPeak(); }
  void Tell(benchmark::State& state) const override { peer_->Tell(state); }

 private:
  [[noreturn]] static void Die(const char* what, uintptr_t begin, uint64_t bytes) {
    OrDie(
        absl::InternalError(absl::StrFormat("the block of %d bytes at %#x %s", bytes, begin, what)),
        "check");
    std::abort();
  }

  const std::unique_ptr<PoolPeer> peer_;
  const uint64_t alignment_;
  std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> ends_;  // of live blocks, by their begins
};

template <typename Peer>
std::unique_ptr<PoolPeer> Make() {
  return std::make_unique<Peer>();
}

}  // namespace

std::unique_ptr<PoolPeer> Checked(std::unique_ptr<PoolPeer> peer, uint64_t alignment) {
  return std::make_unique<CheckedPeer>(std::move(peer), alignment);
}

std::unique_ptr<PoolPeer> MakeIdlePeer() { return std::make_unique<IdlePeer>(); }

std::vector<PeerKind> PoolPeers(bool check) {
  std::vector<PeerKind> peers = {{.name = "pool", .make = Make<PoolItself>, .alignment = 512}};
  if (OnGpu()) {
    // Each free waits for the whole GPU: threads would stand in line.
    peers.push_back({.name = "cudaMalloc", .make = cuda::MakeMalloc, .scales = false});
    peers.push_back({.name = "cudaMallocAsync", .make = cuda::MakeMallocAsync});
  } else {
    peers.push_back({.name = "malloc", .make = Make<Malloc>});
  }
  if (check) {
    for (PeerKind& peer : peers) {
      peer.make = [make = peer.make, alignment = peer.alignment] {
        return Checked(make(), alignment);
      };
    }
  }
  return peers;
}

PeerThread::PeerThread() {
  if (OnGpu()) cuda::PushContext();
}

PeerThread::~PeerThread() {
  if (OnGpu()) cuda::PopContext();
}

Streams::Streams(int count) {
  for (int i = 0; i < count; ++i) {
    // Above the handles that mean a default stream.
    streams_.push_back(OnGpu() ? cuda::NewStream()
                               : reinterpret_cast<Stream>(uintptr_t{0x1000} * (i + 1)));
  }
}

Streams::~Streams() {
  if (!OnGpu()) return;
  for (Stream stream : streams_) cuda::EndStream(stream);
}

void KeepBusy(const Block& block, Stream stream) { cuda::Fill(block, stream); }
void WaitFor(Stream stream) { cuda::Synchronize(stream); }
bool IsCaptured(Stream stream) { return cuda::IsCapturing(stream); }

}  // namespace gpumem::bench
