// SPDX-License-Identifier: Apache-2.0
// The demo's worker processes.
//
// Each talks to the director in lines. It writes
//   say TEXT      its present action, for people
//   ok TEXT       a check that held
//   fail TEXT     one that did not; the worker ends
//   ticket TEXT   a ticket for the director to hand over
//   ready         it has done its part, and waits
// and reads "go" to do its next part.
#pragma once

#include <string>

#include "common/bytes.h"

namespace gpumem::demo {

// The segments, and their holders.
inline constexpr char kTraining[] = "training";
inline constexpr char kInference[] = "inference";
inline constexpr int kProducerSegments = 4;
inline constexpr uint64_t kProducerSegmentBytes = 16 * kMiB;
inline constexpr uint64_t kKindBytes = 8 * kMiB;
inline constexpr uint64_t kTrainingLimit = 96 * kMiB;
inline constexpr uint64_t kInferenceLimit = 32 * kMiB;

// Plays `role` ("producer", "consumer", "greedy", "holder"; "maker-KIND", "opener"; "recorder",
// "waiter") and returns the exit code.
int RunWorker(const std::string& role);

}  // namespace gpumem::demo
