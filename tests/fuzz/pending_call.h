// SPDX-License-Identifier: Apache-2.0
// Calls by name and bytes that a client may cancel, or leave by its end.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace gpumem::testing {

// A unary call, from its begin. The destructor blocks until it has ended.
class PendingCall {
 public:
  PendingCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
              const std::string& request, absl::string_view token);
  ~PendingCall() { done_.WaitForNotification(); }
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  void Cancel() { context_->TryCancel(); }
  absl::StatusOr<std::string> Wait();

 private:
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  grpc::ByteBuffer request_, response_;
  grpc::Status status_;
  absl::Notification done_;
};

// Calls a method with streams: writes what `next` sets, while it returns true, and reads one answer
// after each. Cancels the call then, or after `most`. Returns how it has ended.
absl::Status CallStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                        absl::string_view token, absl::Duration most,
                        const std::function<bool(std::string*)>& next);

}  // namespace gpumem::testing
