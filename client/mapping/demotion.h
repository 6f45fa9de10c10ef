// SPDX-License-Identifier: Apache-2.0
// Segments of one session that are demoted or promoted together (gpumem/demote.h).
//
// Each segment gets a second lease, on memory of the other kind, and the bytes are copied. Then its
// mapping is switched and the two leases exchange their segments. Until the exchange all is undone
// by switching back; after it, only the release of the second lease is left.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/mapping/demotion_batch.h"
#include "client/mapping/remapping.h"
#include "client/session/interrupt.h"
#include "client/session/session.h"
#include "gpumem/client.h"
#include "gpumem/demote.h"

namespace gpumem::internal {

// Lives during one call. The segments must outlive it, and no other thread may use the Segments.
class Demotion {
 public:
  enum class Direction { kDemote, kPromote };

  // Checks the segments.
  //   INVALID_ARGUMENT     none, one twice, one that is not valid or not the session's
  //   UNIMPLEMENTED        one is of a kind that cannot be demoted
  //   FAILED_PRECONDITION  one is in the other state, suspended, revocable or scratch, or the
  //                        program has its descriptor
  static absl::StatusOr<Demotion> Of(std::shared_ptr<Session> session,
                                     absl::Span<Segment* const> segments, Direction direction);

  // See Client::Demote and Client::Promote. The wait obeys `disturbance`, not options.cancel.
  absl::Status Run(const DemoteOptions& options, const Disturbance& disturbance);

 private:
  using States = Remapping::States;

  Demotion(std::shared_ptr<Session> session, States states, Direction direction)
      : session_(std::move(session)), states_(std::move(states)), direction_(direction) {}

  // Gets the other memory of all batches, maps it elsewhere and copies to it. Changes no segment.
  absl::Status Prepare(const DemoteOptions& options, const Disturbance& disturbance);
  // Switches and exchanges all.
  absl::Status Take(const DemoteOptions& options);
  // Switches the mappings of a batch, some at a time. Stops at an error; backwards, only at one of
  // `pause`.
  absl::Status Switch(DemotionBatch& batch, DemotionBatch::Memory to,
                      const DemoteOptions& options) const;
  // Brings all back to the old memory after a failed Take(), as far as possible.
  void Undo(const DemoteOptions& options);
  // Returns `error`, with a note if segments are not as they were.
  absl::Status Explain(const absl::Status& error) const;

  std::shared_ptr<Session> session_;
  States states_;
  Direction direction_;
  std::vector<std::string> devices_;  // that the segments are mapped for
  std::vector<DemotionBatch> batches_;
};

}  // namespace gpumem::internal
