// SPDX-License-Identifier: Apache-2.0
// The two ends of a unary call whose request and answer gRPC passes on as bytes.
//
// gRPC's synchronous services keep a thread for each call until its client has taken the answer. A
// client that does not read, or leaves HTTP/2 no window, keeps the thread for good. Some hundreds
// of such calls would block all clients. So these calls use the callback interface, where an answer
// waits without a thread. They use its raw form, because the other form answers an unparsable
// request with a bare code.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/trace/span.h"
#include "daemon/core/failpoint.h"
#include "proto/gpumem/v1/denial.pb.h"

namespace gpumemd {

// Converts the status for the client. Cuts long messages, which quote what a client sent: gRPC's
// clients accept no trailer of more than 8 KiB, and would see that error instead.
grpc::Status ToAnswer(const absl::Status& status);
// The same for a status that is part of an answer.
gpumem::v1::StatusDetails ToAnswerDetails(const absl::Status& status);

// Returns the parsed message.
//   INVALID_ARGUMENT  the bytes are no such message
template <typename Request>
absl::StatusOr<Request> ParseRequest(const grpc::ByteBuffer& bytes) {
  Request request;
  grpc::ByteBuffer consumed = bytes;  // shares the bytes
  if (!grpc::SerializationTraits<Request>::Deserialize(&consumed, &request).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request does not parse as a ", Request::descriptor()->full_name()));
  }
  return request;
}

// Answers the call with `response`, or its status; `bytes` is the call's.
template <typename Response>
void Answer(grpc::ServerUnaryReactor* call, grpc::ByteBuffer* bytes,
            const absl::StatusOr<Response>& response) {
  Failpoint("answer-before");
  const gpumem::trace::Span span("answer");
  if (!response.ok()) return call->Finish(ToAnswer(response.status()));
  bool owned;
  call->Finish(grpc::SerializationTraits<Response>::Serialize(*response, bytes, &owned));
}

}  // namespace gpumemd
