// SPDX-License-Identifier: Apache-2.0
// A call whose thread can be disturbed while it waits for the answer.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "client/session/interrupt.h"

namespace gpumem::internal {

// Makes the call that `start` begins. `start` must request completion with `tag` on `queue`, and
// the status in `*status`. Meanwhile this thread calls `look`: first, then after each delay that it
// returns, and after each event of `interrupt`, which may be null. A delay of zero cancels the
// call; the answer may arrive first.
grpc::Status WaitForAnswer(
    grpc::ClientContext& context,
    absl::FunctionRef<void(grpc::CompletionQueue* queue, grpc::Status* status, void* tag)> start,
    Interrupt* interrupt, absl::FunctionRef<absl::Duration()> look);

}  // namespace gpumem::internal
