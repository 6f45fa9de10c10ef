// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/read_snapshot.h"

#include <utility>

#include "absl/status/status.h"

namespace gpumem::cli {

using v1::Admin;

absl::StatusOr<Snapshot> ReadSnapshot(AdminConnection& admin) {
  Snapshot snapshot;
  absl::Status first;
  const auto ask = [&](auto method, auto request, auto* answer) {
    if (!first.ok()) return;
    auto response = Call(admin, method, request);
    if (response.ok()) {
      *answer = *std::move(response);
    } else {
      first = response.status();
    }
  };
  ask(&Admin::Stub::GetStatus, v1::GetStatusRequest(), &snapshot.status);
  ask(&Admin::Stub::ListTenants, v1::ListTenantsRequest(), &snapshot.tenants);
  ask(&Admin::Stub::ListSessions, v1::ListSessionsRequest(), &snapshot.sessions);
  ask(&Admin::Stub::ListSegments, v1::ListSegmentsRequest(), &snapshot.segments);
  ask(&Admin::Stub::ListWaiting, v1::ListWaitingRequest(), &snapshot.waiting);
  ask(&Admin::Stub::ListPublications, v1::ListPublicationsRequest(), &snapshot.publications);
  ask(&Admin::Stub::ListHolders, v1::ListHoldersRequest(), &snapshot.holders);
  if (!first.ok()) return first;
  return snapshot;
}

}  // namespace gpumem::cli
