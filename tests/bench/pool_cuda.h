// SPDX-License-Identifier: Apache-2.0
// The bare driver beside the pool: streams, and CUDA's own peers. Requires the primary context to
// be current in the calling thread, see PeerThread. An error ends the program; so does every call
// if the build has no CUDA, or there is no driver.
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
// True if the stream is being captured into a graph, by the driver's answer.
bool IsCapturing(Stream stream);

std::unique_ptr<PoolPeer> MakeMalloc();
std::unique_ptr<PoolPeer> MakeMallocAsync();

}  // namespace gpumem::bench::cuda
