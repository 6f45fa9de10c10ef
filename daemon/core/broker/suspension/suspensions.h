// SPDX-License-Identifier: Apache-2.0
// Requests to the broker about suspended memory, of sessions and of operators. To resume leases is
// an Acquisition with AcquireSpec::resumes, and an Attach brings a publication back by one with
// AcquireSpec::publication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/suspension/exchange.h"
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
    uint64_t dropped_bytes = 0;
  };
  // Blocks until the contents are in the tier and the devices' memory is free.
  absl::StatusOr<Suspended> Suspend(const BrokerCall& call, absl::Span<const LeaseId> leases,
                                    uint64_t reservation);
  // Exchanges the segments of pairs of leases (Exchanges).
  absl::Status Exchange(const BrokerCall& call, absl::Span<const Exchanges::Pair> pairs,
                        bool check_only);
  // Returns the present request to the session, of an operator or of the policy.
  std::optional<SuspensionRequests::Request> Requested(const BrokerCall& call) const;
  // As SwapPolicy::Reported.
  void ReportActivity(const BrokerCall& call);

  // Of operators, for a publication "TENANT/NAME". Statuses as SuspendPublication and
  // ResumePublication in proto/gpumem/v1/admin.proto (operator_suspensions.cc).
  struct PublicationMoved {
    std::string tenant;
    uint64_t version = 0;
    uint64_t segments = 0;  // that moved
    uint64_t bytes = 0;     // of these
  };
  // Blocks until the contents are in the tier and the devices' memory is free. Also after an error
  // `moved` tells what has moved.
  absl::Status SuspendPublication(absl::string_view name, PublicationMoved& moved);
  // Blocks until all is back on the devices. Calls `cancelled` some times a second; true ends the
  // wait with CANCELLED. Also after an error `moved` tells what has moved.
  absl::Status ResumePublication(absl::string_view name, absl::Time deadline,
                                 absl::FunctionRef<bool()> cancelled, PublicationMoved& moved);
  // Moves one segment that its last user has let go of, if there is one.
  void MoveLater();

 private:
  using Move = Suspensions::Move;

  // Copies the contents of all moves, and ends the moves. Returns why they moved nothing. If OK,
  // removes those that moved nothing because all holders have ended meanwhile.
  absl::Status Carry(std::vector<Move>& moves);
  // Returns the segments that moves leave.
  static std::vector<SegmentId> LeftBy(const std::vector<Move>& moves);
  // Makes the segments in the tier and copies the contents of all moves that are not dropped.
  absl::Status CopyOut(const std::vector<Move>& moves);
  // Waits until the driver has the memory of the moved segments back. False at the deadline.
  bool AwaitFree(const std::vector<SegmentId>& moved, absl::Time deadline) const;
  // Waits until no segment is being copied. Returns the bytes of those that are still on a device.
  uint64_t AwaitCopies(const std::vector<SegmentId>& copying) const;
  // Carries an operation that brings a publication's segments back out. Returns their bytes.
  absl::StatusOr<uint64_t> BringBack(const Operation& operation);
  // Returns the newest version under a name, and sets `moved`.
  //   INVALID_ARGUMENT  the name has no tenant, or is malformed
  //   NOT_FOUND         there is none
  absl::StatusOr<PublicationId> Find(absl::string_view name, PublicationMoved& moved) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(broker_.mutex_);

  Broker& broker_;
};

inline BrokerSuspensions Broker::suspensions() { return BrokerSuspensions(this); }

}  // namespace gpumemd
