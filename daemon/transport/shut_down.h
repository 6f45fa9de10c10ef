// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace gpumemd {

// Shuts servers down, all at one time: each waits for its calls in flight, at most until
// `deadline`. Then it cancels them.
void ShutDown(absl::Span<grpc::Server* const> servers, absl::Time deadline);

}  // namespace gpumemd
