// SPDX-License-Identifier: Apache-2.0
// The calls of a session that its lane makes.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "client/session/lane/lane.h"
#include "client/session/session.h"
#include "common/failpoint.h"
#include "common/grpc_status.h"

namespace gpumem::internal {

std::optional<absl::StatusOr<Grant>> Session::CallOnLane(
    const ConnectionPtr& connection, Deliveries::Call& call, LeaseBook::Request& booked,
    v1::SessionRequest message, std::optional<int> count, absl::Time deadline, Recipient* recipient,
    v1::SessionResponse* answer) {
  LeaseBook::EarlyMapping maps(&book_);
  std::optional<Grant> early;
  uint64_t early_delivery = 0;
  const auto arrived = [&](Deliveries::Call::Arrival arrival) {
    early_delivery = arrival.delivery_id;
    early.emplace(shared_from_this(), connection, std::move(arrival.leases));
    early->set_fds(std::move(arrival.fds));
    if (recipient != nullptr) recipient->Arrived(*early);
    Failpoint("client-arrived");
  };
  const Lane::Expected expected = {.call = &call, .request_id = booked.id(), .arrived = arrived};
  const std::optional<grpc::Status> ended =
      connection->lane().Exchange(std::move(message), deadline, &expected, answer);
  if (!ended) return std::nullopt;
  const bool refused = ended->ok() && answer->has_status();
  absl::StatusOr<Granted> told = absl::UnknownError("no answer");
  if (ended->ok() && !refused) told = TakeLeasesOf(*answer);
  const bool is_early = early.has_value() && told.ok() && told->delivery_id == early_delivery;
  if (is_early && Matches(*told, *early, count)) {
    booked.Granted(early->LeaseIds());
    return *std::move(early);
  }
  if (early.has_value()) {
    if (recipient != nullptr) recipient->Withdrawn();
    early->Keep();
    // As an abandoned Delivery: the daemon may hold them for this session. A repeated request may
    // get them from the next daemon, whose statement comes after this.
    book_.AddPending({.lease_ids = early->LeaseIds(),
                      .request_ids = {},
                      .claims = {},
                      .statement = connection->statement()});
    early.reset();
  }
  maps.End();  // what follows may wait for the session's next connection
  if (!ended->ok()) return Explain(*connection, *ended, deadline);
  if (refused) return Explain(*connection, FromStatusDetails(answer->status()), deadline);
  if (is_early) {
    return absl::InternalError(
        "the daemon's answer names other leases than its Delivery; this is a defect of gpumem");
  }
  return TakeGrant(connection, call, booked, std::move(told), count, deadline);
}

absl::StatusOr<Session::Granted> Session::TakeLeasesOf(v1::SessionResponse& answer) {
  switch (answer.answer_case()) {
    case v1::SessionResponse::kAcquire:
      return TakeLeases(*answer.mutable_acquire());
    case v1::SessionResponse::kOpen:
      return TakeLeases(*answer.mutable_open());
    case v1::SessionResponse::kAttach:
      return TakeLeases(*answer.mutable_attach());
    default:
      return absl::InternalError(
          "the daemon's answer has no leases and no error; this is a defect of gpumem");
  }
}

bool Session::Matches(const Granted& granted, const Grant& grant, std::optional<int> count) {
  const size_t size = granted.leases.size();
  return static_cast<int>(size) == count.value_or(static_cast<int>(size)) &&
         std::equal(granted.leases.begin(), granted.leases.end(), grant.leases().begin(),
                    grant.leases().end(), [](const v1::Lease& one, const v1::Lease& other) {
                      return one.lease_id() == other.lease_id();
                    });
}

std::optional<absl::Status> Session::ReleaseOnLane(Connection& connection,
                                                   const v1::ReleaseRequest& request,
                                                   absl::Time deadline) {
  v1::SessionRequest message;
  *message.mutable_release() = request;
  v1::SessionResponse answer;
  const std::optional<grpc::Status> ended =
      connection.lane().Exchange(std::move(message), deadline, /*expected=*/nullptr, &answer);
  if (!ended) return std::nullopt;
  if (!ended->ok()) return Explain(connection, *ended, deadline);
  if (answer.has_release_status()) {
    return Explain(connection, FromStatusDetails(answer.release_status()), deadline);
  }
  if (answer.has_status()) {
    return Explain(connection, FromStatusDetails(answer.status()), deadline);
  }
  return absl::OkStatus();
}

}  // namespace gpumem::internal
