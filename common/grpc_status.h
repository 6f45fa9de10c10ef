// SPDX-License-Identifier: Apache-2.0
// Converts absl::Status to grpc::Status and back. The codes are the same numbers; a Denial payload
// travels in the standard status details.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace gpumem {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace gpumem
