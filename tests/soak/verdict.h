// SPDX-License-Identifier: Apache-2.0
// What a soak's table shows: which figures grow with time.
//
// A daemon that is killed takes its leaks with it. So a soak has two parts. In the first one the
// daemon is killed and restarted again and again; in the second one, the calm one, it lives on, and
// all other faults go on. A series is looked at in one of three ways:
//
//   kCalm   the samples of the calm part, for what a daemon accumulates while it lives
//   kLives  one value for each daemon, its median soon after its start, for what one daemon hands
//           to the next
//   kWhole  all samples, for processes that are not restarted
//
// The first fifth of the samples is left out: memory is taken once, until a process has seen each
// kind of work. gpumemd also fills its history of an hour (daemon/core/history). So the first hour
// of a calm part of more than two is left out, and a shorter one has higher floors. What spans less
// than four minutes shows nothing.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/soak/sample.h"
#include "tests/soak/trend.h"

namespace gpumem::soak {

enum class Part { kCalm, kLives, kWhole };

struct Series {
  std::string column;
  Part part = Part::kWhole;
  double floor = 0;        // the growth in an hour that does not count; see verdict.cc
  double first_floor = 0;  // the same in the first hour of a daemon, for kCalm; 0: no other
};
const std::vector<Series>& AllSeries();

struct Verdict {
  Series series;
  double median = 0;
  Trend trend;
  Finding finding = Finding::kNotShown;
};

// Leaves out series without a sample.
std::vector<Verdict> JudgeTable(absl::Span<const Figures> rows);
// Returns a table for people, with a line for each series.
std::string TextOf(absl::Span<const Verdict> verdicts);

}  // namespace gpumem::soak
