// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_call.h"

#include <utility>

#include "common/grpc_status.h"

namespace gpumem::testing {
namespace {

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.Valid() || !buffer.DumpToSingleSlice(&slice).ok()) return "";
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

}  // namespace

PendingCall::PendingCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                         const std::string& request, std::unique_ptr<grpc::ClientContext> context)
    : stub_(channel), context_(std::move(context)), request_(BufferOf(request)) {
  stub_.UnaryCall(context_.get(), method, grpc::StubOptions(), &request_, &response_,
                  [this](grpc::Status status) {
                    status_ = std::move(status);
                    done_.Notify();
                  });
}

absl::StatusOr<std::string> PendingCall::Wait() {
  done_.WaitForNotification();
  if (!status_.ok()) return FromGrpcStatus(status_);
  return BytesOf(response_);
}

RawStream::RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     std::unique_ptr<grpc::ClientContext> context)
    : stub_(channel), context_(std::move(context)) {
  stream_ = stub_.PrepareCall(context_.get(), method, &queue_);
  stream_->StartCall(nullptr);
  going_ = Done();
}

bool RawStream::Write(const std::string& request, bool last) {
  if (!going_) return false;
  if (last) {
    stream_->WriteLast(BufferOf(request), grpc::WriteOptions(), nullptr);
  } else {
    stream_->Write(BufferOf(request), nullptr);
  }
  return going_ = Done();
}

bool RawStream::Read(std::string* answer) {
  if (!going_) return false;
  grpc::ByteBuffer buffer;
  stream_->Read(&buffer, nullptr);
  going_ = Done();
  if (going_) *answer = BytesOf(buffer);
  return going_;
}

absl::Status RawStream::Finish() {
  grpc::Status status;
  stream_->Finish(&status, nullptr);
  Done();
  return FromGrpcStatus(status);
}

bool RawStream::Done() {
  void* tag;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

}  // namespace gpumem::testing
