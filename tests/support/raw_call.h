// SPDX-License-Identifier: Apache-2.0
// gRPC calls by name and bytes, which may break the rules of stubs.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"

namespace gpumem::testing {

// A unary call, from its begin. The destructor blocks until it has ended.
class PendingCall {
 public:
  // `method`: "/gpumem.v1.Broker/Acquire"
  PendingCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
              const std::string& request, std::unique_ptr<grpc::ClientContext> context);
  ~PendingCall() { done_.WaitForNotification(); }
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  void Cancel() { context_->TryCancel(); }
  // Blocks until the answer.
  absl::StatusOr<std::string> Wait();

 private:
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  grpc::ByteBuffer request_, response_;
  grpc::Status status_;
  absl::Notification done_;
};

// A call with streams in both directions. Must be finished.
class RawStream {
 public:
  RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
            std::unique_ptr<grpc::ClientContext> context);
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  // These block, and return false if the call has ended before.
  bool Write(const std::string& request, bool last = false);
  bool Read(std::string* answer);

  void Cancel() { context_->TryCancel(); }
  // Blocks until the call has ended, and returns how.
  absl::Status Finish();

 private:
  bool Done();

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool going_ = false;
};

}  // namespace gpumem::testing
