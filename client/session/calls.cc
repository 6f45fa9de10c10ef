// SPDX-License-Identifier: Apache-2.0
// The calls of a session whose answer is a message, and its event stream.
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/session.h"
#include "common/failpoint.h"
#include "common/node_clock.h"

namespace gpumem::internal {
namespace {

absl::Status LostError(uint64_t lease_id) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the segment of lease ", lease_id,
      " is lost: the daemon that held it ended, and the next daemon did not restore it; copy its "
      "contents if it is mapped, release it, and acquire another"));
}

// The time that a rollback waits for a restarted daemon to resume the session.
constexpr absl::Duration kRollbackTimeout = absl::Milliseconds(100);

// Bound the cost of reporting activity. A daemon that is late may have got the report.
constexpr int64_t kReportNs = 1'000'000'000;
constexpr absl::Duration kReportTimeout = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<v1::PublishResponse> Session::Publish(const v1::PublishRequest& request,
                                                     absl::Time deadline) {
  Failpoint("client-publish-asks");
  // The daemon ends the session's claim with the publication, so that it is none of a later
  // request.
  const std::vector<uint64_t> claims = book_.ClaimsOn({request.name(), request.content_id()});
  absl::StatusOr<v1::PublishResponse> response = Ask(&v1::Broker::Stub::Publish, request, deadline);
  if (response.ok()) book_.Published(claims);
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
  if (book_.IsLost(request.lease_id())) return LostError(request.lease_id());
  absl::StatusOr<v1::ShareResponse> response = Ask(&v1::Broker::Stub::Share, request, deadline);
  if (!response.ok() && book_.IsLost(request.lease_id())) return LostError(request.lease_id());
  return response;
}

absl::StatusOr<v1::PrepareSuspendResponse> Session::PrepareSuspend(
    const v1::PrepareSuspendRequest& request, absl::Time deadline) {
  Failpoint("client-prepare-suspend-asks");
  absl::StatusOr<v1::PrepareSuspendResponse> response =
      Ask(&v1::Broker::Stub::PrepareSuspend, request, deadline);
  if (!response.ok()) return ExplainLost(request.lease_ids(), response.status());
  return response;
}

absl::StatusOr<v1::SuspendResponse> Session::Suspend(const v1::SuspendRequest& request,
                                                     absl::Time deadline) {
  Failpoint("client-suspend-asks");
  absl::StatusOr<v1::SuspendResponse> response = Ask(&v1::Broker::Stub::Suspend, request, deadline);
  Failpoint("client-suspend-heard");
  if (!response.ok()) return ExplainLost(request.lease_ids(), response.status());
  return response;
}

void Session::ReportActivity() {
  const auto now = static_cast<int64_t>(NodeClockNs());
  int64_t after = report_after_ns_.load(std::memory_order_relaxed);
  if (now < after || forked()) return;
  // One of several threads makes the call.
  if (!report_after_ns_.compare_exchange_strong(after, now + kReportNs)) return;
  const ConnectionPtr connection = reconnector_.current();
  if (connection->ended()) return;
  v1::ReportActivityResponse response;
  connection->Call(&v1::Broker::Stub::ReportActivity, v1::ReportActivityRequest(), &response,
                   absl::Now() + kReportTimeout);
}

void Session::CancelSuspend(uint64_t suspension_id) {
  if (forked()) return;
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kRollbackTimeout);
  // A reservation ends with its daemon, too.
  if (!connection.ok()) return;
  v1::CancelSuspendRequest request;
  request.set_suspension_id(suspension_id);
  v1::CancelSuspendResponse response;
  (*connection)->Call(&v1::Broker::Stub::CancelSuspend, request, &response, absl::Now() + kTimeout);
}

absl::Status Session::SuspendAgain(const v1::SuspendRequest& request, absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kRollbackTimeout);
  if (!connection.ok()) return connection.status();
  return Call(**connection, &v1::Broker::Stub::Suspend, request, deadline).status();
}

absl::Status Session::ExchangeLeases(const v1::ExchangeLeasesRequest& request,
                                     absl::Time deadline) {
  Failpoint("client-exchange-asks");
  const absl::StatusOr<v1::ExchangeLeasesResponse> response =
      Ask(&v1::Broker::Stub::ExchangeLeases, request, deadline);
  Failpoint("client-exchange-heard");
  if (response.ok()) return absl::OkStatus();
  std::vector<uint64_t> lease_ids;
  for (const v1::ExchangeLeasesRequest::Pair& pair : request.pairs()) {
    lease_ids.push_back(pair.lease_id());
    lease_ids.push_back(pair.other_lease_id());
  }
  return ExplainLost(lease_ids, response.status());
}

absl::Status Session::ExplainLost(absl::Span<const uint64_t> lease_ids,
                                  const absl::Status& refusal) const {
  if (!absl::IsNotFound(refusal)) return refusal;
  for (const uint64_t id : lease_ids) {
    if (book_.IsLost(id)) return LostError(id);
  }
  return refusal;
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
                                                    const v1::WatchRequest& request,
                                                    absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  absl::StatusOr<ConnectionPtr> connection = reconnector_.Get(deadline);
  if (!connection.ok()) return connection.status();
  FlushPending(**connection, absl::Now() + kTimeout);
  (*connection)->SetUp(*context, absl::InfiniteFuture());
  EventStream stream;
  stream.connection = *std::move(connection);
  stream.reader = stream.connection->stub().Watch(context, request);
  return stream;
}

}  // namespace gpumem::internal
