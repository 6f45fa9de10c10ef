// A call whose thread can be disturbed while it waits for the answer.
#pragma once

#include <grpcpp/client_context.h>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "client/interrupt.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumem::internal {

// As the stub's Acquire. Meanwhile `look` is called in this thread: at the beginning, every
// `look_every`, and when there is news at the interrupt, which may be null. The call is cancelled
// where it says false; the answer may have been faster.
grpc::Status AcquireWaiting(v1::Broker::Stub& stub, grpc::ClientContext& context,
                            const v1::AcquireRequest& request, v1::AcquireResponse* response,
                            Interrupt* interrupt, absl::Duration look_every,
                            absl::FunctionRef<bool()> look);

}  // namespace gpumem::internal
