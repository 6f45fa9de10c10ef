// SPDX-License-Identifier: Apache-2.0
// Writes spans in Perfetto's trace format (perfetto.proto).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/trace/perfetto.pb.h"
#include "common/trace/span.h"

namespace gpumem::trace {

// The process whose spans are written.
struct Process {
  int32_t pid = 0;
  std::string name;
  // True if its pid and thread ids are those of the machine. In another PID namespace they could
  // be those of other processes: then its tracks have names in place of numbers.
  bool in_machine_namespace = true;
  // Returns the name of one of its threads; empty: not known.
  std::function<std::string(uint32_t)> thread_name;

  // Describes this process.
  static Process Self();
};

// The categories of spans: which side recorded them, and kCallCategory for whole calls.
inline constexpr char kDaemonCategory[] = "gpumemd";
inline constexpr char kClientCategory[] = "libgpumem";
inline constexpr char kCallCategory[] = "call";
// The name of the mark that spans were lost.
inline constexpr char kDropped[] = "spans dropped";

// Writes one recording. Its output, in pieces or whole, can be appended to other traces.
class Encoder {
 public:
  // `category`: of all spans, in addition to kCallCategory. `started_ns`: Recording::started_ns().
  Encoder(std::string category, Process process, uint64_t started_ns);

  // Appends the events to `trace`, with descriptions of tracks that it has not described yet. The
  // events of a thread must be in the order of their ends.
  void Add(absl::Span<const Event> events, std::string* trace);

  // Appends a mark that spans were lost.
  void AddDropped(uint64_t count, std::string* trace);

 private:
  void Describe(std::string* trace);
  uint64_t ThreadTrack(uint32_t thread, std::string* trace);
  uint64_t RequestTrack(const Event& event, std::string* trace);
  void Append(perfetto::TracePacket& packet, std::string* trace);
  void AppendBegin(const Event& event, uint64_t track, std::string* trace);
  void AppendEnd(uint64_t end_ns, uint64_t track, std::string* trace);

  const std::string category_;
  const Process process_;
  const uint64_t started_ns_;
  const uint64_t uuid_;  // of the process's track
  bool described_ = false;
  absl::flat_hash_set<uint32_t> threads_;  // that are described
  perfetto::Trace one_;                    // reused for each packet
};

}  // namespace gpumem::trace
