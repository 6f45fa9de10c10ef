// SPDX-License-Identifier: Apache-2.0
// Segments of one session that are suspended or resumed together (gpumem/suspend.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/mapping/remapping.h"
#include "client/session/interrupt.h"
#include "client/session/session.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"

namespace gpumem::internal {

// Lives during one call. The segments must outlive it, and no other thread may use them. Any number
// of segments: more than the protocol takes at once go in several calls, all or none.
class Suspension {
 public:
  using State = Remapping::State;
  using States = Remapping::States;

  // Checks the segments. `suspended`: the state that they must be in.
  //   INVALID_ARGUMENT     none, one twice, one that is not valid or not the session's
  //   UNIMPLEMENTED        one is of a kind that cannot be suspended
  //   FAILED_PRECONDITION  one is in the other state
  static absl::StatusOr<Suspension> Of(std::shared_ptr<Session> session,
                                       absl::Span<Segment* const> segments, bool suspended);

  // See Client::Suspend and Client::Resume.
  absl::Status Suspend(const SuspendOptions& options);
  absl::Status Resume(absl::Duration wait, std::optional<absl::Duration> timeout,
                      const Disturbance& disturbance);

 private:
  Suspension(std::shared_ptr<Session> session, States states)
      : session_(std::move(session)), states_(std::move(states)) {}

  // Returns the deadline of a call that begins now and moves bytes.
  absl::Time Deadline(std::optional<absl::Duration> timeout) const;
  // Blocks until this process no longer uses the memory.
  absl::Status Quiesce(const SuspendOptions& options) const;
  // Suspends segments of one call. On an error some may be unmapped. `quiesces`: calls Quiesce()
  // for all segments.
  absl::Status SuspendPart(absl::Span<State* const> part, const SuspendOptions& options,
                           bool quiesces);
  // Unmaps all. On an error the first ones are unmapped.
  static absl::Status Unmap(absl::Span<State* const> states);
  // Maps again what a failed Suspend() has unmapped. Returns `error`, with a note if that fails.
  absl::Status Undo(const absl::Status& error, std::optional<absl::Duration> timeout);

  struct Wait {
    absl::Duration wait;
    std::optional<absl::Duration> timeout;
    const Disturbance& disturbance;
  };
  // Brings `states` back, all or none. Holds no part for long while it waits for another.
  absl::Status Restore(const States& states, const Wait& wait);
  // Brings back those of one call. On an error some may be mapped.
  absl::Status RestoreGroup(const States& group, const Wait& wait);
  // Unmaps those that are mapped and suspends all, as far as possible. Returns true if all are
  // unmapped.
  bool PutBack(const States& states, std::optional<absl::Duration> timeout);

  std::shared_ptr<Session> session_;
  States states_;
};

}  // namespace gpumem::internal
