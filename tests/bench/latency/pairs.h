// SPDX-License-Identifier: Apache-2.0
// Calls beside their floors, in turn in one loop: both see the same machine, on the same CPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "tests/bench/latency/pair_samples.h"
#include "tests/bench/samples.h"

namespace gpumem::bench {

// Context switches, by process: this one, the daemon, and the bare owner.
struct Switches {
  double client = 0, daemon = 0, owner = 0;
};

// Times the measured part of a call, or counts its context switches.
class Stopwatch {
 public:
  explicit Stopwatch(bool counts_switches) : counts_switches_(counts_switches) {}

  template <typename Work>
  void Run(Work&& work) {
    const Switches before = counts_switches_ ? Now() : Switches();
    time_ += Time(std::forward<Work>(work));
    if (counts_switches_) Add(before);
  }

  absl::Duration time() const { return time_; }
  const Switches& switches() const { return switches_; }

 private:
  static Switches Now();
  void Add(const Switches& before);

  const bool counts_switches_;
  absl::Duration time_;
  Switches switches_;
};

// A call and its floor. Each runs the measured part under the stopwatch, then restores the state
// before it.
class Sides {
 public:
  virtual ~Sides() = default;
  virtual void Floor(Stopwatch& watch) = 0;
  virtual void Call(Stopwatch& watch) = 0;
};

struct PairRow {
  std::string name;   // of the benchmark
  std::string work;   // the table's words for the call
  std::string floor;  // and for its floor
  std::string reach;  // the ratio to reach; empty: none
  int pairs = 0;
  std::function<std::unique_ptr<Sides>()> begin;
};

struct LatencyRun {
  // For a look at whether it works: a few pairs of each row. Its figures mean nothing.
  bool quick = false;
};

// Registers the benchmark of a row. PrintPairs prints the rows that have run, as a table in
// Markdown.
void AddPairs(const LatencyRun& run, PairRow row);
void PrintPairs();

}  // namespace gpumem::bench
