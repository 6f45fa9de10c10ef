// SPDX-License-Identifier: Apache-2.0
// Work of streams that waits for something: for a word of memory (cuStreamWaitValue32), or for an
// event behind such a wait. All other work is done at once.
//
// The order is CUDA's: that of the stream; and the legacy default stream and streams without
// CU_STREAM_NON_BLOCKING wait for each other. A thread that waits for a stream, or looks at one,
// does the work that has become possible.
#pragma once

#include <functional>

#include "tests/fake_cuda/state.h"

namespace fake_cuda {

// Calls `run` in the order of the stream, once `ready` is true: at once, or later, from any thread,
// with the state's lock. Requires that.
void Submit(State& state, CUstream stream, std::function<void()> run,
            std::function<bool()> ready = nullptr);

// True if work submitted to the stream now has to wait.
bool HasPending(State& state, CUstream stream);

// Block until that is not so: of a stream, of the legacy stream, of all. The lock must not be held.
void AwaitStream(CUstream stream);
void AwaitLegacy();
void AwaitAll();

// Blocks until `done` is true.
void Await(const std::function<bool(State&)>& done);

// Keeps the work of a stream that is destroyed. Requires the lock.
void Orphan(State& state, CUstream stream);

}  // namespace fake_cuda
