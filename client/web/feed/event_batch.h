// SPDX-License-Identifier: Apache-2.0
// Events that were read and wait to be sent. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "proto/gpumem/v1/event_record.pb.h"

namespace gpumem::web {

struct EventBatch {
  // Of each list at most; of `later` for a moment twice as many.
  static constexpr size_t kMost = 2000;

  std::vector<v1::EventRecord> past;   // of a daemon's past, in order; not told before
  std::vector<v1::EventRecord> later;  // as they came after those
  // Absent: no news. OK: events are read; else why they are not.
  std::optional<absl::Status> state;

  bool empty() const { return past.empty() && later.empty() && !state; }
  // Appends the next batch. Where there is too much, the oldest are dropped.
  void Append(EventBatch next);
};

}  // namespace gpumem::web
