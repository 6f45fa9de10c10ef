// SPDX-License-Identifier: Apache-2.0
// Segments whose memory is replaced at their addresses: what suspending and demoting share. And the
// GPU that a segment is mapped for.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/mapping/segment_state.h"
#include "client/session/session.h"
#include "common/mapping/mapping.h"
#include "gpumem/segment.h"

namespace gpumem::internal {

class Remapping {
 public:
  using State = Segment::State;
  using States = std::vector<State*>;

  // Returns the states of segments of a session.
  //   INVALID_ARGUMENT  none, one twice, one that is not valid or not the session's
  static absl::StatusOr<States> StatesOf(const std::shared_ptr<Session>& session,
                                         absl::Span<Segment* const> segments);

  // Returns the deadline of a call that begins now and moves the bytes of the segments.
  static absl::Time Deadline(const Session& session, const States& states,
                             std::optional<absl::Duration> timeout);

  // Returns the GPUs that mapped segments are mapped for, each once.
  static std::vector<std::string> DevicesOf(absl::Span<State* const> states);

  // Returns the GPU of this process that uses a valid segment of the CUDA backend: the first that
  // it is mapped for. That may be another one than the segment's device, and memory of kind host is
  // of no GPU.
  static std::string GpuOf(const Segment& segment);

  // Unmaps a segment, and keeps its addresses reserved. Closes its descriptor, which would keep the
  // memory.
  static absl::Status Unmap(State* state);

  // Maps memory at the addresses of unmapped segments, in the order of the addresses. Calls `map`
  // for each range without a gap, with the number of its first segment. On an error the first ones
  // may be mapped.
  using Map =
      absl::FunctionRef<absl::StatusOr<Mappings>(size_t first, size_t count, const MapOptions&)>;
  static absl::Status MapReserved(absl::Span<State* const> states, Map map);
};

}  // namespace gpumem::internal
