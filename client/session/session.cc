// SPDX-License-Identifier: Apache-2.0
#include "client/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/session_calls.h"
#include "common/failpoint.h"
#include "common/grpc_status.h"

namespace gpumem::internal {
namespace {

// The maximum time that a daemon that no longer answers takes to die. A daemon with much memory
// needs some time between closing one socket and the other.
constexpr absl::Duration kDying = absl::Seconds(10);

absl::Status LostError() {
  return absl::FailedPreconditionError(
      "the segment is lost: the daemon that held it ended, and the next daemon did not restore it; "
      "copy its contents, release it, and acquire another");
}

}  // namespace

bool Session::forked() const { return ::getpid() != pid_; }

absl::Time Session::Deadline(std::optional<absl::Duration> timeout) const {
  return absl::Now() + timeout.value_or(timeout_);
}

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

void Session::Keep(std::shared_ptr<void> object) {
  absl::MutexLock lock(&mutex_);
  kept_.push_back(std::move(object));
}

absl::Status Session::CheckProcess() const {
  if (!forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked from the one that connected; the session belongs to the parent "
      "process");
}

absl::StatusOr<Session::ConnectionPtr> Session::Prepare(absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  absl::StatusOr<ConnectionPtr> connection = reconnector_.Get(deadline);
  if (connection.ok()) FlushPending(**connection, std::min(deadline, absl::Now() + kTimeout));
  return connection;
}

bool Session::MayComeBack(const absl::Status& status) const {
  return absl::IsUnavailable(status) && reconnector_.enabled() && reconnector_.over().ok();
}

bool Session::HasEnded(Connection& connection, const absl::Status& status) const {
  return absl::IsUnavailable(status) && reconnector_.enabled() && connection.ended();
}

absl::Status Session::Explain(const EventStream& stream, const grpc::Status& status) {
  return Explain(*stream.connection, status, absl::Now() + kDying);
}

absl::Status Session::Explain(Connection& connection, const grpc::Status& status,
                              absl::Time deadline) {
  absl::Status result = FromGrpcStatus(status);
  if (result.ok()) result = absl::UnavailableError("the daemon has ended the session");
  switch (result.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      // The end of the session explains all of these, with the daemon's reason.
      if (absl::Status end = connection.End(); !end.ok()) return end;
      break;
    default:
      break;
  }
  if (absl::IsDeadlineExceeded(result) && result.message() == "Deadline Exceeded") {
    return absl::DeadlineExceededError("the daemon did not answer in time");
  }
  if (!absl::IsUnavailable(result) && !absl::IsCancelled(result)) return result;
  // Distinguishes the daemon's answer from gRPC's report that its connection has ended.
  const absl::Time dead =
      reconnector_.enabled() ? std::min(deadline, absl::Now() + kDying) : absl::InfinitePast();
  absl::Duration pause = absl::Milliseconds(1);
  while (true) {
    const Connection::Heartbeat heartbeat =
        connection.Check(std::min(deadline, absl::Now() + kTimeout));
    if (heartbeat == Connection::Heartbeat::kAnswers) break;
    if (heartbeat == Connection::Heartbeat::kBroken && reconnector_.enabled()) {
      // Another connection is needed in both cases: the daemon dies, or it has only closed this
      // connection.
      connection.GiveUp();
      return connection.End();
    }
    absl::Status end = connection.deliveries().AwaitEnd(std::min(dead, absl::Now() + pause));
    if (!end.ok()) return end;
    if (absl::Now() >= dead) {
      return absl::UnavailableError(
          absl::StrCat("the daemon no longer answers (", result.message(), ")"));
    }
    pause = std::min(2 * pause, absl::Milliseconds(100));
  }
  // gRPC's generic message does not help. If this client has not cancelled the call, the daemon did
  // so while exiting.
  if (absl::IsCancelled(result) && result.message() == "CANCELLED") {
    return absl::UnavailableError("the daemon has ended the call: it is stopping");
  }
  return result;
}

}  // namespace gpumem::internal
