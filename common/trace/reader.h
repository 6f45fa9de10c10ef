// SPDX-License-Identifier: Apache-2.0
// Reads traces that Encoder has written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/trace/perfetto.pb.h"

namespace gpumem::trace {

// A span as a trace has it.
struct Slice {
  std::string name;
  bool daemon = false;   // the daemon's; else a client's
  bool call = false;     // a whole call
  uint64_t process = 0;  // a number for the process that recorded it
  uint64_t track = 0;
  uint64_t begin_ns = 0, end_ns = 0;
  uint64_t session = 0, request = 0, number = 0, bytes = 0;  // number: of the call
};

inline constexpr size_t kMostPacketBytes = size_t{16} << 20;

// Reads a trace piece by piece. Skips packets of other programs.
class Reader {
 public:
  // Reads the whole packets that `piece` begins with, and returns their bytes. The next piece must
  // begin after them.
  //   INVALID_ARGUMENT  it is no such trace, or a packet has more than kMostPacketBytes
  absl::StatusOr<size_t> Add(absl::string_view piece);

  // In the order of their ends, as far as they come from one thread.
  const std::vector<Slice>& slices() const { return slices_; }
  uint64_t dropped() const { return dropped_; }

 private:
  void Read(const perfetto::TracePacket& packet);

  absl::flat_hash_map<uint64_t, std::vector<Slice>> open_;  // by track
  std::vector<Slice> slices_;
  uint64_t dropped_ = 0;
};

}  // namespace gpumem::trace
