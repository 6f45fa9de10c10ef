// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/pending_call.h"

#include <utility>

#include "common/grpc_status.h"
#include "tests/support/wire.h"

namespace gpumem::testing {
namespace {

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

PendingCall::PendingCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                         const std::string& request, absl::string_view token)
    : stub_(channel), context_(ContextWith(token, kAnswerTime)), request_(BufferOf(request)) {
  stub_.UnaryCall(context_.get(), method, grpc::StubOptions(), &request_, &response_,
                  [this](grpc::Status status) {
                    status_ = std::move(status);
                    done_.Notify();
                  });
}

absl::StatusOr<std::string> PendingCall::Wait() {
  done_.WaitForNotification();
  if (!status_.ok()) return FromGrpcStatus(status_);
  grpc::Slice slice;
  if (!response_.Valid() || !response_.DumpToSingleSlice(&slice).ok()) return "";
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

absl::Status CallStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                        absl::string_view token, absl::Duration most,
                        const std::function<bool(std::string*)>& next) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const auto context = ContextWith(token, most);
  auto stream = stub.PrepareCall(context.get(), method, &queue);
  const auto done = [&] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  bool goes_on = done();
  std::string request;
  while (goes_on && next(&request)) {
    stream->Write(BufferOf(request), nullptr);
    goes_on = done();
    if (!goes_on) break;
    grpc::ByteBuffer answer;
    stream->Read(&answer, nullptr);
    goes_on = done();
  }
  context->TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  done();
  return FromGrpcStatus(status);
}

}  // namespace gpumem::testing
