// The bare driver beside the pool: streams, and the peers that are CUDA's own. For the thread that
// calls: its primary context must be current there, see PeerThread. What fails ends the program.
// Where the build has no CUDA, or the driver is not there, everything does.
#pragma once

#include <memory>

#include "gpumem/pool.h"
#include "tests/bench/pool_peer.h"

namespace gpumem::bench::cuda {

void PushContext();
void PopContext();
Stream NewStream();
void EndStream(Stream stream);
void Fill(const Block& block, Stream stream);
void Synchronize(Stream stream);
// Whether the stream is being captured into a graph, as the driver says it.
bool IsCapturing(Stream stream);

std::unique_ptr<PoolPeer> MakeMalloc();
std::unique_ptr<PoolPeer> MakeMallocAsync();

}  // namespace gpumem::bench::cuda
