// SPDX-License-Identifier: Apache-2.0
// Converts absl::Status to grpc::Status and back. The codes are the same numbers; a Denial payload
// travels in the standard status details.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "proto/gpumem/v1/denial.pb.h"

namespace gpumem {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// The same for statuses that travel in a message: not those of a call, but of one part of it.
v1::StatusDetails ToStatusDetails(const absl::Status& status);
grpc::Status FromStatusDetails(const v1::StatusDetails& details);

}  // namespace gpumem
