// SPDX-License-Identifier: Apache-2.0
// The definitions of the templates by which a session makes its calls, for the sources of Session.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/session.h"

namespace gpumem::internal {

// The maximum time that a destructor or a rollback waits for the daemon.
inline constexpr absl::Duration kTimeout = absl::Seconds(1);

template <typename Request, typename Response>
absl::StatusOr<Response> Session::Ask(Method<Request, Response> method, const Request& request,
                                      absl::Time deadline) {
  while (true) {
    const absl::StatusOr<ConnectionPtr> connection = Prepare(deadline);
    if (!connection.ok()) return connection.status();
    absl::StatusOr<Response> response = Call(**connection, method, request, deadline);
    if (!HasEnded(**connection, response.status())) return response;
  }
}

template <typename Request, typename Response>
absl::StatusOr<Response> Session::Call(Connection& connection, Method<Request, Response> method,
                                       const Request& request, absl::Time deadline) {
  Response response;
  const grpc::Status status = connection.Call(method, request, &response, deadline);
  if (!status.ok()) return Explain(connection, status, deadline);
  return response;
}

}  // namespace gpumem::internal
