// SPDX-License-Identifier: Apache-2.0
// The parts of the messages of a session's lane (lane.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "client/session/lease_book.h"
#include "client/session/release/release_queue.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::internal {

// Pending releases that a message takes along. Until they are settled, other calls wait for that.
struct CarriedRelease {
  LeaseBook::PendingRelease release;  // empty: none
  std::optional<ReleaseQueue::Flush> flush;
  bool others_sent = true;
};

inline v1::ReleaseRequest ToRequest(const LeaseBook::PendingRelease& pending) {
  v1::ReleaseRequest request;
  request.mutable_lease_ids()->Add(pending.lease_ids.begin(), pending.lease_ids.end());
  request.mutable_request_ids()->Add(pending.request_ids.begin(), pending.request_ids.end());
  return request;
}

inline v1::AcquireRequest* PartFor(const v1::AcquireRequest&, v1::SessionRequest& message) {
  return message.mutable_acquire();
}
inline v1::AttachRequest* PartFor(const v1::AttachRequest&, v1::SessionRequest& message) {
  return message.mutable_attach();
}
inline v1::OpenRequest* PartFor(const v1::OpenRequest&, v1::SessionRequest& message) {
  return message.mutable_open();
}

// True if a call may take so long that other calls are not to wait for what it carries.
inline bool TakesLong(const v1::AcquireRequest& request) {
  constexpr uint64_t kMostBytes = uint64_t{256} << 20;
  return request.bytes() > kMostBytes / std::max(request.count(), 1u);
}
inline bool TakesLong(const v1::OpenRequest&) { return false; }

}  // namespace gpumem::internal
