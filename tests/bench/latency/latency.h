// SPDX-License-Identifier: Apache-2.0
// The benchmarks of latency, by subject: each call beside its floor, in turn. All use the Bed.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/latency/pairs.h"

namespace gpumem::bench {

// One segment at a time.
void RegisterSegmentPairs(const LatencyRun& run);
// As many segments as a model has.
void RegisterModelPairs(const LatencyRun& run);

// Many clients at once, beside as many that map without the broker.
void RegisterThroughput(const LatencyRun& run);
void PrintThroughput();
int RunTrips(const std::vector<std::string>& args);  // --role trips

// An acquire right after a thousand releases that were not waited for, at the tenant's limit.
void RegisterReleasesAtLimit(const LatencyRun& run);
void PrintReleasesAtLimit();

// To explain the figures of the others: calls after pauses, the parts of a worker's start, the
// steps of mapping, and conditions of making memory.
void RegisterExplainCalls(const LatencyRun& run);
void RegisterExplainParts(const LatencyRun& run);
void PrintExplainParts();
void RegisterExplainSteps(const LatencyRun& run);
void PrintExplainSteps();
void RegisterExplainMaking(const LatencyRun& run);
void PrintExplainMaking();
int RunMaker(const std::vector<std::string>& args);  // --role maker

}  // namespace gpumem::bench
