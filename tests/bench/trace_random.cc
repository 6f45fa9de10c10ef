// SPDX-License-Identifier: Apache-2.0
// RMM's benchmark "random_allocations", rebuilt from its description. It has as many operations as
// it takes to allocate a number of blocks and free them, each a fair coin between the two. Sizes
// are uniform up to a maximum; a free takes any of the live blocks. Nothing is allocated above a
// cap on the live bytes: then a block is freed instead. RMM runs it with 1,000 to 100,000
// allocations, of up to 1 MiB to 4 GiB, under a cap of 16,000 MiB; ours are 100,000 each.
#include "tests/bench/trace.h"

namespace gpumem::bench {

Trace MakeRandomTrace(const std::string& name, int allocations, uint64_t max_bytes,
                      uint64_t max_live_bytes, uint64_t seed) {
  struct Live {
    uint32_t id;
    uint64_t bytes;
  };
  TraceBuilder trace(name);
  Random random(seed);
  std::vector<Live> live;
  uint64_t live_bytes = 0;
  for (int left = allocations; left > 0 || !live.empty();) {
    const uint64_t bytes = random.Uniform(1, max_bytes);
    const bool fits = live_bytes + bytes <= max_live_bytes;
    if (left > 0 && fits && (live.empty() || random.Unit() < 0.5)) {
      live.push_back({.id = trace.Allocate(bytes), .bytes = bytes});
      live_bytes += bytes;
      --left;
    } else {
      Live& freed = live[random.Uniform(0, live.size() - 1)];
      trace.Free(freed.id);
      live_bytes -= freed.bytes;
      freed = live.back();
      live.pop_back();
    }
  }
  return std::move(trace).Build();
}

}  // namespace gpumem::bench
