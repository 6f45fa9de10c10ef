// A call whose thread can be disturbed while it waits for the answer.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "client/session/interrupt.h"

namespace gpumem::internal {

// Makes the call that `start` begins, with its end as that tag of the queue: it sets `*status`.
// Meanwhile `look` is called in this thread: at the beginning, again after as long as it says, and
// when there is news at the interrupt, which may be null. The call is cancelled where it says zero;
// the answer may have been faster.
grpc::Status WaitForAnswer(
    grpc::ClientContext& context,
    absl::FunctionRef<void(grpc::CompletionQueue* queue, grpc::Status* status, void* tag)> start,
    Interrupt* interrupt, absl::FunctionRef<absl::Duration()> look);

}  // namespace gpumem::internal
