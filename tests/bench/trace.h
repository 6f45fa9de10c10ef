// SPDX-License-Identifier: Apache-2.0
// Workloads as lists of requests to an allocator, to be replayed on any of them. Made by the code
// in trace_*.cc, from the shapes of real programs and seeded random numbers: the same on every
// machine.
//
//   training       trace_training.cc: steps of a 1.3B transformer's training
//   serving        trace_serving.cc: an inference server with continuous batching, 8B model
//   random-1MiB    trace_random.cc: RMM's random allocations, blocks of up to 1 MiB;
//   random-64MiB   up to 64 MiB;
//   random-1GiB    up to 1 GiB
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gpumem::bench {

struct TraceEvent {
  uint64_t bytes = 0;  // to allocate; 0: frees
  // The block's id. The id of a freed block goes to a later block, so that ids are dense.
  uint32_t id = 0;
  uint32_t stream = 0;  // 0, 1, ...: which of the program's streams
};

struct Trace {
  std::string name;
  std::vector<TraceEvent> events;  // each block is allocated once, then freed once
  uint32_t ids = 0;                // all are below
  uint32_t streams = 1;
};

// The most that is live at once in the first `events` of it, as asked for.
uint64_t LivePeakBytes(const Trace& trace, size_t events = SIZE_MAX);

const std::vector<std::string>& TraceNames();
//   NOT_FOUND  no trace of that name
absl::StatusOr<Trace> MakeTrace(const std::string& name);
// Writes text, a line an event: "+ ID BYTES STREAM" or "- ID STREAM"; lines with # are comments.
absl::Status WriteTrace(const Trace& trace, const std::string& path);

class TraceBuilder {
 public:
  explicit TraceBuilder(std::string name) { trace_.name = std::move(name); }

  uint32_t Allocate(uint64_t bytes, uint32_t stream = 0);
  void Free(uint32_t id, uint32_t stream = 0);
  // Frees the remaining blocks, in the order of their ids.
  Trace Build() &&;

 private:
  Trace trace_;
  std::vector<uint32_t> unused_;  // ids
  std::vector<bool> live_;        // by id
};

// Random numbers that are the same with every standard library, which leaves its distributions
// open, but not its engines.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // In [0, 1).
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  // In [low, high].
  uint64_t Uniform(uint64_t low, uint64_t high) {
    return low + static_cast<uint64_t>(Unit() * static_cast<double>(high - low + 1));
  }
  double Exponential(double mean) { return -mean * std::log(1 - Unit()); }
  double LogNormal(double median, double sigma) {
    const double normal =
        std::sqrt(-2 * std::log(1 - Unit())) * std::cos(2 * 3.14159265358979 * Unit());
    return median * std::exp(sigma * normal);
  }
  // Returns a number from low to high; every factor is as likely as every other.
  uint64_t LogUniform(uint64_t low, uint64_t high) {
    const auto from = static_cast<double>(low), to = static_cast<double>(high);
    return static_cast<uint64_t>(from * std::pow(to / from, Unit()));
  }

 private:
  std::mt19937_64 engine_;
};

Trace MakeTrainingTrace();
Trace MakeServingTrace();
// `allocations` blocks of 1 to `max_bytes`, at most `max_live_bytes` of them at once.
Trace MakeRandomTrace(const std::string& name, int allocations, uint64_t max_bytes,
                      uint64_t max_live_bytes, uint64_t seed);

}  // namespace gpumem::bench
