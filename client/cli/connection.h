// How gpumemctl talks to the daemon.
//
// Errors are sentences for the user: where it looked and what would help.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/grpc_status.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"

namespace gpumem::cli {

// How long any call may take.
inline constexpr std::chrono::seconds kCallTimeout{30};

// The service that operators call.
//   UNAVAILABLE        no daemon there
//   PERMISSION_DENIED  this user may not use it
//   RESOURCE_EXHAUSTED  it has no room for another connection
absl::StatusOr<std::unique_ptr<v1::Admin::Stub>> ConnectAdmin(const std::string& runtime_dir);

// One call: Call(*stub, &v1::Admin::Stub::GetStatus, request).
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Call(Stub& stub,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  Response response;
  grpc::Status status = (stub.*method)(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

}  // namespace gpumem::cli
