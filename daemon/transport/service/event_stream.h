// SPDX-License-Identifier: Apache-2.0
// Admin.WatchEvents: streams the records of the audit to operators as they come.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>

#include "daemon/core/audit/audit_ring.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumemd {

gpumem::v1::EventRecord ToProto(const AuditRecord& record);

// Thread-safe. Each stream occupies the thread that serves it.
class EventStreams {
 public:
  static constexpr int kMost = 16;

  // `ring` outlives this.
  explicit EventStreams(const AuditRing* ring) : ring_(ring) {}

  // Serves one stream: passes the requested records to `write` until it returns false, `cancelled`
  // returns true, or there are no more. Calls `cancelled` some times a second.
  //   INVALID_ARGUMENT    there is no such event
  //   RESOURCE_EXHAUSTED  there are kMost streams
  //   UNAVAILABLE         EndAll() was called
  grpc::Status Serve(const gpumem::v1::WatchEventsRequest& request,
                     const std::function<bool()>& cancelled,
                     const std::function<bool(const gpumem::v1::EventRecord&)>& write);

  // Ends all streams soon, and admits no new ones.
  void EndAll() { ended_ = true; }

 private:
  const AuditRing* const ring_;
  std::atomic<int> streams_{0};
  std::atomic<bool> ended_{false};
};

}  // namespace gpumemd
