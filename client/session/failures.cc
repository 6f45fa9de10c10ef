// SPDX-License-Identifier: Apache-2.0
// Why calls of a session fail.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/session.h"
#include "common/grpc_status.h"

namespace gpumem::internal {
namespace {

// The maximum time that a daemon that no longer answers takes to die. A daemon with much memory
// needs some time between closing one socket and the other.
constexpr absl::Duration kDying = absl::Seconds(10);

constexpr absl::string_view kNoAnswer = "the daemon did not answer in time";

}  // namespace

bool Session::HasEnded(Connection& connection, const absl::Status& status) const {
  return absl::IsUnavailable(status) && reconnector_.enabled() && connection.ended();
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
    return absl::DeadlineExceededError(kNoAnswer);
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

bool Session::MayHaveTakenEffect(const absl::Status& failure) {
  return absl::IsCancelled(failure) || absl::IsUnavailable(failure) ||
         (absl::IsDeadlineExceeded(failure) && failure.message() == kNoAnswer);
}

bool Session::MayComeBack(const absl::Status& status) const {
  return absl::IsUnavailable(status) && reconnector_.enabled() && reconnector_.over().ok();
}

absl::Status Session::Explain(const EventStream& stream, const grpc::Status& status) {
  return Explain(*stream.connection, status, absl::Now() + kDying);
}

}  // namespace gpumem::internal
