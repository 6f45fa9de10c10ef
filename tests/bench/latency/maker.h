// SPDX-License-Identifier: Apache-2.0
// A process that makes and frees memory by bare calls, under conditions that its parent names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/bench/samples.h"
#include "tests/support/child.h"

namespace gpumem::bench {

// The conditions of one kind of experiment, which is repeated. Before each, the process waits until
// the driver has cleared what was freed.
struct Conditions {
  uint64_t bytes = 0;
  // Freed before: one allocation of `freed_bytes` each.
  uint64_t freed_bytes = 0;
  int freed = 0;
  // kNone: nothing is freed. kSelf: by the thread that then makes memory. kThread: by another
  // thread, before. kDuring: by another thread, at the same time.
  enum class Freer { kNone, kSelf, kThread, kDuring } freer = Freer::kNone;
  absl::Duration pause;     // between the free and the creation
  bool spins = false;       // during the pause, so that the CPU does not fall asleep
  bool new_thread = false;  // the memory is made by a thread that has made none before
  bool little = false;      // 2 MiB are made and freed right before
};

// Times of the steps.
struct Steps {
  Samples create, export_, release, free;  // free: of what was freed before
};

class Maker {
 public:
  // `with_context`: the process keeps a CUDA context. The daemon's has none.
  explicit Maker(bool with_context);
  absl::StatusOr<Steps> Try(const Conditions& conditions, int times);

 private:
  testing::Child child_;
};

}  // namespace gpumem::bench
