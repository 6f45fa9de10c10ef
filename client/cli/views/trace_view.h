// SPDX-License-Identifier: Apache-2.0
// Summaries of traces: where calls spend their time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/text/json.h"
#include "client/cli/text/table.h"
#include "common/trace/reader.h"

namespace gpumem::cli {

// All times are microseconds.
struct TraceStep {
  std::string name;
  bool daemon = false;
  size_t depth = 0;      // number of steps that contain it
  size_t calls = 0;      // that have it
  double start = 0;      // median, from the begin of the call
  double length = 0;     // median, of all its spans in a call
  double length_99 = 0;  // the same, of 99 in 100 calls
};

// Calls of one kind.
struct TraceCalls {
  std::string name;  // "acquire", "release", …
  // Of acquires: "fresh" if memory was made for them, else "retained". Else empty.
  std::string memory;
  bool has_client = false;  // its times are from the client's call to its return
  size_t calls = 0;
  double length = 0, length_99 = 0;
  std::vector<TraceStep> steps;  // by their starts
};

// Returns the kinds of calls, those with the most time first. A client's call and the daemon's part
// of it are one if both are there.
std::vector<TraceCalls> SummaryOf(const std::vector<trace::Slice>& slices);

std::string TraceView(const trace::Reader& reader, const Layout& layout);
Json TraceJson(const trace::Reader& reader);

}  // namespace gpumem::cli
