// SPDX-License-Identifier: Apache-2.0
// The calls of a session whose answer is a message, and its event stream.
#include <utility>

#include "absl/time/clock.h"
#include "client/session/session.h"
#include "common/failpoint.h"

namespace gpumem::internal {
namespace {

absl::Status LostError() {
  return absl::FailedPreconditionError(
      "the segment is lost: the daemon that held it ended, and the next daemon did not restore it; "
      "copy its contents, release it, and acquire another");
}

}  // namespace

absl::StatusOr<v1::PublishResponse> Session::Publish(const v1::PublishRequest& request,
                                                     absl::Time deadline) {
  Failpoint("client-publish-asks");
  absl::StatusOr<v1::PublishResponse> response = Ask(&v1::Broker::Stub::Publish, request, deadline);
  Failpoint("client-publish-heard");
  return response;
}

absl::StatusOr<v1::UnpublishResponse> Session::Unpublish(const v1::UnpublishRequest& request,
                                                         absl::Time deadline) {
  return Ask(&v1::Broker::Stub::Unpublish, request, deadline);
}

absl::StatusOr<v1::ListPublicationsResponse> Session::ListPublications(
    const v1::ListPublicationsRequest& request, absl::Time deadline) {
  return Ask(&v1::Broker::Stub::ListPublications, request, deadline);
}

absl::StatusOr<v1::ShareResponse> Session::Share(const v1::ShareRequest& request,
                                                 absl::Time deadline) {
  // First, since this may resume the session, and so may the call.
  const absl::StatusOr<ConnectionPtr> connection = Prepare(deadline);
  if (!connection.ok()) return connection.status();
  if (book_.IsLost(request.lease_id())) return LostError();
  absl::StatusOr<v1::ShareResponse> response = Ask(&v1::Broker::Stub::Share, request, deadline);
  if (!response.ok() && book_.IsLost(request.lease_id())) return LostError();
  return response;
}

absl::StatusOr<v1::GetUsageResponse> Session::GetUsage(absl::Time deadline) {
  return Ask(&v1::Broker::Stub::GetUsage, v1::GetUsageRequest(), deadline);
}

absl::StatusOr<v1::WhoAmIResponse> Session::WhoAmI(absl::Time deadline) {
  return Ask(&v1::Broker::Stub::WhoAmI, v1::WhoAmIRequest(), deadline);
}

absl::StatusOr<v1::ListDevicesResponse> Session::ListDevices(absl::Time deadline) {
  return Ask(&v1::Broker::Stub::ListDevices, v1::ListDevicesRequest(), deadline);
}

absl::StatusOr<v1::RegisterIpcEventResponse> Session::RegisterIpcEvent(
    const v1::RegisterIpcEventRequest& request, absl::Time deadline) {
  return Ask(&v1::Broker::Stub::RegisterIpcEvent, request, deadline);
}

absl::StatusOr<v1::GetIpcEventsResponse> Session::GetIpcEvents(
    const v1::GetIpcEventsRequest& request, absl::Time deadline) {
  return Ask(&v1::Broker::Stub::GetIpcEvents, request, deadline);
}

absl::StatusOr<Session::EventStream> Session::Watch(grpc::ClientContext* context,
                                                    absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  absl::StatusOr<ConnectionPtr> connection = reconnector_.Get(deadline);
  if (!connection.ok()) return connection.status();
  FlushPending(**connection, absl::Now() + kTimeout);
  (*connection)->SetUp(*context, absl::InfiniteFuture());
  EventStream stream;
  stream.connection = *std::move(connection);
  stream.reader = stream.connection->stub().Watch(context, v1::WatchRequest());
  return stream;
}

}  // namespace gpumem::internal
