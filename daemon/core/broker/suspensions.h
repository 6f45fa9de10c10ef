// SPDX-License-Identifier: Apache-2.0
// Requests of sessions to the broker about suspended leases. To resume them is an Acquisition with
// AcquireSpec::resumes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/suspension/suspension_requests.h"
#include "daemon/core/suspension/suspensions.h"

namespace gpumemd {

// Statuses as in proto/gpumem/v1/broker.proto. Thread-safe.
class BrokerSuspensions {
 public:
  // `broker` must outlive this.
  explicit BrokerSuspensions(Broker* broker) : broker_(*broker) {}

  absl::StatusOr<Suspensions::Reservation> Prepare(const BrokerCall& call,
                                                   absl::Span<const LeaseId> leases);
  void Cancel(const BrokerCall& call, uint64_t reservation);
  struct Suspended {
    uint64_t moved_bytes = 0;
    uint64_t resident_bytes = 0;
  };
  // Blocks until the contents are in the tier and the devices' memory is free.
  absl::StatusOr<Suspended> Suspend(const BrokerCall& call, absl::Span<const LeaseId> leases,
                                    uint64_t reservation);
  // Returns the present request of an operator to the session.
  std::optional<SuspensionRequests::Request> Requested(const BrokerCall& call) const;

 private:
  using Move = Suspensions::Move;

  // Makes the segments in the tier and copies the contents of all moves.
  absl::Status CopyOut(const std::vector<Move>& moves);
  // Waits until the driver has the memory of the moved segments back. False at the deadline.
  bool AwaitFree(const std::vector<Move>& moves, absl::Time deadline) const;

  Broker& broker_;
};

inline BrokerSuspensions Broker::suspensions() { return BrokerSuspensions(this); }

}  // namespace gpumemd
