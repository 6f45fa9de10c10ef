// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/work.h"

#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <unistd.h>

#include <utility>

#include "tests/fake_cuda/graph.h"

namespace fake_cuda {
namespace {

// Streams, those that were destroyed with work pending, and the default streams. Threads share one
// per-thread default stream.
std::vector<CUstream> All(State& state) {
  std::vector<CUstream> all = {&state.legacy, &state.per_thread};
  all.insert(all.end(), state.streams.begin(), state.streams.end());
  all.insert(all.end(), state.orphans.begin(), state.orphans.end());
  return all;
}

CUstream Real(State& state, CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return &state.legacy;
  if (stream == CU_STREAM_PER_THREAD) return &state.per_thread;
  CaptureOf(state, stream);  // it must exist
  return stream;
}

bool IsBlocking(CUstream stream) { return (stream->flags & CU_STREAM_NON_BLOCKING) == 0; }

// True if the stream has work that comes before another stream's.
bool ComesBefore(CUstream stream, uint64_t number) {
  return !stream->work.empty() && stream->work.front().number < number;
}

bool MayRun(State& state, CUstream stream, const Work& work) {
  if (stream != &state.legacy) {
    return !IsBlocking(stream) || !ComesBefore(&state.legacy, work.number);
  }
  for (CUstream other : All(state)) {
    if (other != stream && IsBlocking(other) && ComesBefore(other, work.number)) return false;
  }
  return true;
}

// Does what can be done. Requires the lock.
void Pump(State& state) {
  for (bool more = true; more;) {
    more = false;
    for (CUstream stream : All(state)) {
      while (!stream->work.empty()) {
        Work& next = stream->work.front();
        if (!MayRun(state, stream, next) || (next.ready && !next.ready())) break;
        const Work work = std::move(next);
        stream->work.pop_front();
        if (work.run) work.run();
        more = true;
      }
    }
  }
}

}  // namespace

void Submit(State& state, CUstream stream, std::function<void()> run, std::function<bool()> ready) {
  Real(state, stream)->work.push_back({++state.last_work, std::move(ready), std::move(run)});
  Pump(state);
}

bool HasPending(State& state, CUstream stream) {
  Pump(state);
  stream = Real(state, stream);
  Work now;
  now.number = state.last_work + 1;
  return !stream->work.empty() || !MayRun(state, stream, now);
}

void Await(const std::function<bool(State&)>& done) {
  while (true) {
    {
      Call call;
      Pump(call.state);
      if (done(call.state)) return;
    }
    usleep(200);
  }
}

void AwaitStream(CUstream stream) {
  Await([stream](State& state) { return !HasPending(state, stream); });
}

void AwaitLegacy() { AwaitStream(CU_STREAM_LEGACY); }

void AwaitAll() {
  Await([](State& state) {
    for (CUstream stream : All(state)) {
      if (!stream->work.empty()) return false;
    }
    return true;
  });
}

void Orphan(State& state, CUstream stream) {
  if (!stream->work.empty()) state.orphans.push_back(stream);
}

}  // namespace fake_cuda

#endif  // GPUMEM_PRELOAD_BUILT
