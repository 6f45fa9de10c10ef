// SPDX-License-Identifier: Apache-2.0
// The allocators that are compared, behind one small interface, and the means to call them: streams
// and, on a GPU, a current context.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "gpumem/pool.h"

namespace gpumem::bench {

// Every function may be called from any thread that has a PeerThread. An error ends the program
// with a message. The destructor gives all memory back.
class PoolPeer {
 public:
  virtual ~PoolPeer() = default;
  virtual Block Allocate(uint64_t bytes, Stream stream) = 0;
  virtual void Free(const Block& block, Stream stream) = 0;

  // Bytes that it has taken from the device or daemon, now and at most. 0: it does not say.
  virtual uint64_t Reserved() const { return 0; }
  virtual uint64_t ReservedPeak() const { return 0; }
  // How it had the memory that it gave, as counters of the row.
  virtual void Tell(benchmark::State&) const {}
};

struct PeerKind {
  std::string name;  // "pool", "malloc", "cudaMalloc", "cudaMallocAsync"
  std::function<std::unique_ptr<PoolPeer>()> make;
  uint64_t alignment = 1;  // that it promises
  bool scales = true;      // is measured with several threads, too
};

// Returns the peers of the bed's backend. The first is gpumem's pool.
//
//   pool             a new gpumem::Pool of the default options, tenant "fresh"
//   malloc           host: glibc's; the memory is not touched. A mere orientation
//   cudaMalloc       CUDA: cuMemAlloc and cuMemFree, which know no streams
//   cudaMallocAsync  CUDA: a separate memory pool that keeps all its memory
//                    (cuMemAllocFromPoolAsync, release threshold UINT64_MAX): the same as the
//                    device's default pool, but that its end gives its memory back
//
// `check`: checks all of their blocks, as by Checked().
std::vector<PeerKind> PoolPeers(bool check);

// Wraps a peer, for passes that are not timed, or whose times mean nothing. Dies if two blocks
// overlap, or if one is smaller than requested or not aligned to `alignment`.
std::unique_ptr<PoolPeer> Checked(std::unique_ptr<PoolPeer> peer, uint64_t alignment);

// Makes a peer that does nothing, to measure the loop alone.
std::unique_ptr<PoolPeer> MakeIdlePeer();

// Makes the bed's GPU the current one of this thread while it lives; on the host nothing.
class PeerThread {
 public:
  PeerThread();
  ~PeerThread();
  PeerThread(const PeerThread&) = delete;
  PeerThread& operator=(const PeerThread&) = delete;
};

// Streams of the bed's GPU that wait for no other; on the host mere names. To be made before, and
// thus ended after, the peer that is used with them.
class Streams {
 public:
  explicit Streams(int count);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  Stream operator[](size_t i) const { return streams_[i]; }

 private:
  std::vector<Stream> streams_;
};

// Work on the stream that uses the block for some time. Only for a GPU.
void KeepBusy(const Block& block, Stream stream);
void WaitFor(Stream stream);

// The pool's questions to the driver about a stream other than the legacy default one, at each
// allocation and at each free.
bool IsCaptured(Stream stream);

}  // namespace gpumem::bench
